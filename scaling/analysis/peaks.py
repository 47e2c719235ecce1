"""How many floating-point operations a device did, and its published peak. Pure but for reading peaks.toml.

Operations are counted from the layers of the network (Ready.operations_per_sample), never 6 x parameters. MFU,
model FLOPs utilisation, is what the model needs over what the device could do (Chowdhery 2022, appendix B): what
is computed again or left out is not counted.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import msgspec

from scaling.records.point import Precision, Record

FILE = Path(__file__).with_name("peaks.toml")
# What may follow a name without making it another: `-SXM4-80GB`, ` 80GB HBM3`, ` 144G HBM3e`, `-PCIE-16GB`.
_SAME = re.compile(r"(?:[ -](?:SXM\d?|PCIe|\d+GB?|HBM\d\w?))*", re.IGNORECASE)


class Peak(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device's dense peaks in TFLOP/s by precision, the names that drivers give it, and who publishes them."""

    names: tuple[str, ...]
    peaks: dict[Precision, float]
    source: str


class _File(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    device: tuple[Peak, ...]


@lru_cache(maxsize=1)
def read() -> tuple[Peak, ...]:
    """All devices whose peaks are known."""
    return msgspec.toml.decode(FILE.read_bytes(), type=_File).device


def find(device_name: str) -> Peak | None:
    """The entry of a device by its driver's name, `NVIDIA A100-SXM4-80GB`; None for one that is not known."""
    return next((one for one in read() if any(_is(device_name, name) for name in one.names)), None)


def tflops(device_name: str, precision: Precision) -> float | None:
    """A device's dense peak; None where it is not known."""
    found = find(device_name)
    return found.peaks.get(precision) if found else None


def _is(device_name: str, name: str) -> bool:
    """Whole, or up to its memory and form factor: `NVIDIA L4` is no `NVIDIA L40S`, and neither a `Ti`, a laptop's
    GPU nor a slice (`NVIDIA A100-SXM4-40GB MIG 1g.5gb`) has the peak of the card that it is named after."""
    return device_name.startswith(name) and _SAME.fullmatch(device_name.removeprefix(name)) is not None
