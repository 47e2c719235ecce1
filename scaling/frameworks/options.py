"""Types of options that several strategies have, and the options of every training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TypeVar

from scaling.frameworks.base import Option, read_own_options
from scaling.records.point import Point
from scaling.workloads import models
from scaling.workloads.layers import BatchNorm

Value = TypeVar("Value")
Bounded = TypeVar("Bounded", int, float)

# Larger values are typing errors. Libraries take 64 bits or fail on every rank with errors of their own.
MOST, MOST_NUMBER = 1 << 40, 1_000_000


def _named(words: str, read: Callable[[str], Value]) -> Callable[[str], Value]:
    read.__name__ = words
    return read


def _within(kind: Callable[[str], Bounded], least: Bounded, most: Bounded, words: str) -> Callable[[str], Bounded]:
    def read(text: str) -> Bounded:
        value = kind(text)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return _named(words, read)


positive_integer = _within(int, 1, MOST, f"integer from 1 to {MOST}")
count_from_0 = _within(int, 0, MOST, f"integer from 0 to {MOST}")
# The smallest is one byte, in MiB.
positive_number = _within(float, 0.000_001, MOST_NUMBER, f"number from 0.000001 to {MOST_NUMBER}")
number_from_0 = _within(float, 0.0, MOST_NUMBER, f"number from 0 to {MOST_NUMBER}")


def one_of(*words: str) -> Callable[[str], str]:
    """Return a reader that accepts these words. It raises ValueError for any other, and is named by its words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return _named(" or ".join(words), read)


LOOP: Mapping[str, Option] = {
    "accumulate": Option(
        type=positive_integer,
        default=1,
        help="micro-batches of a device's batch; gradients are exchanged after the last",
    )
}


def accumulated(point: Point) -> int:
    return int(read_own_options(LOOP, point.options)["accumulate"])


def refuse(point: Point) -> str | None:
    """Return why a training loop cannot run the point, or None. An emulated device does only some. Micro-batches
    must have equal sizes: then the mean of their means is the batch's mean. Batch norm needs more than one value.
    """
    if (why := refuse_emulated(point)) is not None:
        return why
    parts, work = accumulated(point), point.workload
    if parts > 1 and not work.trains:
        return f"--option accumulate={parts}: --pass {work.pass_} needs the whole batch; leave it out"
    if point.workload.batch_size % parts:
        return f"--option accumulate={parts}: does not divide the batch of {point.workload.batch_size} per device"
    return _lone_value(point) if work.batch_size == parts else None


def _lone_value(point: Point) -> str | None:
    """Return why batch norm would see one value per channel: torch refuses that, others return zeros."""
    if point.hardware.device == "emulated":
        return None
    work = point.workload
    lone = (one for one in models.of(work).placed if isinstance(one.layer, BatchNorm) and prod(one.shape[1:]) == 1)
    if (found := next(lone, None)) is None:
        return None
    flag = f"--batch-size {work.batch_size}"
    if work.batch_rule == "strong":
        flag = f"--global-batch-size {point.global_batch_size} at world size {point.world_size}"
    parts = f" --option accumulate={work.batch_size}" if work.batch_size > 1 else ""
    return (
        f"{flag}{parts}: batch norm, layer {found.path} of {work.model}, has one value per sample and channel "
        "and needs 2 samples at once; take a larger batch per device"
    )


def refuse_emulated(point: Point) -> str | None:
    """Return why the point cannot be emulated, naming the flag; None if it can or is not on emulated devices."""
    if point.hardware.device != "emulated":
        return None
    work, parts = point.workload, accumulated(point)
    refused = (
        (f"--precision {work.precision}", work.precision != "fp32", "have the images/s of fp32"),
        (f"--memory-format {work.memory_format}", work.memory_format != "contiguous", "compute nothing"),
        ("--compile", work.compile, "compute nothing"),
        (f"--pass {work.pass_}", not work.trains, "only do whole steps"),
        (f"--option accumulate={parts}", parts != 1, "do not split a batch"),
    )
    return next((f"{flag}: emulated devices {why}; leave it out" for flag, is_set, why in refused if is_set), None)
