"""Seconds that `scaling history` takes for 1,000 runs, as a table and as a page, and what most of them are.

The bar is 5 s, for a table and for a page. Runs are scripted: 35 points of up to 4 ranks each. Seconds of this
process' CPU stand beside those of the clock, which other work on the machine lengthens.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TypeVar

from msgspec.structs import replace

from scaling.records.store import load
from scaling.report.formats import terminal
from scaling.tools.history import page
from scaling.tools.history.__main__ import lettered
from scaling.tools.history.formats import document
from scaling.tools.history.lines import read
from tests.support.compared_runs import launch
from tests.support.scripted_records import UNIX_S, written

RUNS = 1000
DAY_S = 86400.0
T = TypeVar("T")


def main() -> None:
    with TemporaryDirectory() as folder:
        results = Path(folder)
        size = _write(results)
        sys.stdout.write(f"{RUNS} runs, {size / 1e6:.0f} MB: seconds by the clock, of CPU\n")
        _timed("reading the files", lambda: [None for path in results.iterdir() if load(path)])
        found, _ = _timed("and saying a line of each", lambda: read(results))
        _timed("table of these", lambda: terminal.draw(document("runs", lettered(found), []), color=False))
        found, _ = _timed("reading, lines and all exchanges", lambda: read(results, all_exchanges=True))
        _timed("page of these", lambda: page.render("runs", lettered(found), []))


def _write(results: Path) -> int:
    dice = Random(1)
    for day in range(RUNS):
        header, records = launch(dice)
        written(results / f"{day:04}", (replace(header, created_unix_s=UNIX_S + day * DAY_S), records))
    return sum(path.stat().st_size for path in results.glob("*/run.jsonl"))


def _timed(what: str, of: Callable[[], T]) -> T:
    clock_s, cpu_s = time.perf_counter(), time.process_time()
    found = of()
    took = (time.perf_counter() - clock_s, time.process_time() - cpu_s)
    sys.stdout.write(f"  {what:32} {took[0]:6.2f} {took[1]:6.2f}\n")
    return found


if __name__ == "__main__":
    main()
