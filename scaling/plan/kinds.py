"""Which kinds of points a round has. Pure."""

from __future__ import annotations

from scaling.errors import UsageError
from scaling.plan.config import SweepConfig
from scaling.records.point import Device, Kind
from scaling.workloads import data

USUAL: tuple[Kind, ...] = ("exchange", "solo", "each", "together", "comm")
# They tell what is lost to waiting for data: what feeds by itself, and plain loops that need not be fed.
OF_DATA: tuple[Kind, ...] = ("feed", "held")


def of(config: SweepConfig, device: Device, name: str) -> tuple[Kind, ...]:
    """Those that are given; else the usual ones, with those of the data where it is decoded from files.

    Raises UsageError where the data's are given and nobody waits for data.
    """
    given, found = config.kinds, data.spec(name)
    if given is None:
        return (*USUAL, *OF_DATA) if found.format in data.DECODED and device != "emulated" else USUAL
    for kind in (kind for kind in OF_DATA if kind in given):
        if device == "emulated":
            raise UsageError(f"--kinds {kind}: emulated devices are not fed; leave it out")
        if found.format == "made":
            raise UsageError(
                f"--kinds {kind}: {name} is one batch that stays on the device, so that nobody waits for data; "
                "leave it out, or choose --data that is read"
            )
    return given
