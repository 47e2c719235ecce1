"""Has the later points of a sweep predicted from the earlier ones, before any of them is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from scaling.errors import Interrupted
from scaling.plan.placement import slots_of
from scaling.plan.plan import Plan
from scaling.records.messages import ToAgent, ToSweep
from scaling.records.point import Point
from scaling.records.prediction import Prediction, Question
from scaling.records.run import PointRecord
from scaling.transport.mailbox import Mailbox


class Asking(Protocol):
    """Questions that somebody else answers meanwhile."""

    def answers(self) -> tuple[Prediction, ...] | None:
        """One for each question, in their order; None until there are."""

    def stop(self) -> None:
        """Wait no longer. May be called again."""


# Of a run's folder.
Predictor = Callable[[Path, Sequence[Question]], Asking]


def questions(plan: Plan) -> tuple[Question, ...]:
    """The exchanges of the later stage, each once."""
    points = [point for group in plan.groups if plan.is_later(group) for point in group.points]
    return tuple(
        Question(point=replace(point, round=0), nodes=len({slot.host for slot in slots_of(point, plan.slots)}))
        for point in points
        if point.kind == "exchange" and point.strategy not in plan.missing and point.cell not in plan.refused
    )


def begun(plan: Plan, records: Iterable[PointRecord]) -> bool:
    """Whether any point of the later stage was tried already: what is said now would not be said before."""
    later = {point.cell for group in plan.groups if plan.is_later(group) for point in group.points}
    return any(record.point.cell in later for record in records)


def ask(
    predictor: Predictor, run: Path, asked: Sequence[Question], mailbox: Mailbox[ToAgent, ToSweep]
) -> tuple[Prediction, ...]:
    """Wait for the answers, in turn with this rank's agent. Raises Interrupted on a signal."""
    asking = predictor(run, asked)
    try:
        while (found := asking.answers()) is None:
            for _ in mailbox.news():
                pass
            if mailbox.signalled is not None:
                raise Interrupted(mailbox.signalled)
        return found
    finally:
        asking.stop()


def told(found: Iterable[Prediction]) -> Iterator[str]:
    """What is worth a line of each, and once what is noted of any."""
    for text in dict.fromkeys(text for one in found for text in one.notes):
        yield f"note: {text}"
    for one in found:
        name = _name(one.point)
        if one.refused or one.efficiency is None or one.efficiency_low is None or one.efficiency_high is None:
            yield f"not predicted: {name}: {one.refused}"
            continue
        ends = f"{100 * one.efficiency_low:.0f} to {100 * one.efficiency_high:.0f}"
        claim = "" if one.claimed else ", too wide to be claimed"
        yield f"PREDICTED, not measured: {name}: efficiency {100 * one.efficiency:.1f} % (80 %: {ends}{claim})"


def _name(point: Point) -> str:
    return f"{point.strategy} over {point.interconnect} N={point.world_size} batch {point.workload.batch_size}"
