"""Events folded per second for 1,024 ranks (above 50,000); 10,000 points read and tabulated (below 3 s); what a
sweep spends in its analysis after each of 2,000 points (below 5 ms; beside it what the whole analysis takes)."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec.structs import replace

from scaling.analysis.table.analyse import rows
from scaling.analysis.table.cell_rows import Analyser
from scaling.records import store
from scaling.records.events import Ready, Window
from scaling.records.messages import Report
from scaling.records.point import Point
from scaling.records.task import Run
from scaling.report.formats import terminal
from scaling.sweep.state import ChildState as RankState
from scaling.sweep.state import PointState, commanded, fold
from tests.support.inline import Launch
from tests.support.points import POINT, TASK, changed

RANKS, WINDOWS = 1024, 50
POINTS = 10_000
SWEPT = 2_000
READY = Ready(import_s=1.0, build_s=1.0, parameters=1, gradient_bytes=4, device_name="x")


def main() -> None:
    folded_per_s = _folding()
    read_s, table_s = _reading()
    out = sys.stdout.write
    out(f"collector: {RANKS} ranks, {WINDOWS} windows each\n")
    out(f"  events folded per second               {folded_per_s:,.0f}\n")
    out(f"  / 50,000                               {folded_per_s / 50_000:.2f}  (must be above 1)\n")
    out(f"  {POINTS:,} points of 2 ranks x 10 windows: read {read_s:.2f} s, tabulated {table_s:.2f} s\n")
    out(f"  sum / 3 s                              {(read_s + table_s) / 3:.2f}  (must be below 1)\n")
    for count in (200, SWEPT):
        after_s, whole_s = _analysing(count)
        ms, anew_ms = after_s * 1e3, whole_s * 1e3
        out(f"  analysis after each of {count:5,} points   {ms:.2f} ms  (all anew: {anew_ms:.0f} ms)\n")
    out(f"  / 5 ms                                 {after_s / 5e-3:.2f}  (must be below 1)\n")


def _folding() -> float:
    point: Point = replace(POINT, world_size=RANKS)
    tasks = [replace(TASK, point=point, rank=rank, hosts=("node1",) * RANKS) for rank in range(RANKS)]
    state = PointState(
        point=point, ranks=tuple(RankState(task=task) for task in tasks), expected=WINDOWS, started_s=0.0,
        started_unix_s=0.0,
    )  # fmt: skip
    for rank in range(RANKS):
        state = fold(state, Report(attempt=1, rank=rank, role="worker", event=READY))
    state = commanded(state, Run(windows=WINDOWS, steps=1, measured=True))
    reports = [
        Report(attempt=1, rank=rank, role="worker", event=_window(index))
        for index in range(WINDOWS)
        for rank in range(RANKS)
    ]
    begun_s = time.perf_counter()
    for report in reports:
        state = fold(state, report)
    passed_s = time.perf_counter() - begun_s
    assert state.chunk_complete
    return len(reports) / passed_s


def _window(index: int) -> Window:
    return Window(
        index=index, measured=True, steps=1, samples=32, start_s=index, end_s=index + 1.0, end_unix_s=index + 1.0,
        loss=1.0,
    )  # fmt: skip


def _reading() -> tuple[float, float]:
    with TemporaryDirectory() as folder:
        template = Launch(2).sweep(Path(folder), rounds=1)
        lines = [msgspec.json.encode(template.header)]
        for number in range(POINTS // len(template.records)):
            for record in template.records:
                lines.append(msgspec.json.encode(replace(record, point=replace(record.point, round=number))))
        (template.folder / store.FILE).write_bytes(b"\n".join(lines) + b"\n")
        begun_s = time.perf_counter()
        header, records = store.load(template.folder)
        read_s = time.perf_counter() - begun_s
    terminal.render(header, records[:1], color=False)  # imports
    begun_s = time.perf_counter()
    terminal.render(header, records, color=False)
    return read_s, time.perf_counter() - begun_s


def _analysing(count: int) -> tuple[float, float]:
    """Seconds per point of a sweep in rounds of 200 points at most, and those of the whole analysis at its end."""
    with TemporaryDirectory() as folder:
        template = Launch(4).sweep(Path(folder), rounds=1, windows=10).records
    records = [
        replace(one, point=changed(one.point, round=number, model=f"m{model}"))
        for number in range(-(-count // 200))
        for model in range(200 // len(template))
        for one in template
    ][:count]
    analyser = Analyser()
    begun_s = time.perf_counter()
    for record in records:
        analyser.add(record)
        analyser.rows()
    after_s = (time.perf_counter() - begun_s) / len(records)
    begun_s = time.perf_counter()
    rows(records)
    return after_s, time.perf_counter() - begun_s


if __name__ == "__main__":
    main()
