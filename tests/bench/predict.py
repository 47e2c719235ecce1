"""How far predictions miss, leaving one source of published series out at a time, in points of efficiency.

python -m tests.bench.predict                       each publisher's series from priors learned on all others
python -m tests.bench.predict --by source           each source's (a publisher has several of one cluster)
python -m tests.bench.predict --judge other.json    series that are not among ours, from priors learned on ours
python -m tests.bench.predict --as-shipped FILE     the same from the package's priors as they are
python -m tests.bench.predict --what-if             one series of a source from another of other batch or model
python -m tests.bench.predict --speed               CPU seconds of a table of 8 world sizes
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic, process_time

from scaling.tools.predict import __main__, evidence, published
from scaling.tools.predict.forecast import forecasts, measure_next, outlook
from scaling.tools.predict.learn import fitting
from scaling.tools.predict.priors import Priors, read
from scaling.tools.predict.published import Series
from tests.support import what_ifs
from tests.support.predicted_runs import HEADER, run
from tests.support.prediction_errors import Miss, misses, of_each, table

FILE = Path(__file__).resolve().parents[1] / "published.json"


def _left_out(series: Sequence[Series], by: str, key: str) -> list[Miss]:
    ours = [one for one in series if getattr(one, by) == key]
    return _judged(ours, fitting.learn([one for one in series if getattr(one, by) != key]))


def _judged(series: Sequence[Series], priors: Priors) -> list[Miss]:
    return [miss for one in series if one.trust in ("A", "B") for miss in misses(one, priors)]


def _found(asked: Namespace) -> list[Miss]:
    if asked.as_shipped:
        return _judged(published.series(published.read(asked.as_shipped)), read())
    series = published.series(published.read(asked.published))
    if asked.judge:
        return _judged(published.series(published.read(asked.judge)), fitting.learn(series))
    by = "source" if asked.by == "source" else "publisher"
    keys = sorted({getattr(one, by) for one in series if one.trust in ("A", "B")})
    with ProcessPoolExecutor(asked.processes) as pool:
        return [miss for found in pool.map(partial(_left_out, series, by), keys) for miss in found]


# World sizes of a table, and how many seconds of CPU it may take.
SIZES, CEILING_S, TABLES = tuple(8 << power for power in range(8)), 0.5, 9


def _speed() -> str:
    """The table of a run with all controls, from its records to its text; imports and reading files apart.

    Its scripted exchange is far from what the priors know, so that as many draws are taken as ever are.
    """
    priors, took_s, records = read(), [], run()
    for _ in range(TABLES):
        began_s = process_time()
        look = outlook(evidence.case(HEADER, records), priors)
        __main__.prediction_table(look.case, forecasts(look, SIZES), (), measure_next(look, SIZES[-1]))
        took_s.append(process_time() - began_s)
    reached = "reached" if median(took_s) < CEILING_S else "MISSED"
    return (
        f"a table of {len(SIZES)} world sizes: {median(took_s):.2f} s of CPU ({min(took_s):.2f} to "
        f"{max(took_s):.2f}, {TABLES} tables), below {CEILING_S:g} s: {reached}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m tests.bench.predict")
    parser.add_argument("--by", choices=("publisher", "source"), default="publisher")
    parser.add_argument("--published", type=Path, default=FILE)
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
        taught = [one for one in published.series(published.read(asked.published)) if one.trust in ("A", "B")]
        print(what_ifs.table(list(what_ifs.answers(taught, read(), asked.every))))
        return 0
    began_s = monotonic()
    found = _found(asked)
    if not found:
        print("no series of trust A or B asks anything")
        return 1
    print(table(found))
    judged = published.series(published.read(asked.judge or asked.as_shipped or asked.published))
    print(of_each(found, {one.name: one.publisher for one in judged}))
    print(f"{len({miss.series for miss in found})} series, {monotonic() - began_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
