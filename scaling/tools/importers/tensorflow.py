"""TensorFlow's benchmarks: Horovod's synthetic ones (also of PyTorch), and tf_cnn_benchmarks."""

from __future__ import annotations

from collections.abc import Iterable

from scaling.tools.importers.engine import Grammar, Value, sizes
from scaling.tools.importers.launch import Launch, Unfinished, form
from scaling.tools.importers.logs import APART, Refused

# ---------------------------------------------------------------- Horovod
# Its examples, and programs with the same output. Only rank 0 prints: the total is its rate times the ranks.
# ` +-` is the spread of windows within one launch, so it gives no interval. The Keras variant prints its warm-up.

_LACKS = "has no whole line `Total img/sec on N GPU(s): ... +-...`: it was broken off"
_OF_ALL = "the total is rank 0's rate times the number of ranks"
_OF_ONE = "one rank of PyTorch's example runs without Horovod's hooks: its rate flatters one device"
# rounding to one decimal; a larger relative difference is a contradiction
_ROUNDING, _APART = 0.06, 0.01


def _of_ranks(launch: Launch) -> Value:
    if not launch.rates.get("total"):
        raise Unfinished(_LACKS)
    launch.median(launch.pooled("rate"))
    return launch.middle("total", _APART), (_OF_ALL if launch.devices > 1 else _OF_ONE,)


def _is_its_mean(launch: Launch, total: float) -> None:
    """The total must be N times the mean of the iterations, maybe without the warm-up."""
    devices, each = launch.devices, total / launch.devices
    one = launch.pooled("device_rate")
    if one.size and all(abs(devices * one - total) > _ROUNDING * (devices + 1)):
        raise Refused(f"contradicts itself: {devices} x {one[0]:g} is not {total:g}")
    for rates in launch.rates.get("rate", {}).values():
        means = [part.mean() for part in (rates.all(), rates.later()) if part.size]
        if all(abs(mean - each) > _ROUNDING + _APART * each for mean in means):
            raise Refused(
                f"contradicts itself: its iterations are {means[0]:.1f} img/sec, a device's mean {each:.1f}"
            )


HOROVOD = Grammar(
    name="horovod", unit="images", data="mg/sec", lacks=_LACKS, value=_of_ranks, checks=(_is_its_mean,),
    lines=(
        form("Total img/sec", r"Total img/sec on <world_size> (?P<device_kind>\w+)\(s\): *<total> *\+- *\d"),
        form("Img/sec per", r"Img/sec per \w+: *<device_rate> *\+- *\d"),
        form("Iter #", r"Iter #<step>: *<rate> *img/sec per \w"),
        form("Model: ", r"(?:^|[\s:])Model: *<model>\s*$", begins=True),
        form("Batch size: ", r"(?:^|[\s:])Batch size: *<batch_size>\s*$", begins=True),
        form("Number of ", r"(?:^|[\s:])Number of \w+: *<world_size>\s*$", begins=True),
    ),
)  # fmt: skip


# ---------------------------------------------------------------- tf_cnn_benchmarks
# github.com/tensorflow/benchmarks: every process prints the total of the job, so totals are not added. A step's
# rate is the process's, or the job's in later versions with Horovod. Each worker's log names its task under
# Devices.


def _total(launch: Launch) -> Value:
    if not launch.rates.get("total"):
        raise Unfinished("has no whole line `total images/sec: ...`: it was broken off")
    launch.median(launch.pooled("rate"))
    return launch.middle("total"), ()


def _sizes(launch: Launch) -> Iterable[int]:
    said, given = sizes(launch), launch.given.world_size
    processes, left = divmod(given, min(said, default=1))
    lists_all = any(text.count("horovod/") > 1 for text in launch.texts("own"))
    if said and processes > 1 and not left and not lists_all and launch.rates.get("rate"):
        step = launch.median(launch.pooled("rate"))
        if abs(_total(launch)[0] - step * processes) <= APART * step:
            return [given]  # older versions print the batch of one process
    return said


def _agrees_with_steps(launch: Launch, total: float) -> None:
    if not launch.rates.get("rate"):
        return
    step, devices = launch.median(launch.pooled("rate")), launch.devices
    own = max((text.count("gpu:") + text.count("cpu:") for text in launch.texts("own")), default=0)
    processes = {1, devices, *([devices // own] if own and devices % own == 0 else [])}
    if not any(abs(total - step * count) <= APART * step * count for count in processes):
        raise Refused(
            f"contradicts itself: a total of {total:g} images/sec, steps of {step:g} on {devices} devices; "
            "the total was cut, or --world-size N must count devices of processes that the header leaves out"
        )


_JITTER = r"(?:^|\s)<step>\s+images/sec: *<rate> \+/- *\S+ \(jitter = [^)]*\)(?:\s+(?P<loss>[^\s,;]+))?"
_MODE = r"(?:^|\s)Mode: +(?!(?i:BenchmarkMode\.)?(?i:train))(\S.*?)\s*$"
TF_CNN = Grammar(
    name="tf_cnn_benchmarks", unit="images", data="images/sec", value=_total, sizes=_sizes,
    checks=(_agrees_with_steps,), worker="task",
    lines=(
        form("jitter", _JITTER),
        form("total images", r"total images/sec: *<total>\s*$"),
        form("TensorFlow: ", r"(?:^|\s)TensorFlow: +\S", begins=True),
        form("Model: ", r"(?:^|\s)Model: +(?P<model>\S.*?)\s*$", begins=True),
        form("Mode: ", _MODE, reason="is of mode {}: nothing was trained"),
        form("Batch size: ", r"(?:^|\s)Batch size: +<global_batch>(?:\.0*)? global\s*$"),
        form("per device", r"^\s+<batch_size>(?:\.0*)? per device\s*$"),
        form("Devices: ", r"(?:^|\s)Devices: +(?P<own>.*\b(?P<device_kind>[gc]pu):\d.*?)\s*$"),
        form("Devices: ", r"/job:worker/\S*?task:<task>/"),
        form("Variables: ", r"(?:^|\s)Variables: +(?P<variables>\S.*?)\s*$"),
        form("Sync: ", r"(?:^|\s)Sync: +(?P<asynchronous>False)\s*$"),
    ),
)  # fmt: skip
