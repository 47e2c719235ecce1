"""Notes on a user's own script: its pauses, its waiting for data, its baseline, what its ranks saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import fmean

from scaling.analysis.measured.cell import AUDIT, Cell, waited_s
from scaling.analysis.measured.controls import Alone, Controls
from scaling.analysis.statistics.intervals import Estimate
from scaling.records.run import PointRecord, RankRecord

# A part of a step that one device waits for data is named from here on; so is a change by pauses.
LEAST_WAIT, LEAST_PAUSED = 0.05, 0.01
PAUSES = "pauses:"


def notes(cell: Cell, controls: Controls, efficiency: Estimate | None) -> Iterator[str]:
    """Yield the notes of a script's exchange."""
    point = cell.point
    if not point.workload.script:
        return
    alone = controls.baseline(point)
    if alone is not None:
        yield from _once(alone.records, without=PAUSES)
        yield from _waits(alone)
    if pauses := max((one for one in _every(cell.records) if one.startswith(PAUSES)), key=len, default=""):
        yield f"{pauses}{_with_pauses(cell, alone, efficiency)}"
    elif alone is not None and (of_one := [one for one in _every(alone.records) if one.startswith(PAUSES)]):
        yield f"{max(of_one, key=len)} (on one device){_with_pauses(cell, alone, efficiency)}"
    yield from _once(cell.records, without=PAUSES)


def _every(records: Iterable[PointRecord]) -> Iterator[str]:
    for rank in (rank for record in records for rank in record.ranks):
        yield from (note for note in _of(rank) if not note.startswith(AUDIT))


def _of(rank: RankRecord) -> tuple[str, ...]:
    return (*(rank.ready.notes if rank.ready else ()), *(rank.result.notes if rank.result else ()))


def _once(records: Iterable[PointRecord], *, without: str) -> Iterator[str]:
    yield from dict.fromkeys(note for note in _every(records) if not note.startswith(without))


def _waits(alone: Alone) -> Iterator[str]:
    """Waiting that one device has too is lost throughput, and no lost scaling."""
    seconds = waited_s(alone.records)
    steps = [time.harmonic_s for cell in alone.cells for time in cell.times.values()]
    if seconds and steps and seconds > LEAST_WAIT * fmean(steps):
        part = min(seconds / fmean(steps), 1.0)
        yield f"waiting for data: one device alone waits {100 * part:.0f} % of a step for its loader"


def _with_pauses(cell: Cell, alone: Alone | None, efficiency: Estimate | None) -> str:
    """Return the efficiency with the pauses of all steps, which windows leave out."""
    if alone is None or efficiency is None or not cell.times:
        return ""
    own_s, one_s = _paused_s(cell.records), _paused_s(alone.records)
    step_s = fmean(time.step_s for time in cell.times.values())
    share = cell.point.workload.share(cell.point.world_size)
    ideal_s = efficiency.mean * step_s
    found = (ideal_s + one_s / share) / (step_s + own_s)
    if abs(found - efficiency.mean) < LEAST_PAUSED:
        return ""
    return f"; with its pauses the efficiency is {100 * found:.0f} %"


def _paused_s(records: Iterable[PointRecord]) -> float:
    """Return the seconds of pauses of a step, mean over ranks and rounds."""
    windows = [
        window
        for record in records
        for rank in record.ranks
        for window in (*rank.warmup, *rank.windows, *rank.disturbed, *rank.later)
    ]
    steps = sum(window.steps for window in windows)
    return sum(window.paused_s for window in windows) / steps if steps else 0.0
