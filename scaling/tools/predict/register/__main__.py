"""The register command, `python -m scaling predict register RUN`: JSON questions on stdin, JSON answers."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from scaling.command import obey, show
from scaling.errors import UsageError
from scaling.records.run import Header, PointRecord, Prediction, Question
from scaling.records.store import load_measured
from scaling.tools.predict import asking, evidence, flags, priors
from scaling.tools.predict.evidence import Wanted
from scaling.tools.predict.flags import Asked
from scaling.tools.predict.forecast import Outlook, forecast, outlook
from scaling.tools.predict.priors import Priors
from scaling.tools.predict.setting import At


def answers(
    header: Header, records: Sequence[PointRecord], asked: Sequence[Question], priors: Priors, now_unix_s: float
) -> tuple[Prediction, ...]:
    """Answer each question in order. An answer without a prediction has the reason."""
    looks: dict[str, Outlook | UsageError] = {}
    found = []
    for one in asked:
        curve = replace(one.point, world_size=0, servers=0, round=0).cell
        if curve not in looks:
            looks[curve] = _look(header, records, one, priors)
        found.append(_answer(one, looks[curve], now_unix_s))
    return tuple(found)


def _look(header: Header, records: Sequence[PointRecord], one: Question, priors: Priors) -> Outlook | UsageError:
    try:
        return outlook(evidence.case(header, records, Wanted(like=one.point)), priors)
    except UsageError as error:
        return error


def _answer(one: Question, look: Outlook | UsageError, now_unix_s: float) -> Prediction:
    blank = Prediction(point=one.point, nodes=one.nodes, registered_unix_s=now_unix_s)
    try:
        if isinstance(look, UsageError):
            raise look
        notes = (*look.case.notes, *look.doubts)
        return replace(blank, up_to=look.case.largest, notes=notes, **_figures(one, look))
    except UsageError as error:
        return replace(blank, refused=str(error))


def _figures(one: Question, look: Outlook) -> Mapping[str, float | bool]:
    point = one.point
    asking.world_sizes(Asked(world_sizes=str(point.world_size)), look.case)
    if point.servers not in (0, one.nodes):
        raise UsageError(f"{point.servers} parameter servers on {one.nodes} nodes: only one per node is predicted")
    at = At(world_size=point.world_size, nodes=one.nodes, accumulation=look.case.accumulation)
    row = forecast(look, at)
    return {
        "samples_per_s": row.samples_per_s,
        "samples_per_s_low": row.samples_per_s_low,
        "samples_per_s_high": row.samples_per_s_high,
        "efficiency": row.efficiency,
        "efficiency_low": row.low,
        "efficiency_high": row.high,
        "claimed": row.claimed,
    }


def register(run: Path, given: bytes) -> str:
    try:
        questions = msgspec.json.decode(given, type=tuple[Question, ...])
    except msgspec.MsgspecError as error:
        raise UsageError(f"standard input: not a JSON array of points and their nodes: {error}") from None
    header, records = load_measured(run)
    found = answers(header, records, questions, priors.read(), time.time())
    return msgspec.json.encode(found).decode() + "\n"


def _act(argv: Sequence[str]) -> None:
    if run := flags.parse_register(argv):
        show(register(run, sys.stdin.buffer.read()))


def main(argv: Sequence[str] | None = None) -> int:
    return obey(_act, argv, flags.REGISTER)


if __name__ == "__main__":
    raise SystemExit(main())
