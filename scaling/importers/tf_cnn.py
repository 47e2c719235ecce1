"""tf_cnn_benchmarks (github.com/tensorflow/benchmarks): what each of its processes prints.

Each process prints the total of the job, so that several totals are one and never a sum; a step's rate is that of
the process, or of the job in later versions with Horovod. The header tells the global batch and that of a device:
their ratio is the number of devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median

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

MARKS = ("images/sec",)
SURE = re.compile(r"\d\s+images/sec: ?\d|total images/sec:")
_TOTAL = re.compile(r"total images/sec: *(\d+(?:\.\d+)?)(?![\d.])(\u2026?)")
_STEP = compiled(r"(?:^|\s)\d+\s+images/sec: *", NUMBER, r" \+/- *\S+ \(jitter = [^)]*\)(?:\s+(\S+))?")
_HEAD = re.compile(r"(?:^|\s)(TensorFlow|Model|Batch size|Variables|Sync|Mode|Devices): +(\S.*?)\s*$")
_PER_DEVICE = re.compile(r"(?:^|\s)(\d+)(?:\.0*)? per device\s*$")
_GLOBAL = re.compile(r"(\d+)(?:\.0*)? global")
_TRAINS = re.compile(r"(?i)^(?:BenchmarkMode\.)?train")
# Beyond this share a total is not that of its steps: it was cut.
_APART = 0.2


class _Launch:
    """What the processes of one launch printed."""

    def __init__(self) -> None:
        self.head: dict[str, list[str]] = {}
        self.batches: list[int] = []
        self.steps: list[float] = []
        self.losses: list[str] = []
        self.totals: list[float] = []
        self.cut: list[float] = []

    def said(self, name: str) -> list[str]:
        """What its header says of something."""
        return self.head.get(name, [])


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row for each number of devices, model and batch. Raises Refused."""
    launches, skipped = [_Launch()], Skipped()
    for line in lines:
        if "images/sec" in line.text:
            _rate(line, launches[-1], skipped)
        elif (head := _HEAD.search(line.text)) is not None:
            if launches[-1].totals and head[1] in ("TensorFlow", "Model"):
                launches.append(_Launch())
            launches[-1].head.setdefault(head[1], []).append(head[2])
        elif (per := _PER_DEVICE.search(line.text)) is not None:
            launches[-1].batches.append(int(per[1]))
    whole = [launch for launch in launches if launch.totals or launch.cut]
    if not whole:
        raise Refused("has no line `total images/sec: ...`: it was broken off")
    return Found(rows=merged(_row(launch, given) for launch in whole), notes=skipped.notes())


def _rate(line: LogLine, launch: _Launch, skipped: Skipped) -> None:
    if (total := _TOTAL.search(line.text)) is not None:
        (launch.cut if total[2] else launch.totals).append(number(total[1]))
    elif (step := _STEP.search(line.text)) is not None:
        launch.steps.append(number(step[1]))
        launch.losses.append(step[2] or "")
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
    diverged = any(loss.strip(".,").lower() in ("nan", "inf", "-nan") for loss in launch.losses)
    return row(
        given,
        tool="tf_cnn_benchmarks",
        unit="images",
        rate=None if diverged else total,
        devices=devices,
        models=launch.said("Model"),
        batches=launch.batches,
        synchronous="False" not in launch.said("Sync"),
        failed="the loss is no number" if diverged else "",
        notes=tuple(f"variables: {how}" for how in dict.fromkeys(launch.said("Variables"))),
    )


def _devices(launch: _Launch, given: Given) -> int:
    """The global batch over that of a device."""
    whole = {int(found[1]) for text in launch.said("Batch size") if (found := _GLOBAL.search(text))}
    per = set(launch.batches)
    if len(whole) > 1 or len(per) > 1:
        raise Refused("says several batch sizes: split the log by launch")
    if not whole or not per:
        return world_size((), given)
    (global_batch,), (batch,) = whole, per
    if not batch or global_batch % batch:
        raise Refused(f"contradicts itself: a global batch of {global_batch} with {batch} per device")
    return world_size([global_batch // batch], given)


def _audit(launch: _Launch, total: float, devices: int) -> None:
    """The total is that of the steps of a process, times the number of processes."""
    if not launch.steps:
        return
    step = median(launch.steps)
    own = max((text.count("gpu:") + text.count("cpu:") for text in launch.said("Devices")), default=0)
    processes = {1, devices, *([devices // own] if own and devices % own == 0 else [])}
    if not any(abs(total - step * count) <= _APART * step * count for count in processes):
        raise Refused(
            f"contradicts itself: a total of {total:g} images/sec, steps of {step:g} on {devices} devices; "
            "the total was cut, or devices of other processes are not in the header"
        )
