"""What a tool's grammar gives, and the words of its refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import isfinite, isnan
from statistics import median
from typing import Literal, TypeVar

from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.records.imported import ImportedBandwidth, ImportedRow, ImportedUnit
from scaling.records.point import Record
from scaling.text import counted, one_line
from scaling.tools.importers.lines import CUT, LogLine

Value = TypeVar("Value", str, int)
SpeedOf = Literal["", "worker", "all"]
# A number that is whole: neither cut nor the head of a longer one; with thousands commas or an exponent.
NUMBER = (
    r"(?<![\d.])(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    rf"(?=$|[\s,;:)\]}}%|'\"])(?![.,;:][\d{CUT}])"
)
MOST_SHOWN = 80
# Far above any rate that a log has told.
MOST_RATE = 1e13


class Refused(UsageError):
    """A log that cannot become a row, and why; the caller says which log."""


class Given(Record, frozen=True, kw_only=True):
    """What the command line says of what logs leave out; 0 and "" where it says nothing."""

    world_size: int = 0
    batch_size: int = 0
    model: str = ""
    precision: str = ""
    speed_of: SpeedOf = ""


class Found(Record, frozen=True, kw_only=True):
    """What one log says; `log` of its rows is filled in by the caller. `worker` is the one that wrote it, where
    each of a launch writes a log with the total of all."""

    rows: tuple[ImportedRow, ...] = ()
    bandwidths: tuple[ImportedBandwidth, ...] = ()
    worker: int | None = None
    notes: tuple[str, ...] = ()


Read = Callable[[Iterable[LogLine], Given], Found]


class Skipped:
    """Lines that have the right word in the wrong form: how many, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self._first: LogLine | None = None

    def add(self, line: LogLine) -> None:
        """One more."""
        self.count += 1
        self._first = self._first or line

    def notes(self) -> tuple[str, ...]:
        """In one text; nothing where none was skipped."""
        if self._first is None:
            return ()
        shown = one_line(self._first.text)
        shown = shown if len(shown) <= MOST_SHOWN else f"{shown[: MOST_SHOWN - 3]}..."
        number = self._first.number
        which = f"line {number}" if self.count == 1 else f"the first is line {number}"
        return (f"{counted(self.count, 'line')} skipped that looked like data: {which}: {shown}",)


def number(text: str) -> float:
    """`7,282` as 7282.0; inf and numbers that no rate can be are not a number."""
    value = float(text.replace(",", ""))
    return value if isfinite(value) and 0 <= value < MOST_RATE else float("nan")


def agreed(said: Iterable[Value], given: Value, flag: str, what: str) -> Value | None:
    """What a log says, else what a flag does; None where neither does.

    Raises Refused where a log says two things, or another one than the flag.
    """
    values = sorted(set(said))
    if len(values) > 1:
        shown = ", ".join(map(str, values[:4]))
        raise Refused(f"says several {what}: {shown}; split the log by launch")
    if values and given and values[0] != given:
        raise Refused(f"{flag} {given}: the log says {values[0]}")
    return values[0] if values else given or None


def world_size(said: Iterable[int], given: Given, hint: str = "") -> int:
    """On how many devices a log ran. Raises Refused where neither it nor the flag says so."""
    found = agreed(said, given.world_size, "--world-size", "numbers of devices")
    if found is None:
        raise Refused(f"does not say on how many devices it ran{hint}: add --world-size N")
    if found < 1:
        raise Refused(f"says {found} devices: add --world-size N")
    return found


def batch_size(said: Iterable[int], given: Given) -> int:
    """Of one device; 0 where nobody says."""
    return agreed(said, given.batch_size, "--batch-size", "batch sizes") or 0


def name(said: Iterable[str], given: str, flag: str, what: str) -> str:
    """A model or a precision, without regard to case; "" where nobody says."""
    shown = (one_line(one)[:MOST_SHOWN] for one in said)
    by_fold = {one.casefold(): one for one in shown if one}
    folded = agreed(list(by_fold), given.casefold(), flag, what)
    return by_fold.get(folded, given) if folded else ""


def middle(values: Iterable[float]) -> float:
    """The median: several that say the same of one launch are one. Raises Refused of nothing."""
    known = [value for value in values if not isnan(value)]
    if not known:
        raise Refused("has no whole line with a rate")
    return median(known)


def row(
    given: Given,
    *,
    tool: str,
    unit: ImportedUnit,
    rate: float | None,
    devices: int,
    models: Iterable[str] = (),
    batches: Iterable[int] = (),
    precisions: Iterable[str] = (),
    synchronous: bool = True,
    failed: str = "",
    audit: str = "",
    notes: Iterable[str] = (),
) -> ImportedRow:
    """What a log says of one cell, with what the command line says of the rest. Raises Refused."""
    if rate is not None and not 0 < rate < MOST_RATE:
        raise Refused(f"has a rate of {rate:g}, which nothing trains at")
    return ImportedRow(
        tool=tool,
        log="",
        unit=unit,
        rate=rate,
        world_size=devices,
        model=name(models, given.model, "--model", "models"),
        batch_size=batch_size(batches, given),
        precision=name(precisions, given.precision, "--precision", "precisions"),
        synchronous=synchronous,
        failed=failed,
        audit=audit,
        notes=tuple(notes),
    )


def compiled(*parts: str) -> re.Pattern[str]:
    """A grammar of several parts, in which `NUMBER` stands for itself."""
    return re.compile("".join(parts))


def once(found: Iterable[ImportedBandwidth]) -> tuple[ImportedBandwidth, ...]:
    """A line for each size and place: what was measured several times is one, the middle of them, and wrong if any
    was."""
    by_cell: dict[tuple[object, ...], list[ImportedBandwidth]] = {}
    for one in found:
        by_cell.setdefault((one.size_bytes, one.in_place, one.dtype, one.redop), []).append(one)
    ordered = (sorted(of_cell, key=lambda one: one.busbw_gbytes_per_s) for of_cell in by_cell.values())
    return tuple(replace(of_cell[(len(of_cell) - 1) // 2], wrong=_worst(of_cell)) for of_cell in ordered)


def _worst(of_cell: Iterable[ImportedBandwidth]) -> int | None:
    return max((one.wrong for one in of_cell if one.wrong is not None), default=None)
