"""How far predictions miss, leaving one source of published series out at a time, in points of efficiency.

python -m tests.bench.predict                       each publisher's series from priors learned on all others
python -m tests.bench.predict --by source           each source's (a publisher has several of one cluster)
python -m tests.bench.predict --judge other.json    series that are not among ours, from priors learned on ours
python -m tests.bench.predict --as-shipped FILE     the same from the package's priors as they are
python -m tests.bench.predict --what-if             one series of a source from another of other batch, model or
                                                    network
python -m tests.bench.predict --speed               CPU seconds of a table of 8 world sizes
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from math import exp
from pathlib import Path
from statistics import median
from time import monotonic, process_time
from typing import NamedTuple

import numpy as np
from msgspec.structs import asdict

from scaling.tools.predict import __main__, evidence
from scaling.tools.predict.__main__ import forecasts
from scaling.tools.predict.flags import Asked
from scaling.tools.predict.model import fit, predict
from scaling.tools.predict.setting import Priors, read
from tests.bench import learning, published
from tests.bench.prediction_errors import Miss, misses, of_each, quantiles, table
from tests.bench.prediction_splits import single_nodes, split_table
from tests.bench.published import Series
from tests.support.predicted_runs import HEADER, run

HERE = Path(__file__).resolve().parents[1]
NODES = HERE / "published-nodes.json"
FILES = [HERE / "published.json", NODES]


def series_of(paths: Sequence[Path]) -> list[Series]:
    return [one for path in paths for one in published.series(published.read(path))]


def _left_out(series: Sequence[Series], by: str, key: str) -> list[Miss]:
    ours = [one for one in series if getattr(one, by) == key]
    return _judged(ours, learning.learn([one for one in series if getattr(one, by) != key]))


def left_out(series: Sequence[Series], by: str = "publisher", processes: int = 2) -> list[Miss]:
    """Predict each publisher's series from priors of all others; intervals are from the others' errors, too."""
    keys = sorted({getattr(one, by) for one in series if one.trust in ("A", "B")})
    with ProcessPoolExecutor(processes) as pool:
        found = [miss for misses in pool.map(partial(_left_out, series, by), keys) for miss in misses]
    whose = {one.name: getattr(one, by) for one in series}
    return [miss for key in keys for miss in _with_intervals(found, whose, key)]


def _with_intervals(found: Sequence[Miss], whose: Mapping[str, str], key: str) -> Iterator[Miss]:
    told = quantiles([miss for miss in found if whose[miss.series] != key], whose)
    for miss in found:
        if whose[miss.series] == key:
            below, above = (exp(factor * miss.deviation) for factor in told[miss.kind])
            yield miss._replace(low=miss.predicted / below, high=miss.predicted * above)


def _judged(series: Sequence[Series], priors: Priors) -> list[Miss]:
    return [miss for one in series if one.trust in ("A", "B") for miss in misses(one, priors)]


def _found(asked: Namespace) -> list[Miss]:
    if asked.as_shipped:
        return _judged(published.series(published.read(asked.as_shipped)), read())
    series = series_of(asked.published)
    if asked.judge:
        return _judged(published.series(published.read(asked.judge)), learning.learn(series))
    by = "source" if asked.by == "source" else "publisher"
    return left_out(series, by, asked.processes)


# World sizes of a table, and how many seconds of CPU it may take.
SIZES, CEILING_S, TABLES = tuple(8 << power for power in range(8)), 0.5, 9


def _speed() -> str:
    """The table of a run, from its records to its text; imports and reading files apart."""
    took_s, records = [], run()
    for _ in range(TABLES):
        began_s = process_time()
        case = evidence.case(HEADER, records, Asked())
        __main__.prediction_table(case, forecasts(case, SIZES))
        took_s.append(process_time() - began_s)
    reached = "reached" if median(took_s) < CEILING_S else "MISSED"
    return (
        f"a table of {len(SIZES)} world sizes: {median(took_s):.2f} s of CPU ({min(took_s):.2f} to "
        f"{max(took_s):.2f}, {TABLES} tables), below {CEILING_S:g} s: {reached}"
    )


STEP = {"step_s", "step_spread"}
NETWORK = {"link", "line_bytes_per_s", "cards"}
MODEL = STEP | {"gradient_bytes", "tail", "tensors", "sparse_bytes"}


class Answer(NamedTuple):
    """A point of the other series: points of efficiency off, also if the measured efficiency is kept, and whether
    it is inside the 80 % interval."""

    what: str
    error: float
    inside: bool
    kept: float


def answers(series: Sequence[Series], priors: Priors, every: int = 1) -> Iterator[Answer]:
    """Of every so many pairs, all points at world sizes that both have; of another network all pairs."""
    pairs = [(one, other, what) for one in series for other in series if (what := _asks(one, other))]
    networks = [pair for pair in pairs if pair[2] == "network"]
    for one, other, what in [*[pair for pair in pairs if pair[2] != "network"][::every], *networks]:
        found = fit(one.setting, one.observed, priors, other.setting)
        known = {seen.at: seen.efficiency for seen in one.observed}
        for seen in other.observed:
            if seen.at in known and (what != "network" or seen.at.nodes > 1):
                told = predict(found, seen.at)
                inside = told.low <= seen.efficiency <= told.high
                off, kept = abs(told.efficiency - seen.efficiency), abs(known[seen.at] - seen.efficiency)
                yield Answer(what, 100 * off, inside, 100 * kept)


def _asks(one: Series, other: Series) -> str:
    """What differs between two series of one source; "" where that is not one of these."""
    if one is other or (one.source, one.exchange) != (other.source, other.exchange) or len(one.observed) < 2:
        return ""
    if (one.setting.anchor.world_size, other.setting.anchor.world_size) != (1, 1):
        return ""
    ours, theirs = asdict(one.setting), asdict(other.setting)
    differing = {name for name in ours if ours[name] != theirs[name]} - {"anchor"}
    if differing and differing <= STEP:
        return "batch"
    if "link" in differing and differing <= STEP | NETWORK:
        return "network" if one.setting.link == "tcp" else ""
    return "model" if "gradient_bytes" in differing and differing <= MODEL else ""


def what_if_table(found: Sequence[Answer]) -> str:
    lines = []
    for what in ("batch", "model", "network"):
        ours = [one for one in found if one.what == what]
        if not ours:
            continue
        (median, ninth), (same, most) = (
            np.quantile(off, [0.5, 0.9]) for off in ([one.error for one in ours], [one.kept for one in ours])
        )
        inside = 100 * float(np.mean([one.inside for one in ours]))
        lines.append(
            f"another {what}: {len(ours)} points, off by {median:.1f} / {ninth:.1f} (the same efficiency: "
            f"{same:.1f} / {most:.1f}), 80 % covers {inside:.0f} %"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m tests.bench.predict")
    parser.add_argument("--by", choices=("publisher", "source"), default="publisher")
    parser.add_argument("--published", type=Path, nargs="+", default=FILES)
    parser.add_argument("--judge", type=Path)
    parser.add_argument("--as-shipped", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--what-if", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--every", type=int, default=3, help="of so many pairs of --what-if, one")
    asked = parser.parse_args(argv)
    if asked.speed:
        print(_speed())
        return 0
    if asked.what_if:
        taught = [one for one in series_of(asked.published) if one.trust in ("A", "B")]
        print(what_if_table(list(answers(taught, read(), asked.every))))
        return 0
    began_s = monotonic()
    found = _found(asked)
    if not found:
        print("no series of trust A or B asks anything")
        return 1
    print(table(found))
    other = asked.judge or asked.as_shipped
    tables = [one for path in ([other] if other else asked.published) for one in published.read(path)]
    judged = published.series(tables)
    print(of_each(found, {one.name: one.publisher for one in judged}))
    print(single_nodes(found, published.series(published.read(NODES))))
    print(split_table(found, judged, {one.id: one.gpu for one in tables}))
    print(f"{len({miss.series for miss in found})} series, {monotonic() - began_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
