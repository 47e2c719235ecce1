"""Whether two logs of a cell are of one launch: files of its ranks, or copies of its output.

Logs of one launch ran at the same time. Without times, their rates rise and fall together, because ranks wait for
each other at each step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from math import atanh, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scaling.analysis.table.imported import FACTS
from scaling.records.run import ImportedRow
from scaling.tools.importers.logs import Found, Refused, Trace

# ---------------------------------------------------------------- times

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(\d\d):(\d\d):(\d\d)"
_TIMES = (
    re.compile(rf"(?<!\d)(\d{{4}})[-/](\d\d)[-/](\d\d)[T ]{_CLOCK}"),
    re.compile(rf"()\b({'|'.join(_MONTHS)}) ([ \d]\d) {_CLOCK}"),  # syslog
    re.compile(rf"()\b[IWE](\d\d)(\d\d) {_CLOCK}"),  # glog
)
# of formats without a year
_YEAR = 2000
# of the shorter log
_LEAST_OVERLAP = 0.5


class Clock:
    """Times of a log's lines of data, those that have one of `marks`."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = marks
        self.first: datetime | None = None
        self.last: datetime | None = None

    def watch(self, blocks: Iterable[str]) -> Iterator[str]:
        """Yield the blocks. The first and the last line of data of each are looked at."""
        for block in blocks:
            if places := [place for mark in self._marks if (place := block.find(mark)) >= 0]:
                last = max(block.rfind(mark) for mark in self._marks)
                self.first = self.first or time_of(_line_at(block, min(places)))
                self.last = time_of(_line_at(block, last)) or self.last
            yield block

    def overlaps(self, other: Clock) -> bool:
        """Whether both ran at the same time for most of the shorter log; False if either has no times."""
        if self.first is None or self.last is None or other.first is None or other.last is None:
            return False
        shorter = min(self.last - self.first, other.last - other.first)
        common = min(self.last, other.last) - max(self.first, other.first)
        return shorter.total_seconds() > 0 and common > _LEAST_OVERLAP * shorter


def _line_at(block: str, place: int) -> str:
    return block[block.rfind("\n", 0, place) + 1 : block.find("\n", place)]


def time_of(line: str) -> datetime | None:
    """Return the first time of a line, without its zone."""
    for form in _TIMES:
        if (found := form.search(line)) is not None:
            year, month, day, *clock = found.groups()
            hour, minute, second = map(int, clock)
            number = _MONTHS.index(month) + 1 if month in _MONTHS else int(month)
            try:
                return datetime(int(year or _YEAR), number, int(day), hour, minute, second)
            except ValueError:
                continue
    return None


# ---------------------------------------------------------------- rates

# of rates of one step; ranks of one launch differ less
_NEAR = 0.1
# equal rates without a change may be chance
_LEAST_VALUES = 3
# Changes from step to step: their least number, their least rank correlation, and how many standard errors it is
# from none (Fisher's z; changes of independent rates alternate, which widens its variance by 1.5).
_LEAST_CHANGES, _LEAST_CORRELATION, _STANDARD_ERRORS, _WIDER = 8, 0.7, 3.3, 1.5
_MOST_CORRELATION = 0.999


def is_together(one: Trace, other: Trace) -> bool:
    """Whether the rates after the first step are the same, or nearly so and change together."""
    _, ours, theirs = np.intersect1d(one.places, other.places, return_indices=True)
    first, second = np.array(one.rates)[ours[1:]], np.array(other.rates)[theirs[1:]]
    if not first.size or np.any(np.abs(first - second) > _NEAR * first):
        return False
    if np.array_equal(first, second):
        return len(set(first.tolist())) >= _LEAST_VALUES
    first, second = np.diff(first), np.diff(second)
    if first.size < _LEAST_CHANGES or not np.ptp(first) or not np.ptp(second):
        return False
    from scipy.stats import spearmanr  # type: ignore[import-untyped]  # slow, and rarely needed

    correlation = min(float(spearmanr(first, second).statistic), _MOST_CORRELATION)
    standard_errors = atanh(correlation) * sqrt((first.size - 3) / _WIDER)
    return correlation >= _LEAST_CORRELATION and standard_errors >= _STANDARD_ERRORS


# ---------------------------------------------------------------- logs of one launch


class ReadLog(NamedTuple):
    """A log that was read, and the times of its lines."""

    path: Path
    found: Found
    clock: Clock


def refuse_same_launch(new: ReadLog, others: Iterable[ReadLog]) -> None:
    """Raise Refused if the log is of the launch of another: its row would be a second launch, with an interval."""
    for other in others:
        if not {*map(_cell, new.found.rows)} & {*map(_cell, other.found.rows)}:
            continue
        if new.found.worker is not None and other.found.worker not in (None, new.found.worker):
            why = f"is of worker {new.found.worker}, {other.path} of worker {other.found.worker}"
        elif new.clock.overlaps(other.clock):
            why = f"ran at the same time as {other.path}, from {new.clock.first} to {new.clock.last}"
        elif any(is_together(one, of_other) for one in new.found.traces for of_other in other.found.traces):
            why = f"has the rates of {other.path} step by step"
        else:
            continue
        raise Refused(
            f"{why}: both are of one launch, which counts once; give one log of each launch, or all of its ranks "
            "in one file if each says its own rate alone"
        )


def _cell(row: ImportedRow) -> tuple[object, ...]:
    return (row.tool, row.world_size, row.parallelism, *(getattr(row, name) for name in FACTS))
