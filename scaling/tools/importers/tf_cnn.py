"""tf_cnn_benchmarks (github.com/tensorflow/benchmarks): what each of its processes prints.

Each process prints the total of the job, so that several totals are one and never a sum; a step's rate is that of
the process, or of the job in later versions with Horovod. The header tells the global batch and that of a device:
their ratio is the number of devices. With workers each prints a log of its own, whose devices name its task.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from statistics import median

from scaling.records.imported import ImportedRow
from scaling.tools.importers.found import (
    NUMBER,
    Found,
    Given,
    Refused,
    Skipped,
    compiled,
    middle,
    number,
    row,
    world_size,
)
from scaling.tools.importers.gathered import Rows
from scaling.tools.importers.lines import LogLine

MARKS = ("images/sec",)
SURE = re.compile(r"\d\s+images/sec: ?\d|total images/sec:")
_TOTAL = re.compile(r"total images/sec: *(\d+(?:\.\d+)?)(?![\d.])(\u2026?)")
_STEP = compiled(r"(?:^|\s)\d+\s+images/sec: *", NUMBER, r" \+/- *\S+ \(jitter = [^)]*\)(?:\s+(\S+))?")
_HEAD = re.compile(r"(?:^|\s)(TensorFlow|Model|Batch size|Variables|Sync|Mode|Devices): +(\S.*?)\s*$")
_PER_DEVICE = re.compile(r"(?:^|\s)(\d+)(?:\.0*)? per device\s*$")
_GLOBAL = re.compile(r"(\d+)(?:\.0*)? global")
_TASK = re.compile(r"/job:worker/\S*?task:(\d{1,9})/")
_TRAINS = re.compile(r"(?i)^(?:BenchmarkMode\.)?train")
# Beyond this share a total is not that of its steps: it was cut. Nor is it that of another process of the launch.
_APART = 0.2


class _Launch:
    """What the processes of one launch printed."""

    def __init__(self) -> None:
        self.head: dict[str, set[str]] = {}
        self.batches: set[int] = set()
        self.steps = array("d")
        self.diverged = False
        self.totals = array("d")
        self.cut = array("d")

    def said(self, name: str) -> list[str]:
        """What its header says of something."""
        return sorted(self.head.get(name, ()))

    @property
    def has_total(self) -> bool:
        """Whether it came to its end."""
        return bool(self.totals or self.cut)


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row for each number of devices, model and batch. Raises Refused."""
    launch, rows, skipped, tasks = _Launch(), Rows(), Skipped(), set[int]()
    for line in lines:
        text = line.text
        if "images/sec" in text:
            _rate(line, launch, skipped)
        elif ": " in text and (head := _HEAD.search(text)) is not None:
            if launch.has_total and head[1] in ("TensorFlow", "Model"):
                rows.add(_row(launch, given))
                launch = _Launch()
            launch.head.setdefault(head[1], set()).add(head[2])
            tasks.update(map(int, _TASK.findall(head[2])))
        elif (per := _PER_DEVICE.search(text)) is not None:
            launch.batches.add(int(per[1]))
    if launch.has_total:
        rows.add(_row(launch, given))
    found = tuple(rows)
    if not found:
        raise Refused("has no line `total images/sec: ...`: it was broken off")
    return Found(rows=found, worker=min(tasks) if len(tasks) == 1 else None, notes=skipped.notes())


def _rate(line: LogLine, launch: _Launch, skipped: Skipped) -> None:
    if (total := _TOTAL.search(line.text)) is not None:
        (launch.cut if total[2] else launch.totals).append(number(total[1]))
    elif (step := _STEP.search(line.text)) is not None:
        launch.steps.append(number(step[1]))
        launch.diverged |= (step[2] or "").strip(".,").lower() in ("nan", "inf", "-nan")
    else:
        skipped.add(line)


def _row(launch: _Launch, given: Given) -> ImportedRow:
    for mode in launch.said("Mode"):
        if not _TRAINS.match(mode):
            raise Refused(f"is of mode {mode}: nothing was trained")
    if not launch.totals and not launch.steps:
        raise Refused("ends in the middle of its total")
    devices = _devices(launch, given)
    total = middle(launch.totals or launch.cut)
    _audit(launch, total, devices)
    return row(
        given,
        tool="tf_cnn_benchmarks",
        unit="images",
        rate=None if launch.diverged else total,
        devices=devices,
        models=launch.said("Model"),
        batches=launch.batches,
        synchronous="False" not in launch.said("Sync"),
        failed="the loss is no number" if launch.diverged else "",
        notes=tuple(f"variables: {how}" for how in dict.fromkeys(launch.said("Variables"))),
    )


def _devices(launch: _Launch, given: Given) -> int:
    """The global batch over that of a device."""
    whole = {int(found[1]) for text in launch.said("Batch size") if (found := _GLOBAL.search(text))}
    per = launch.batches
    if len(whole) > 1 or len(per) > 1:
        raise Refused("says several batch sizes: split the log by launch")
    if not whole or not per:
        return world_size((), given)
    (global_batch,), (batch,) = whole, per
    if not batch or global_batch % batch:
        raise Refused(f"contradicts itself: a global batch of {global_batch} with {batch} per device")
    said = global_batch // batch
    if given.world_size and said and given.world_size % said == 0 and _are(launch, given.world_size // said):
        return given.world_size  # older versions tell the batch of one process
    return world_size([said], given)


def _are(launch: _Launch, processes: int) -> bool:
    """Whether the total is that of so many processes, as the rate of a step is of one."""
    if not launch.steps or processes < 2:
        return False
    total, step = middle(launch.totals or launch.cut), median(launch.steps)
    return abs(total - step * processes) <= _APART * step


def _audit(launch: _Launch, total: float, devices: int) -> None:
    """All totals are one, which is that of the steps of a process, times the number of processes."""
    low, high = min(launch.totals, default=total), max(launch.totals, default=total)
    if high > (1 + _APART) * low:
        raise Refused(f"tells of totals from {low:g} to {high:g} images/sec, of several launches: split it")
    if not launch.steps:
        return
    step = median(launch.steps)
    own = max((text.count("gpu:") + text.count("cpu:") for text in launch.said("Devices")), default=0)
    processes = {1, devices, *([devices // own] if own and devices % own == 0 else [])}
    if not any(abs(total - step * count) <= _APART * step * count for count in processes):
        raise Refused(
            f"contradicts itself: a total of {total:g} images/sec, steps of {step:g} on {devices} devices; "
            "the total was cut, or --world-size N must count devices of processes that the header leaves out"
        )
