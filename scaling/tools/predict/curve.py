"""Which curve of a run a prediction stands on, and which of its rows may be learned from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scaling.analysis.audit import UNRANKED
from scaling.analysis.rows import Row
from scaling.errors import UsageError
from scaling.records.point import Point

# What disqualifies a row as input, and how much unexplained loss does.
MARKS = ("FAILED", *UNRANKED, "ASYNC", "UNSETTLED", "THROTTLED")
MOST_UNEXPLAINED = 0.10


class Wanted(NamedTuple):
    """Which curve of a run: words of the command line, empty where any will do, or that of a point `like` it. One
    of this `model` and `batch_size` is taken before others, where several devices ran it."""

    strategy: str = ""
    interconnect: str = ""
    up_to: int | None = None
    like: Point | None = None
    model: str = ""
    batch_size: int | None = None


ANY = Wanted()


def chosen(rows: Sequence[Row], wanted: Wanted) -> list[Row]:
    """The rows of the curve that was asked for, else of the fastest at the largest world size. Raises UsageError
    where there is none, and where its batch rule is a strong one."""
    curves: dict[int, list[Row]] = {}
    for row in rows:
        if _is_wanted(row, wanted):
            curves.setdefault(row.curve, []).append(row)
    if not curves:
        raise _none_such(rows, wanted)
    same = [curve for curve in curves.values() if _has_asked_work(curve, wanted)]
    found = max(same or curves.values(), key=_standing)
    _weak(found[0])
    return found


def sound(curve: Sequence[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """The rows of several devices that may be learned from, and why the others may not."""
    several = [(row, _unsound(row)) for row in curve if row.world_size > 1]
    left_out = (f"N={row.world_size} is left out: {why}" for row, why in several if why)
    return [row for row, why in several if not why], tuple(left_out)


def same_exchange(point: Point, row: Row) -> bool:
    """Whether both are of one exchange and workload on one hardware, at whatever world sizes."""
    same = (point.strategy, point.interconnect, point.workload, point.hardware, point.options)
    return same == (row.strategy, row.interconnect, row.workload, row.hardware, row.options)


def command(row: Row) -> str:
    """What measures such a row again, as far as its words go."""
    device = f"emulated:{row.hardware.profile}" if row.hardware.profile else row.hardware.device
    return f"python -m scaling.run --strategy {row.strategy} --model {row.workload.model} --device {device}"


def _is_wanted(row: Row, wanted: Wanted) -> bool:
    if wanted.like is not None and not _is_of(wanted.like, row):
        return False
    asked = wanted.strategy or row.strategy, wanted.interconnect or row.interconnect
    return asked == (row.strategy, row.interconnect)


def _is_of(point: Point, row: Row) -> bool:
    """Whether a point of any world size would stand on the row's curve."""
    return same_exchange(point, row) and (point.placement, point.server_hosts) == (row.placement, row.server_hosts)


def _none_such(rows: Iterable[Row], wanted: Wanted) -> UsageError:
    words = wanted.like or wanted
    flags = (("--strategy", words.strategy), ("--interconnect", words.interconnect))
    asked = " ".join(f"{flag} {word}" for flag, word in flags if word)
    known = sorted({f"{row.strategy} over {row.interconnect}" for row in rows})
    return UsageError(f"{asked or 'RUN'}: the run has no such exchange; it has {', '.join(known) or 'none'}")


def _has_asked_work(curve: Sequence[Row], wanted: Wanted) -> bool:
    """Whether it is of the model and batch size that were asked for, and several devices ran it."""
    work = curve[0].workload
    alike = (wanted.model or work.model, wanted.batch_size or work.batch_size) == (work.model, work.batch_size)
    return alike and any(row.world_size > 1 and not _unsound(row) for row in curve)


def _standing(curve: Sequence[Row]) -> tuple[bool, int, float]:
    last = curve[-1]
    rate = last.samples_per_s.mean if last.samples_per_s else 0.0
    return last.synchronous, last.world_size, rate


def _weak(row: Row) -> None:
    if row.workload.is_strong:
        raise UsageError(
            f"RUN: its batch rule is {row.workload.batch_rule}, and only the weak one is predicted: "
            f"{command(row)} --batch-rule weak --batch-size B"
        )


def _unsound(row: Row) -> str:
    marks = [mark for mark in MARKS if mark in row.flags]
    if marks or row.efficiency is None:
        return ", ".join(marks) or "no efficiency"
    if row.servers and row.servers != row.nodes:
        return f"{row.servers} parameter servers on {row.nodes} nodes: one per node is predicted"
    rest = _unexplained(row)
    if rest > MOST_UNEXPLAINED:
        return f"{100 * rest:.0f} points of its loss are unexplained"
    return ""


def _unexplained(row: Row) -> float:
    """What controls do not tell although all are there: without `comm` the exchange itself is in the rest."""
    lost = row.breakdown
    told = lost is not None and (lost.exposed is not None or lost.waiting is not None)
    return lost.unexplained if lost is not None and told else 0.0
