"""Verdicts on device rates: devices that are slower than those of their kind, silent devices, peaks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import floor, log10
from statistics import median_high
from typing import NamedTuple

from scaling.analysis.table.cell_rows import peak_tflops
from scaling.records.device_rates import DeviceRates
from scaling.text import counted
from scaling.tools.check.facts import NAMED, Facts, Verdict, error, grouped, ok, some, warning

TOPIC = "device rates"
LEAST = 0.05  # clocks of sound GPUs of one kind differ by less


class Quantity(NamedTuple):
    """A rate of a device: the field that has it, its name and its unit. `divisor` leads from the field to the unit."""

    field: str
    name: str
    unit: str
    divisor: float
    mend: str


CLOCKS = "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER"
PCIE = "nvidia-smi -q -d PCIE and nvidia-smi topo -m: lost lanes, or a NUMA node far from the rank's cores"
QUANTITIES = (
    Quantity("matrix_flops_per_s", "matrix product", "TFLOP/s", 1e12, CLOCKS),
    Quantity("copy_bytes_per_s", "copy", "GB/s", 1e9, CLOCKS),
    Quantity("to_device_bytes_per_s", "to device", "GB/s", 1e9, PCIE),
    Quantity("from_device_bytes_per_s", "from device", "GB/s", 1e9, PCIE),
    Quantity("samples_per_s", "step", "", 1.0, CLOCKS),
)


class Outlier(NamedTuple):
    """A device that is slow in one respect. `below` is the fraction of `usual` that it lacks, 0.07 for 7 %.

    `usual` is the median of the devices of its kind; of an even number the higher middle one, so of two devices the
    faster one.
    """

    device: DeviceRates
    quantity: Quantity
    rate: float
    usual: float
    below: float


def outliers(rates: Iterable[DeviceRates], least: float = LEAST) -> list[Outlier]:
    """Return rates that are at least this fraction below the median of devices of one kind, the worst first. A
    device may occur several times, once for each quantity."""
    found: list[Outlier] = []
    for like in by_kind(rates):
        for quantity in QUANTITIES:
            known = [(one, rate) for one in like if (rate := rate_of(one, quantity)) is not None]
            if not known:
                continue
            usual = median_high(rate for _, rate in known)
            below = ((one, rate, 1 - rate / usual) for one, rate in known if usual > 0)
            found += [Outlier(one, quantity, rate, usual, lack) for one, rate, lack in below if lack >= least]
    return sorted(found, key=lambda outlier: -outlier.below)


def by_kind(rates: Iterable[DeviceRates]) -> list[list[DeviceRates]]:
    kinds: dict[object, list[DeviceRates]] = {}
    for one in rates:
        kinds.setdefault(one.kind, []).append(one)
    return list(kinds.values())


def rate_of(device: DeviceRates, quantity: Quantity) -> float | None:
    rate: float | None = getattr(device, quantity.field)
    return rate
