"""What an emulated device cannot do."""

from __future__ import annotations

from scaling.frameworks import options
from scaling.records.point import Point


def refuse(point: Point) -> str | None:
    """Return why the point cannot be emulated, naming the flag; None if it can or is not on emulated devices."""
    if point.hardware.device != "emulated":
        return None
    if point.workload.precision != "fp32":
        return f"--precision {point.workload.precision}: emulated devices have the images/s of fp32; leave it out"
    if point.workload.memory_format != "contiguous":
        return f"--memory-format {point.workload.memory_format}: emulated devices compute nothing; leave it out"
    if point.workload.compile:
        return "--compile: emulated devices compute nothing; leave it out"
    if not point.workload.trains:
        return f"--pass {point.workload.pass_}: emulated devices only do whole steps; leave it out"
    if (parts := options.accumulated(point)) != 1:
        return f"--option accumulate={parts}: emulated devices do not split a batch; leave it out"
    return None
