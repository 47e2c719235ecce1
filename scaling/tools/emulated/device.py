"""One emulated device as its worker has it, whatever the framework."""

from __future__ import annotations

from scaling.records.point import Point
from scaling.tools.emulated import layers, profiles
from scaling.tools.emulated.timeline import Timeline


class EmulatedDevice:
    """What the profile says of the point's model: `rate` and `spans`, the latter with sizes divided by the point's
    `shrink`; `timeline` is the device's time. UsageError where the profile does not know model or batch."""

    def __init__(self, point: Point) -> None:
        work = point.workload
        self.rate = profiles.rate(point.hardware.profile, work.model, work.batch_size, work.image_size)
        found = layers.of(work.model, work.image_size)
        self.spans = layers.spans(found, self.rate.step_s, point.hardware.shrink)
        self.timeline = Timeline(point.hardware.dilate)
        self.name = f"emulated {profiles.find(point.hardware.profile).device}"


def value(rank: int, step: int) -> float:
    """What all elements of a rank's gradients are in a step: another number in each, and whole, so that sums are
    exact."""
    return 1.0 + (7 * rank + 3 * step) % 31
