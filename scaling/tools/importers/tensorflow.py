"""Importers for TensorFlow's benchmarks: the official models and tf_cnn_benchmarks."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from scaling.records.run import ImportedRow
from scaling.tools.importers.lines import LogLine
from scaling.tools.importers.logs import (
    NUMBER,
    Found,
    Given,
    Rates,
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

# ---------------------------------------------------------------- official models
# `TimeHistory` of their Keras callback, over all replicas. Their final mean includes the start, so windows after
# the first are read. Under Horovod each process prints its own windows; then `--speed-of` is needed.


_SURE_TF_OFFICIAL = re.compile(
    r"TimeHistory: \S+ seconds, \S+ examples/second|BenchmarkMetric: \{'global step': *\d"
)
_NEW = compiled(
    "TimeHistory: *",
    NUMBER,
    " seconds, *",
    NUMBER,
    r" examples/second between steps (\d+) and (\d+)(?![\d\u2026])",
)
_OLD = compiled(
    r"BenchmarkMetric: \{'global step': *(\d+), *'time_taken': *", NUMBER, ", *'examples_per_second': *", NUMBER
)
# of seconds with two decimals
_ROUNDING = 0.001


class _Window(NamedTuple):
    """A window: its first step, samples/s, samples per step (0 if unknown)."""

    key: int
    rate: float
    samples: float


def _read_tf_official(lines: Iterable[LogLine], given: Given) -> Found:
    skipped, speakers = Skipped(), set[int]()
    rates, samples = Rates(), Rates()
    for line in lines:
        text = line.text
        if "TimeHistory:" in text or ("BenchmarkMetric:" in text and "global step" in text):
            if (window := _window(text)) is None:
                skipped.add(line)
            else:
                rates.add(window.rate, window.key)
                samples.add(window.samples, window.key)
                speakers.add(-1 if line.rank is None else line.rank)
    if not rates:
        raise Refused("has no whole window of steps")
    rate = rates.steady("window")
    devices = world_size([], given)
    workers, notes = _workers(len(speakers), devices, given)
    return skipped.found(
        row(
            given,
            tool="tf_official",
            unit="samples",
            rate=workers * rate,
            devices=devices,
            batches=_official_batches([workers * one for one in samples.later()], devices),
            notes=("the median of windows after the first", *notes),
        )
    )


def _workers(speakers: int, devices: int, given: Given) -> tuple[int, tuple[str, ...]]:
    if given.speed_of != "worker":
        if speakers > 1 and not given.speed_of:
            raise Refused(
                f"has windows of {speakers} processes, and no line says whether a speed is of one of them "
                "(Horovod) or of all replicas; say --speed-of worker or --speed-of all"
            )
        return 1, ()
    workers = speakers if speakers > 1 else devices
    return workers, (f"one worker's own speed x {workers}",)


def _window(text: str) -> _Window | None:
    if (new := _NEW.search(text)) is not None:
        first, last, rate = int(new[3]), int(new[4]), number(new[2])
        return _Window(first, rate, number(new[1]) * rate / (last - first)) if last > first else None
    old = _OLD.search(text)
    return None if old is None else _Window(int(old[1]), number(old[3]), 0.0)


def _official_batches(samples: Sequence[float], devices: int) -> list[int]:
    """None if rounding hides whether samples per step are a multiple of the devices."""
    if not samples:
        return []
    step = median(samples)
    whole = round(step / devices)
    return [whole] if whole and abs(step - whole * devices) <= _ROUNDING * devices * whole else []


TF_OFFICIAL = Tool(("TimeHistory:", "BenchmarkMetric:"), _SURE_TF_OFFICIAL, _read_tf_official)


# ---------------------------------------------------------------- tf_cnn_benchmarks
# github.com/tensorflow/benchmarks: every process prints the total of the job, so totals are not added. A step's
# rate is the process's, or the job's in later versions with Horovod. Each worker's log names its task under
# Devices.

_SURE_TF_CNN = re.compile(r"\d\s+images/sec: ?\d|total images/sec:")
_TOTAL = re.compile(r"total images/sec: *(\d+(?:\.\d+)?)(?![\d.])(\u2026?)")
_STEP = compiled(r"(?:^|\s)\d+\s+images/sec: *", NUMBER, r" \+/- *\S+ \(jitter = [^)]*\)(?:\s+(\S+))?")
_HEAD = re.compile(r"(?:^|\s)(TensorFlow|Model|Batch size|Variables|Sync|Mode|Devices): +(\S.*?)\s*$")
_PER_DEVICE = re.compile(r"(?:^|\s)(\d+)(?:\.0*)? per device\s*$")
_GLOBAL = re.compile(r"(\d+)(?:\.0*)? global")
_TASK = re.compile(r"/job:worker/\S*?task:(\d{1,9})/")
_TRAINS = re.compile(r"(?i)^(?:BenchmarkMode\.)?train")
# largest relative difference between a total and its steps, and between totals of one launch
_APART = 0.2


class _Launch:
    def __init__(self) -> None:
        self.head: dict[str, set[str]] = {}
        self.batches: set[int] = set()
        self.steps = array("d")
        self.diverged = False
        self.totals = array("d")
        self.cut = array("d")

    def said(self, name: str) -> list[str]:
        return sorted(self.head.get(name, ()))

    @property
    def has_total(self) -> bool:
        return bool(self.totals or self.cut)


def _read_tf_cnn(lines: Iterable[LogLine], given: Given) -> Found:
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
        return given.world_size  # older versions print the batch of one process
    return world_size([said], given)


def _are(launch: _Launch, processes: int) -> bool:
    """True if the total is `processes` times the rate of a step."""
    if not launch.steps or processes < 2:
        return False
    total, step = middle(launch.totals or launch.cut), median(launch.steps)
    return abs(total - step * processes) <= _APART * step


def _audit(launch: _Launch, total: float, devices: int) -> None:
    """All totals must agree with each other, and with a process's steps times the number of processes."""
    low, high = min(launch.totals, default=total), max(launch.totals, default=total)
    if high > (1 + _APART) * low:
        raise Refused(f"has totals from {low:g} to {high:g} images/sec, of several launches: split it")
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


TF_CNN = Tool(("images/sec",), _SURE_TF_CNN, _read_tf_cnn)
