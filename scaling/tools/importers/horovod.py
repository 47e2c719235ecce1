"""Horovod's synthetic benchmarks (its examples/) and programs with the same output.

Only rank 0 prints. The total is its rate times the number of ranks. ` +-` is the spread of windows within one
launch, so it gives no interval. The Keras variant prints its warm-up as `Iter #0`.
"""

from __future__ import annotations

from scaling.tools.importers.engine import Grammar, Launch, Unfinished, Value, form
from scaling.tools.importers.logs import Refused

_LACKS = "has no whole line `Total img/sec on N GPU(s): ... +-...`: it was broken off"
_OF_ALL = "the total is rank 0's rate times the number of ranks"
_OF_ONE = "one rank of PyTorch's example runs without Horovod's hooks: its rate flatters one device"
# rounding to one decimal; a larger relative difference is a contradiction
_ROUNDING, _APART = 0.06, 0.01


def _total(launch: Launch) -> Value:
    if not launch.rates.get("total"):
        raise Unfinished(_LACKS)
    return launch.middle("total", _APART), (_OF_ALL if launch.devices > 1 else _OF_ONE,)


def _agrees(launch: Launch, total: float) -> None:
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


TOOL = Grammar(
    name="horovod",
    marks=("mg/sec",),
    sure=r"Total img/sec on \d+ \w+\(s\)|Img/sec per \w+: ?\d|Iter #\d+: \S+ img/sec per ",
    unit="images",
    lacks=_LACKS,
    value=_total,
    checks=(_agrees,),
    lines=(
        form("Total", r"Total img/sec on <world_size> (?P<device_kind>\w+)\(s\): *<total> *\+- *\d"),
        form("Img/sec per", r"Img/sec per \w+: *<device_rate> *\+- *\d"),
        form("Iter #", r"Iter #<step>: *<rate> *img/sec per \w"),
        form("Model: ", r"(?:^|[\s:])Model: *<model>\s*$", begins=True),
        form("Batch size: ", r"(?:^|[\s:])Batch size: *<batch_size>\s*$", begins=True),
        form("Number of ", r"(?:^|[\s:])Number of \w+: *<world_size>\s*$", begins=True),
    ),
)
