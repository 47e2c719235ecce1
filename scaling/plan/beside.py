"""The CPU beside GPUs: the plain loops on all cores of the first host, with which GPUs are compared. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import UsageError
from scaling.plan.config import SweepConfig
from scaling.plan.placement import Slot, first_slots, whole_cpu
from scaling.records.point import Device, Hardware, Placement, Point, Workload


def check(config: SweepConfig, device: Device) -> None:
    """Refuse a CPU beside anything but GPUs, and frameworks that have none."""
    if config.baseline_device is None:
        return
    if device != "cuda":
        raise UsageError(
            f"--baseline-device {config.baseline_device}: stands beside rows of GPUs, this launch measures on "
            f"{device}; leave it out"
        )
    for name in config.strategy or ():
        plain = frameworks.load(name).baseline
        if "cpu" not in frameworks.load(plain).devices(plain):
            raise UsageError(
                f"--baseline-device {config.baseline_device}: {plain} does not run on cpu; leave it out"
            )


def baseline(
    name: str, work: Workload, options: dict[str, str], placement: Placement, slots: Sequence[Slot]
) -> Point:
    """The plain loop of a strategy's framework on a whole CPU, at the batch of one GPU.

    In fp32 and the frameworks' own memory format, as it is trained with on CPUs, whatever GPUs compute in.
    """
    (first,) = first_slots(1, placement, slots)
    return Point(
        strategy=frameworks.load(name).baseline,
        kind="solo",
        world_size=1,
        round=0,
        workload=replace(work, precision="fp32", memory_format="contiguous"),
        hardware=Hardware(device="cpu", cores=whole_cpu(first, slots).threads),
        placement=placement,
        options=options,
    )
