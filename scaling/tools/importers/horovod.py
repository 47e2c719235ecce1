"""Importer for Horovod's synthetic benchmarks (its examples/) and programs with the same output.

Only rank 0 prints. The total is its rate times the number of ranks. ` +-` is the spread of windows within one
launch, so it gives no interval. The Keras variant prints its warm-up as `Iter #0`.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from statistics import fmean

from scaling.records.run import ImportedRow
from scaling.tools.importers.lines import LogLine
from scaling.tools.importers.logs import (
    NUMBER,
    Found,
    Given,
    Refused,
    Rows,
    Skipped,
    Tool,
    compiled,
    middle,
    number,
    row,
    world_size,
)

_SURE = re.compile(r"Total img/sec on \d+ \w+\(s\)|Img/sec per \w+: ?\d|Iter #\d+: \S+ img/sec per ")
# may be cut at the end; not read
_SPREAD = r" *\+- *\d"
_TOTAL = compiled(r"Total img/sec on (\d+) \w+\(s\): *", NUMBER, _SPREAD)
_PER = compiled(r"Img/sec per \w+: *", NUMBER, _SPREAD)
_ITER = compiled(r"Iter #(\d+): *", NUMBER, r" *img/sec per \w")
_HEAD = re.compile(r"(?:^|[\s:])(?:Model: *(\S+)|Batch size: *(\d+)|Number of \w+: *(\d+))\s*$")
_OF_ALL = "the total is rank 0's rate times the number of ranks"
_OF_ONE = "one rank of PyTorch's example runs without Horovod's hooks: its rate flatters one device"
# rounding to one decimal; a larger relative difference is a contradiction
_ROUNDING, _APART = 0.06, 0.01


class _Launch:
    def __init__(self) -> None:
        self.models: set[str] = set()
        self.batches: set[int] = set()
        self.sizes: set[int] = set()
        self.iters = array("d")
        self.per = array("d")
        self.size = 0
        self.totals = array("d")


def _read(lines: Iterable[LogLine], given: Given) -> Found:
    launch, rows, skipped = _Launch(), Rows(), Skipped()
    for line in lines:
        text = line.text
        if "mg/sec" in text:
            total = _TOTAL.search(text)
            if launch.size and (total is None or int(total[1]) != launch.size):
                rows.add(_row(launch, given))
                launch = _Launch()
            if not _rate(text, total, launch):
                skipped.add(line)
        elif ": " in text and (head := _HEAD.search(text)) is not None:
            if launch.size:
                rows.add(_row(launch, given))
                launch = _Launch()
            _head(head, launch)
    if launch.size:
        rows.add(_row(launch, given))
    found = tuple(rows)
    if not found:
        raise Refused("has no whole line `Total img/sec on N GPU(s): ... +-...`: it was broken off")
    return Found(rows=found, notes=skipped.notes())


def _head(head: re.Match[str], launch: _Launch) -> None:
    model, batch, size = head.groups()
    if model:
        launch.models.add(model)
    elif batch:
        launch.batches.add(int(batch))
    else:
        launch.sizes.add(int(size))


def _rate(text: str, total: re.Match[str] | None, launch: _Launch) -> bool:
    if total is not None:
        launch.size = int(total[1])
        launch.totals.append(number(total[2]))
    elif (per := _PER.search(text)) is not None:
        launch.per.append(number(per[1]))
    elif (one := _ITER.search(text)) is not None:
        launch.iters.append(number(one[2]))
    else:
        return False
    return True


def _row(launch: _Launch, given: Given) -> ImportedRow:
    size, total = launch.size, middle(launch.totals)
    _audit(launch, size, total)
    return row(
        given,
        tool="horovod",
        unit="images",
        rate=total,
        devices=world_size([size, *sorted(launch.sizes)], given),
        models=launch.models,
        batches=launch.batches,
        notes=(_OF_ALL if size > 1 else _OF_ONE,),
    )


def _audit(launch: _Launch, size: int, total: float) -> None:
    """The total must be N times the mean of the iterations, maybe without the warm-up."""
    per = total / size if size else float("nan")
    if launch.per and all(_differ(size * one, total, _ROUNDING * (size + 1)) for one in launch.per):
        raise Refused(f"contradicts itself: {size} x {launch.per[0]:g} is not {total:g}")
    means = [fmean(part) for part in (launch.iters, launch.iters[1:]) if part]
    if means and all(_differ(mean, per, _ROUNDING + _APART * per) for mean in means):
        raise Refused(f"contradicts itself: its iterations are {means[0]:.1f} img/sec, a device's mean {per:.1f}")


def _differ(one: float, other: float, allowed: float) -> bool:
    return not abs(one - other) <= allowed


TOOL = Tool(("mg/sec",), _SURE, _read)
