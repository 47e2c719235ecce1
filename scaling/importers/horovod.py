"""Horovod's synthetic benchmarks (its examples/), and those that print as they do.

Rank 0 alone prints, and the total is its own rate times the number of ranks. ` +-` is 1.96 times the population's
standard deviation of windows of one launch, not an error of the mean: no interval is made of it. The Keras variant
prints its warm-up as `Iter #0` and leaves it out of the mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import fmean

from scaling.importers.found import (
    NUMBER,
    Found,
    Given,
    Refused,
    Skipped,
    compiled,
    merged,
    middle,
    number,
    row,
    world_size,
)
from scaling.importers.lines import LogLine
from scaling.records.imported import ImportedRow

MARKS = ("mg/sec",)
SURE = re.compile(r"Total img/sec on \d+ \w+\(s\)|Img/sec per \w+: ?\d|Iter #\d+: \S+ img/sec per ")
# Whose end may be cut: it is not read.
_SPREAD = r" *\+- *\d"
_TOTAL = compiled(r"Total img/sec on (\d+) \w+\(s\): *", NUMBER, _SPREAD)
_PER = compiled(r"Img/sec per \w+: *", NUMBER, _SPREAD)
_ITER = compiled(r"Iter #(\d+): *", NUMBER, r" *img/sec per \w")
_HEAD = re.compile(r"(?:^|[\s:])(?:Model: *(\S+)|Batch size: *(\d+)|Number of \w+: *(\d+))\s*$")
# What printing to one decimal may hide, and what else is a contradiction.
_ROUNDING, _APART = 0.06, 0.01


class _Launch:
    """What was printed from one header to the next."""

    def __init__(self) -> None:
        self.models: list[str] = []
        self.batches: list[int] = []
        self.sizes: list[int] = []
        self.iters: list[tuple[int, float]] = []
        self.per: list[float] = []
        self.totals: list[tuple[int, float]] = []


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row for each number of devices, model and batch. Raises Refused."""
    launches, skipped = [_Launch()], Skipped()
    for line in lines:
        if "mg/sec" in line.text:
            _rate(line, launches, skipped)
        elif (head := _HEAD.search(line.text)) is not None:
            _head(head, _open(launches))
    whole = [launch for launch in launches if launch.totals]
    if not whole:
        raise Refused("has no whole line `Total img/sec on N GPU(s): ... +-...`: it was broken off")
    return Found(rows=merged(_row(launch, given) for launch in whole), notes=skipped.notes())


def _open(launches: list[_Launch]) -> _Launch:
    """The launch that goes on: a total ends it."""
    if launches[-1].totals:
        launches.append(_Launch())
    return launches[-1]


def _head(head: re.Match[str], launch: _Launch) -> None:
    model, batch, size = head.groups()
    if model:
        launch.models.append(model)
    elif batch:
        launch.batches.append(int(batch))
    else:
        launch.sizes.append(int(size))


def _rate(line: LogLine, launches: list[_Launch], skipped: Skipped) -> None:
    text = line.text
    if (total := _TOTAL.search(text)) is not None:
        known = launches[-1].totals
        launch = launches[-1] if not known or known[0][0] == int(total[1]) else _open(launches)
        launch.totals.append((int(total[1]), number(total[2])))
    elif (per := _PER.search(text)) is not None:
        _open(launches).per.append(number(per[1]))
    elif (one := _ITER.search(text)) is not None:
        _open(launches).iters.append((int(one[1]), number(one[2])))
    else:
        skipped.add(line)


def _row(launch: _Launch, given: Given) -> ImportedRow:
    size = launch.totals[0][0]
    total = middle(value for _, value in launch.totals)
    _audit(launch, size, total)
    return row(
        given,
        tool="horovod",
        unit="images",
        rate=total,
        devices=world_size([size, *launch.sizes], given),
        models=launch.models,
        batches=launch.batches,
        notes=("the total is rank 0's rate times the number of ranks",) if size > 1 else (),
    )


def _audit(launch: _Launch, size: int, total: float) -> None:
    """The total is N x that of a device, which is the mean of the iterations, perhaps without the warm-up."""
    per = total / size if size else float("nan")
    if launch.per and all(_differ(size * one, total, _ROUNDING * (size + 1)) for one in launch.per):
        raise Refused(f"contradicts itself: {size} x {launch.per[0]:g} is not {total:g}")
    rates = [rate for _, rate in launch.iters]
    means = [fmean(part) for part in (rates, rates[1:]) if part]
    if means and all(_differ(mean, per, _ROUNDING + _APART * per) for mean in means):
        raise Refused(f"contradicts itself: its iterations are {means[0]:.1f} img/sec, a device's mean {per:.1f}")


def _differ(one: float, other: float, allowed: float) -> bool:
    return not abs(one - other) <= allowed
