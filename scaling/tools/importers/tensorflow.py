"""Tables of TensorFlow's trainers: the official models, Orbit and tf_cnn_benchmarks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from scaling.tools.importers.engine import (
    Grammar,
    Launch,
    Unfinished,
    Value,
    form,
    of_asked,
    of_steps,
    sizes,
    unit_of_steps,
)
from scaling.tools.importers.lines import CUT, LogLine
from scaling.tools.importers.logs import APART, Refused, number

# ---------------------------------------------------------------- official models
# `TimeHistory` of their Keras callback, over all replicas. Their final mean includes the start, so windows after
# the first are read. Under Horovod each process prints its own windows; then `--speed-of` is needed.

_DEVICE = r"(?:device:|/)([CG]PU):\d+"
_MIRRORED = re.compile(rf"MirroredStrategy with devices \(((?:'[^']*{_DEVICE}'(?:, )?)+),?\)\s*$")
_WINDOW = ("_window_s", "_window_speed", "_first", "_last")
# of seconds with two decimals
_ROUNDING = 0.001


def mirrored(line: LogLine, _: Launch) -> Iterator[Mapping[str, Any]]:
    text = line.text
    if "MirroredStrategy" in text and (devices := _MIRRORED.search(text)) is not None:
        kinds = re.findall(_DEVICE, devices[1])
        # with several workers these are one worker's
        whole = None if "/job:worker" in devices[1] else len(kinds)
        yield {"world_size": whole, "device_kind": kinds[0], "begins": True}


def _samples(launch: Launch) -> list[int]:
    """Of the last window; empty if rounding hides whether samples per step are a multiple of the devices."""
    seconds, rate, first, last = (number(launch.last.get(name, "0")) for name in _WINDOW)
    if last <= first:
        return []
    step = seconds * rate / (last - first)
    if launch.given.speed_of == "worker":
        spoke = len(launch.rates["rate"])
        step *= spoke if spoke > 1 else launch.devices
    whole = round(step / launch.devices)
    return [whole] if whole and abs(step - whole * launch.devices) <= _ROUNDING * launch.devices * whole else []


def _num_gpus_divide(launch: Launch, _: float) -> None:
    for gpus in launch.integers("num_gpus"):
        if gpus and launch.devices % gpus:
            raise Refused(f"--world-size {launch.devices}: each process has {gpus} GPUs (--num_gpus)")


TF_OFFICIAL = Grammar(
    name="tf_official",
    marks=("TimeHistory:", "BenchmarkMetric:"),
    sure=r"TimeHistory: \S+ seconds, \S+ examples/second|BenchmarkMetric: \{'global step': *\d",
    unit="samples",
    data="examples",
    value=of_asked("window", "the median of windows after the first"),
    batches=_samples,
    objects=mirrored,
    lacks="has no whole window of steps",
    checks=(_num_gpus_divide,),
    lines=(
        form(
            "TimeHistory:",
            r"TimeHistory: *<_window_s> seconds, *(?=<_window_speed>)<rate> examples/second between steps "
            r"<_first> and (?=<_last>)<step>",
        ),
        form("num_gpus", r"(?:--num_gpus[= ]|'num_gpus': )<num_gpus>(?![\w.])"),
        form(
            "BenchmarkMetric",
            r"'global step': *<step>, *'time_taken': *<_seconds>, *'examples_per_second': *<rate>\}",
        ),
    ),
)


# ---------------------------------------------------------------- Orbit
# Controller of Orbit in github.com/tensorflow/models: steps/s with one decimal, evaluations not counted.


def _steps(launch: Launch) -> Value:
    steps_per_s = launch.steady("steps_rate", "loop")
    if steps_per_s < 1:
        raise Refused(f"says {steps_per_s:g} steps/sec with one decimal: the rounding is over 5 %")
    return of_steps(launch, steps_per_s, "steps/s with one decimal; the first loop is left out")


ORBIT = Grammar(
    name="tf_orbit",
    marks=("train | step:",),
    sure=r"train \| step: +\d+ \| steps/sec: +[\d.]+ \|",
    unit=unit_of_steps,
    data="train | step:",
    no_data="training until step",
    value=_steps,
    objects=mirrored,
    lines=(form("train | step:", r"\btrain \| step: +<step> \| steps/sec: +(?P<steps_rate>\d+\.\d) \| output:"),),
)


# ---------------------------------------------------------------- tf_cnn_benchmarks
# github.com/tensorflow/benchmarks: every process prints the total of the job, so totals are not added. A step's
# rate is the process's, or the job's in later versions with Horovod. Each worker's log names its task under
# Devices.


def _total(launch: Launch) -> Value:
    if not launch.rates.get("total") and not launch.rates.get("cut_total"):
        raise Unfinished("has no line `total images/sec: ...`: it was broken off")
    if not launch.rates.get("total") and not launch.rates.get("rate"):
        raise Refused("ends in the middle of its total")
    return launch.middle("total" if launch.rates.get("total") else "cut_total"), ()


def _step(launch: Launch) -> float:
    return float(np.median(launch.pooled("rate")))


def _sizes(launch: Launch) -> Iterable[int]:
    said, given = sizes(launch), launch.given.world_size
    if said and given and given % min(said) == 0 and launch.rates.get("rate") and given > min(said):
        processes, step = given // min(said), _step(launch)
        if abs(_total(launch)[0] - step * processes) <= APART * step:
            return [given]  # older versions print the batch of one process
    return said


def _agrees_with_steps(launch: Launch, total: float) -> None:
    if not launch.rates.get("rate"):
        return
    step, devices = _step(launch), launch.devices
    own = max((text.count("gpu:") + text.count("cpu:") for text in launch.texts("own")), default=0)
    processes = {1, devices, *([devices // own] if own and devices % own == 0 else [])}
    if not any(abs(total - step * count) <= APART * step * count for count in processes):
        raise Refused(
            f"contradicts itself: a total of {total:g} images/sec, steps of {step:g} on {devices} devices; "
            "the total was cut, or --world-size N must count devices of processes that the header leaves out"
        )


TF_CNN = Grammar(
    name="tf_cnn_benchmarks",
    marks=("images/sec",),
    sure=r"\d\s+images/sec: ?\d|total images/sec:",
    unit="images",
    value=_total,
    sizes=_sizes,
    checks=(_agrees_with_steps,),
    worker="task",
    lines=(
        form(
            "jitter",
            r"(?:^|\s)<step>\s+images/sec: *<rate> \+/- *\S+ \(jitter = [^)]*\)(?:\s+(?P<loss>[^\s,;]+))?",
        ),
        form("total", r"total images/sec: *<total>\s*$"),
        form("total", rf"total images/sec: *(?P<cut_total>\d+(?:\.\d+)?){CUT}"),
        form("TensorFlow: ", r"(?:^|\s)TensorFlow: +\S", begins=True),
        form("Model: ", r"(?:^|\s)Model: +(?P<model>\S.*?)\s*$", begins=True),
        form(
            "Mode: ",
            r"(?:^|\s)Mode: +(?!(?i:BenchmarkMode\.)?(?i:train))(\S.*?)\s*$",
            reason="is of mode {}: nothing was trained",
        ),
        form("Batch size: ", r"(?:^|\s)Batch size: +<global_batch>(?:\.0*)? global\s*$"),
        form("per device", r"^\s+<batch_size>(?:\.0*)? per device\s*$"),
        form("Devices: ", r"(?:^|\s)Devices: +(?P<own>.*\b(?P<device_kind>[gc]pu):\d.*?)\s*$"),
        form("Devices: ", r"/job:worker/\S*?task:<task>/"),
        form("Variables: ", r"(?:^|\s)Variables: +(?P<variables>\S.*?)\s*$"),
        form("Sync: ", r"(?:^|\s)Sync: +(?P<asynchronous>False)\s*$"),
    ),
)
