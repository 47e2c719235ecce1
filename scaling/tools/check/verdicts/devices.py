"""Verdicts on device rates: devices that are slow among their kind, that failed, and the vendor's peak."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median_high
from typing import NamedTuple

from scaling.analysis.table.cell_rows import peak_tflops
from scaling.records.task import DeviceRates
from scaling.text import counted
from scaling.tools.check.facts import NAMED, Facts, Verdict, error, grouped, ok, some, warning
from scaling.tools.check.verdicts.links import digits

TOPIC = "device rates"
LEAST = 0.05


class Quantity(NamedTuple):
    """A rate of a device: its field, its name, a short name for columns, its unit and the size of that unit."""

    field: str
    name: str
    column: str
    unit: str
    size: float

    def of(self, device: DeviceRates) -> float | None:
        rate: float | None = getattr(device, self.field)
        return rate

    def digits(self, rate: float) -> str:
        """Format a rate in the quantity's unit, without the unit."""
        return digits(rate / self.size)


MATRIX = Quantity("matrix_flops_per_s", "matrix product", "matrix", "TFLOP/s", 1e12)
TRANSFERS = (
    Quantity("to_device_bytes_per_s", "copy to the device", "to", "GB/s", 1e9),
    Quantity("from_device_bytes_per_s", "copy from the device", "from", "GB/s", 1e9),
)
QUANTITIES = (
    MATRIX,
    Quantity("copy_bytes_per_s", "copy", "copy", "GB/s", 1e9),
    *TRANSFERS,
    Quantity("samples_per_s", "training step", "step", "samples/s", 1.0),
)


class Outlier(NamedTuple):
    """A device that is slow in one respect. `below`: the fraction of `usual` that it lacks, 0.07 for 7 %.

    `usual` is the median of the `among` devices of its kind; of an even number the higher middle one, so of two
    devices the faster one.
    """

    device: DeviceRates
    quantity: Quantity
    rate: float
    usual: float
    among: int
    below: float


def outliers(rates: Iterable[DeviceRates], least: float = LEAST) -> list[Outlier]:
    """Return the rates that are at least this fraction below the median of devices of one kind, the worst first. A
    device occurs once for each quantity in which it is slow."""
    found = [outlier for like in by_kind(rates) for quantity in QUANTITIES for outlier in _below(like, quantity)]
    slow = [outlier for outlier in found if outlier.below >= least]
    return sorted(slow, key=lambda outlier: outlier.below, reverse=True)


def _below(like: Sequence[DeviceRates], quantity: Quantity) -> Iterator[Outlier]:
    known = [(one, rate) for one in like if (rate := quantity.of(one))]
    usual = median_high([rate for _, rate in known] or [0.0])
    for one, rate in known:
        yield Outlier(one, quantity, rate, usual, len(known), below=1 - rate / usual)


def by_kind(rates: Iterable[DeviceRates]) -> list[list[DeviceRates]]:
    """Group devices whose rates are comparable; devices that were left out have none."""
    kinds: dict[object, list[DeviceRates]] = {}
    for one in rates:
        if not one.left_out:
            kinds.setdefault(one.kind, []).append(one)
    return list(kinds.values())


# ---------------------------------------------------------------- verdicts


def device_rates(facts: Facts) -> Iterator[Verdict]:
    rates = facts.device_rates
    if left_out := grouped({one.host: one.left_out for one in rates}):
        yield ok(TOPIC, f"not measured: {left_out}")
    failed = grouped({f"{one.place} of rank {one.launch_rank}": one.error for one in rates})
    if failed:
        mend = "nvidia-smi and dmesg there, memory and load of the node; a sweep would fail too"
        yield error(TOPIC, f"a device alone fails: {failed}", mend)
    slow = list(_slow(outliers(rates)))
    yield from slow
    if not failed and not slow and (kinds := by_kind(rates)):
        yield ok(TOPIC, "; ".join(map(_summary, kinds)))


def _slow(found: Iterable[Outlier]) -> Iterator[Verdict]:
    by_device: dict[int, list[Outlier]] = {}
    for outlier in found:
        by_device.setdefault(outlier.device.launch_rank, []).append(outlier)
    every = list(by_device.values())
    for mine in every[:NAMED]:
        yield warning(TOPIC, f"{mine[0].device.place}: {'; '.join(map(_lack, mine))}", _mend(mine))
    if more := [mine[0].device.place for mine in every[NAMED:]]:
        text = f"{counted(len(more), 'more device')} at least {LEAST:.0%} slow: {some(more)}"
        yield warning(TOPIC, text.replace("%", " %"), _mend(every[NAMED]))


def _lack(outlier: Outlier) -> str:
    rate = f"{outlier.quantity.digits(outlier.rate)} {outlier.quantity.unit}"
    usual = _rate(outlier.device, outlier.quantity, outlier.usual)
    like = "the other one's" if outlier.among == 2 else f"the median of {outlier.among}"
    return f"{outlier.quantity.name} {rate}, {100 * outlier.below:.1f} % below {like}, {usual}"


def _mend(mine: Sequence[Outlier]) -> str:
    device = mine[0].device
    if device.device != "cuda":
        return f"on {device.host}: load, clock (cpupower frequency-info) and quota of these CPUs; then check again"
    ask = f"on {device.host}: nvidia-smi -i {device.index} -q -d"
    if all(outlier.quantity in TRANSFERS for outlier in mine):
        return f"{ask} PCIE shows lost lanes; nvidia-smi topo -m shows whether the rank's cores are near"
    return f"{ask} PERFORMANCE,CLOCK,TEMPERATURE,POWER shows what slows it; leave it out, or have it replaced"


def _summary(like: Sequence[DeviceRates]) -> str:
    first, said = like[0], []
    for quantity in QUANTITIES:
        if known := [rate for one in like if (rate := quantity.of(one)) is not None]:
            said.append(f"{quantity.name} {_rate(first, quantity, median_high(known))}")
    each = f" ({counted(len(first.cpus), 'CPU')} each)" if first.cpus else ""
    return f"{len(like)} x {first.name}{each}: {', '.join(said)}"


def _rate(device: DeviceRates, quantity: Quantity, rate: float) -> str:
    """Format a rate; of a matrix product also its share of the vendor's peak, if that is known."""
    text = f"{quantity.digits(rate)} {quantity.unit}"
    precision = device.work.precision if device.work else "fp32"
    peak = peak_tflops(device.name, precision) if quantity is MATRIX else None
    return f"{text} ({100 * rate / quantity.size / peak:.0f} % of {peak:g} {quantity.unit})" if peak else text
