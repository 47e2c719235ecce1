"""Verdicts on devices: number, kind, peer access, settings and health of GPUs, and slow or failed devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from math import expm1, log, sqrt
from statistics import fmean, median_high
from typing import NamedTuple, TypeVar

from scaling.analysis.statistics.intervals import quantile
from scaling.analysis.table.cell_rows import peak_tflops
from scaling.records.host import Gpu, GpuHealth
from scaling.records.task import DeviceRates
from scaling.text import counted
from scaling.tools.check.facts import (
    NAMED,
    Facts,
    Level,
    Look,
    Verdict,
    error,
    grouped,
    odd,
    of_nodes,
    ok,
    some,
    usual,
    warning,
)
from scaling.tools.check.verdicts.links import digits

# ---------------------------------------------------------------- gpu health
# Numbers are compared with the GPU's own maximum or default, or with GPUs of the same name.


class Seat(NamedTuple):
    node: str
    number: int

    def look(self, seen: str, expected: str = "") -> Look:
        return Look(self.node, f"GPU {self.number}", seen, expected)


Seats = Mapping[Seat, GpuHealth]
G = TypeVar("G", Gpu, GpuHealth)


class Fault(NamedTuple):
    """A fault of a single GPU. `says` describes it, "" for a healthy GPU."""

    level: Level
    text: str
    mend: str
    says: Callable[[GpuHealth], str]


class Like(NamedTuple):
    """A value that GPUs of one name should share. `says` returns it, "" if unknown."""

    what: str
    mend: str
    says: Callable[[GpuHealth], str]


def health(facts: Facts) -> Iterator[Verdict]:
    every = {node: _distinct([rank.driver.gpus for rank in facts.of(node)]) for node in facts.nodes}
    gpus = {Seat(node, index): gpu for node, own in every.items() for index, gpu in enumerate(own)}
    lost = {
        node: some(dict.fromkeys(one for rank in facts.of(node) for one in rank.driver.lost)) for node in every
    }
    mend = "dmesg there shows why (NVRM, Xid 79); reboot the node; replace a GPU that fails again"
    said = [
        *of_nodes("error", "gpu health", "the driver counts GPUs that do not answer:", lost, mend),
        *_faults(gpus),
        *_differences(gpus),
    ]
    yield from said
    if gpus and not said:
        yield ok("gpu health", grouped(_places({seat: _gpu_summary(gpu) for seat, gpu in gpus.items()})))


def _distinct(lists: Iterable[tuple[G, ...]]) -> tuple[G, ...]:
    """Return the GPUs of a node by UUID, from the lists of its ranks, in the order of the longest list."""
    found: dict[str, G] = {}
    longest_first = sorted(lists, key=len, reverse=True)
    for gpu in chain.from_iterable(longest_first):
        found.setdefault(gpu.uuid, gpu)
    return tuple(found.values())


def _faults(gpus: Seats) -> Iterator[Verdict]:
    for fault in FAULTS:
        says = {seat: fault.says(gpu) for seat, gpu in gpus.items()}
        if having := grouped(_places(says)):
            looks = tuple(seat.look(one) for seat, one in says.items() if one)
            yield Verdict(fault.level, "gpu health", f"{fault.text}: {having}", fault.mend, looks)


def _differences(gpus: Seats) -> Iterator[Verdict]:
    for name in dict.fromkeys(gpu.name for gpu in gpus.values()):
        for like in ALIKE:
            values = {seat: like.says(gpu) for seat, gpu in gpus.items() if gpu.name == name}
            known = {seat: value for seat, value in values.items() if value}
            if len(set(known.values())) > 1:
                most = usual(known.values())
                text = f"GPUs of one kind differ in {like.what}: {grouped(_places(values, within=gpus))}"
                looks = (seat.look(value, most) for seat, value in known.items() if value != most)
                yield warning("gpu health", text, like.mend, looks)


def _places(values: Mapping[Seat, str], within: Seats | None = None) -> dict[str, str]:
    everyone = values if within is None else within
    found: dict[str, str] = {}
    for node in dict.fromkeys(seat.node for seat in values):
        mine = {seat.number: words for seat, words in values.items() if seat.node == node and words}
        whole = len(mine) == sum(seat.node == node for seat in everyone)
        for words in dict.fromkeys(mine.values()):
            numbers = [str(index) for index, other in mine.items() if other == words]
            same = whole and len(numbers) == len(mine)
            found[node if same else f"{node} GPU {some(numbers)}"] = words
    return found


def _short(now: float | None, most: float | None, says: str) -> str:
    return says.format(now, most) if now and most and now < most else ""


def _held_clock(gpu: GpuHealth) -> str:
    now, usual = gpu.application_sm_mhz, gpu.default_sm_mhz
    return f"{now} MHz, by default {usual}" if now and usual and now != usual else ""


PCIE = "nvidia-smi -q -d PCIE; reseat the card, look at risers and the BIOS's lanes of that slot"
FAULTS = (
    Fault("error", "NVLink's fabric is not set up, and CUDA does not start (error 802)",
          "systemctl restart nvidia-fabricmanager; its version must be the driver's",
          lambda gpu: gpu.fabric_fault or (gpu.fabric if gpu.fabric == "in progress" else "")),
    Fault("error", "the compute mode forbids all processes", "nvidia-smi -c DEFAULT",
          lambda gpu: gpu.compute_mode if gpu.compute_mode == "Prohibited" else ""),
    Fault("error", "memory is broken and its repair has failed",
          "nvidia-smi -q -d ROW_REMAPPER; have the GPU replaced",
          lambda gpu: "repair failed" if gpu.is_repair_failed else ""),
    Fault("error", "uncorrected memory errors since the driver was loaded",
          "nvidia-smi -q -d ECC; nvidia-smi -r resets the GPU and repairs its memory",
          lambda gpu: str(gpu.uncorrected_errors or "")),
    Fault("warning", "broken memory is repaired at the next reset",
          "nvidia-smi -r, with nothing running on the GPU",
          lambda gpu: "repair pending" if gpu.is_repair_pending else ""),
    Fault("warning", "the PCIe link has lost lanes", PCIE,
          lambda gpu: _short(gpu.pcie_width, gpu.pcie_width_max, "x{} of x{}")),
    Fault("warning", "the PCIe slot is slower than the GPU",
          f"another slot, or the BIOS's limit of its speed: {PCIE}",
          lambda gpu: _short(gpu.pcie_generation_max, gpu.pcie_generation_own, "generation {} of {}")),
    Fault("warning", "ACS sends its traffic to other GPUs and RDMA cards through the root complex",
          "as root after each boot: setpci -s PORT ECAP_ACS+6.w=0000 for each port; or no IO virtualisation in "
          "the BIOS, if no virtual machine needs it",
          lambda gpu: some(gpu.acs_redirects or ())),
    Fault("warning", "other processes use the GPU",
          "end them (nvidia-smi shows them), or take nodes for this job alone (Slurm: --exclusive)",
          lambda gpu: some(gpu.processes)),
    Fault("warning", "only one process at a time may use the GPU, but workers of several points do",
          "nvidia-smi -c DEFAULT",
          lambda gpu: gpu.compute_mode if gpu.compute_mode.startswith("Exclusive") else ""),
    Fault("warning", "MIG divides the GPU, and a process can use only one part",
          "nvidia-smi -mig 0, or a part for each rank by its UUID in CUDA_VISIBLE_DEVICES",
          lambda gpu: "MIG on" if gpu.is_mig else ""),
    Fault("warning", "clocks differ from the default", "nvidia-smi -rac", _held_clock),
    Fault("warning", "the power limit is below the default",
          "nvidia-smi -pl WATTS, or report the limit with the numbers",
          lambda gpu: _short(gpu.power_limit_w, gpu.default_power_limit_w, "{:.0f} of {:.0f} W")),
    Fault("warning",
          "persistence mode is off: the first process waits 1 to 3 s for the GPU, and clock settings are lost",
          "systemctl enable --now nvidia-persistenced (or nvidia-smi -pm 1)",
          lambda gpu: "off" if gpu.is_persistent is False else ""),
)  # fmt: skip


def _clock(gpu: GpuHealth) -> str:
    return f"{gpu.sm_mhz_max} MHz" if gpu.sm_mhz_max else ""


def _power(gpu: GpuHealth) -> str:
    return f"{gpu.power_limit_w:.0f} W" if gpu.power_limit_w else ""


def _ecc(gpu: GpuHealth) -> str:
    return "" if gpu.is_ecc is None else "on" if gpu.is_ecc else "off"


ALIKE = (
    Like("PCIe lanes", PCIE, lambda gpu: f"x{gpu.pcie_width_max}" if gpu.pcie_width_max else ""),
    Like("the highest clock", "nvidia-smi -q -d CLOCK on each; the same VBIOS everywhere", _clock),
    Like("the power limit", "nvidia-smi -pl WATTS, the same everywhere", _power),
    Like("ECC, which costs memory and bandwidth on some GPUs", "nvidia-smi -e 1 everywhere, and a reboot", _ecc),
)


def _gpu_summary(gpu: GpuHealth) -> str:
    slot = f"PCIe {gpu.pcie_generation_max or '?'} x{gpu.pcie_width}" if gpu.pcie_width else ""
    capability = f"compute capability {gpu.compute_capability}" if gpu.compute_capability else ""
    parts = (
        capability, slot, "no ACS redirects" if gpu.acs_redirects == () else "", _clock(gpu), _power(gpu),
        f"ECC {_ecc(gpu)}" if _ecc(gpu) else "", "persistence on" if gpu.is_persistent else "",
    )  # fmt: skip
    return ", ".join(filter(None, parts)) or "NVML reports nothing"


# ---------------------------------------------------------------- gpus

Gpus = Mapping[str, tuple[Gpu, ...]]  # by node


def gpus(facts: Facts) -> Iterator[Verdict]:
    found = {node: _distinct([rank.host.gpus for rank in facts.of(node)]) for node in facts.nodes}
    drivers = {node: facts.host(node).gpu_driver for node in facts.nodes}
    broken = {node: text for node, text in drivers.items() if text.startswith("unusable")}
    mend = "nvidia-smi on that node shows the cause"
    yield from of_nodes("error", "gpus", "the driver does not work:", broken, mend)
    if any(found.values()):
        yield _alike(found)
        yield from _shared(facts, found)
        yield from _walled(facts, found)
        yield from _peers(found)
    elif not broken:
        yield ok("gpus", "none on any node")


def _alike(found: Gpus) -> Verdict:
    kinds = {node: _kinds(every) for node, every in found.items()}
    if len(set(kinds.values())) == 1:
        text = f"{next(iter(kinds.values()))} on every node"
        if len({gpu.name for every in found.values() for gpu in every}) == 1:
            return ok("gpus", text)
        mend = "CUDA_VISIBLE_DEVICES with GPUs of one kind: all wait for the slowest, the first is the baseline"
        return warning("gpus", f"GPUs of several kinds: {text}", mend)
    text = f"the nodes have different GPUs: {grouped(kinds)}"
    mend = "equal nodes, or a CUDA_VISIBLE_DEVICES that makes them equal"
    level: Level = "warning" if all(found.values()) else "error"
    return Verdict(level, "gpus", text, mend, tuple(odd(kinds, "GPUs")))


def _kinds(every: tuple[Gpu, ...]) -> str:
    names = [gpu.name for gpu in every]
    return " + ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"


def _shared(facts: Facts, found: Gpus) -> Iterator[Verdict]:
    ranks = {node: len(facts.of(node)) for node in found}
    crowded = {
        node: f"{ranks[node]} ranks on {len(every)}"
        for node, every in found.items()
        if 0 < len(every) < ranks[node]
    }
    mend = "one rank per GPU: -np and the hostfile's slots"
    yield from of_nodes("warning", "gpus", "ranks share GPUs:", crowded, mend)
    on: dict[str, list[str]] = {}
    for node, every in found.items():
        for gpu in every:
            on.setdefault(gpu.uuid, []).append(node)
    if same := dict.fromkeys(some(nodes) for uuid, nodes in on.items() if uuid and len(nodes) > 1):
        text = f"nodes share GPUs, so rows on them are OVERSUBSCRIBED: {'; '.join(same)}"
        mend = "give each node or container GPUs of its own, or measure on one of them"
        yield warning("gpus", text, mend)


def _walled(facts: Facts, found: Gpus) -> Iterator[Verdict]:
    """A batch system shows each rank only its own GPU. Peer access between processes needs both (NVIDIA/nccl issue
    1066, open-mpi/ompi issue 11949)."""
    walled = {
        node: f"{len(facts.of(node))} ranks"
        for node, every in found.items()
        if len(facts.of(node)) > 1 and all(0 < rank.driver.reachable < len(every) for rank in facts.of(node))
    }
    text = "each rank reaches only its own GPU, so NCCL fails or copies through host memory:"
    mend = "Slurm: --gpus-per-node N with --gpu-bind=none, not --gpus-per-task (cgroups hide the others)"
    yield from of_nodes("warning", "gpus", text, walled, mend)


def _peers(found: Gpus) -> Iterator[Verdict]:
    """Unknown if no rank sees several GPUs. GeForce cards without NVLink have no peer access by design."""
    several = {node: every for node, every in found.items() if len(every) > 1 and len(every[0].p2p) == len(every)}
    apart = {node: strangers for node, every in several.items() if (strangers := some(_strangers(every)))}
    if apart and all("GeForce" in gpu.name for node in apart for gpu in several[node]):
        text = "GeForce cards have no peer access by design: NCCL copies through host memory"
        yield ok("gpu topology", text)
    elif apart:
        text = "no peer access, so NCCL copies through host memory: GPUs"
        mend = "nvidia-smi topo -m shows the wiring; turn PCIe ACS and the IOMMU off for peer access"
        yield from of_nodes("warning", "gpu topology", text, apart, mend)
    elif several:
        links = sorted({link for every in several.values() for gpu in every for link in gpu.links} - {"self"})
        text = f"every GPU reaches every other one of its node ({', '.join(links)})"
        yield ok("gpu topology", text)


def _strangers(every: tuple[Gpu, ...]) -> list[str]:
    pairs = combinations(range(len(every)), 2)
    return [f"{a}-{b} ({every[a].links[b]})" for a, b in pairs if not every[a].p2p[b]]


# ---------------------------------------------------------------- device rates
#
# Devices that are slow among their kind, that failed, and the vendor's peak.

TOPIC = "device rates"
LEAST = 0.05
# A healthy device is named in this share of checks, over all devices of its kind and all quantities.
ERROR = 0.01
# Standard deviation of healthy devices of one kind, as a fraction, and the weight of this assumption in degrees of
# freedom. GPUs of one kind vary by 8 % on average, 22 % at most (arXiv:2208.11035). The spread of all quantities
# together has a weight for the spread of each.
PRIOR_SD, PRIOR_DF, TOGETHER_DF = 0.024, 3.0, 6.0


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

    def text(self, rate: float) -> str:
        return f"{self.name} {self.digits(rate)} {self.unit}"


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
    devices the faster one. `spread`: see `spreads`.
    """

    device: DeviceRates
    quantity: Quantity
    rate: float
    usual: float
    among: int
    below: float
    spread: float


def outliers(rates: Iterable[DeviceRates]) -> list[Outlier]:
    """Return the rates that are LEAST or more below the median of devices of one kind, and further than healthy
    devices differ, the worst first. A device occurs once for each quantity in which it is slow."""
    slow = [one for one in below_median(rates) if one.below >= -expm1(-one.spread)]
    return sorted(slow, key=lambda outlier: outlier.below, reverse=True)


def below_median(rates: Iterable[DeviceRates]) -> list[Outlier]:
    """Return the rates that are LEAST or more below the median of devices of one kind."""
    found = []
    for like in by_kind(rates):
        for quantity, spread in spreads(like).items():
            known = [(one, rate) for one in like if (rate := quantity.of(one))]
            usual = median_high([rate for _, rate in known])
            every = (
                Outlier(one, quantity, rate, usual, len(known), 1 - rate / usual, spread) for one, rate in known
            )
            found += [outlier for outlier in every if outlier.below >= LEAST]
    return found


def spreads(like: Sequence[DeviceRates]) -> dict[Quantity, float]:
    """Return how far below the median a healthy device may be, a difference of logarithms, by measured quantity.

    The variance is that of the devices above the median, which slow ones do not widen, moderated by that of all
    quantities (Smyth 2004), which PRIOR_SD moderates. The quantile is Student's, by Bonferroni over quantities and
    the devices that have a rate.
    """
    known = {quantity: sorted(rate for one in like if (rate := quantity.of(one))) for quantity in QUANTITIES}
    squares: dict[Quantity, list[float]] = {
        quantity: [log(rate / median_high(rates)) ** 2 for rate in rates[len(rates) // 2 + 1 :]]
        for quantity, rates in known.items()
        if rates
    }
    every = list(chain.from_iterable(squares.values()))
    together = (PRIOR_DF * PRIOR_SD**2 + sum(every) / 2) / (PRIOR_DF + len(every) / 2)
    found = {}
    for quantity, own in squares.items():
        count, df = len(known[quantity]), TOGETHER_DF + len(own) / 2
        variance = max((TOGETHER_DF * together + sum(own) / 2) / df, fmean(own or [0.0]))
        of_two = 2 if count == 2 else 1
        found[quantity] = quantile(df, 1 - 2 * ERROR / (count * len(squares))) * sqrt(of_two * variance)
    return found


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
    if failed := grouped({f"{one.place} of rank {one.launch_rank}": one.error for one in rates}):
        mend = "nvidia-smi and dmesg there, memory and load of the node; a sweep would fail too"
        looks = (Look(one.host, _part(one), one.error, "") for one in rates if one.error)
        yield error(TOPIC, f"a device alone fails: {failed}", mend, looks)
    slow = list(_slow(outliers(rates)))
    yield from slow
    if not failed and not slow and (kinds := by_kind(rates)):
        said = list(map(_summary, kinds))
        if lowest := max(below_median(rates), key=lambda outlier: outlier.below, default=None):
            limit = f"healthy devices differ by up to {-100 * expm1(-lowest.spread):.0f} %"
            said.append(f"lowest: {lowest.device.place}: {_lack(lowest)} ({limit})")
        yield ok(TOPIC, "; ".join(said))


def _slow(found: Iterable[Outlier]) -> Iterator[Verdict]:
    by_device: dict[int, list[Outlier]] = {}
    for outlier in found:
        by_device.setdefault(outlier.device.launch_rank, []).append(outlier)
    every = list(by_device.values())
    for mine in every[:NAMED]:
        text = f"{mine[0].device.place}: {'; '.join(map(_lack, mine))}"
        yield warning(TOPIC, text, _mend(mine), map(_look, mine))
    if rest := every[NAMED:]:
        text = f"{counted(len(rest), 'more device')} at least {100 * LEAST:.0f} % slow: "
        text += some(mine[0].device.place for mine in rest)
        yield warning(TOPIC, text, _mend(rest[0]), map(_look, chain.from_iterable(rest)))


def _look(outlier: Outlier) -> Look:
    seen, expected = map(outlier.quantity.text, (outlier.rate, outlier.usual))
    return Look(outlier.device.host, _part(outlier.device), seen, expected)


def _part(device: DeviceRates) -> str:
    return device.place.removeprefix(f"{device.host} ")


def _lack(outlier: Outlier) -> str:
    usual = _share_of_peak(outlier.device, outlier.quantity, outlier.usual)
    like = "the other one's" if outlier.among == 2 else f"the median of {outlier.among}"
    below = f"{100 * outlier.below:.1f} % below {like}"
    return f"{outlier.quantity.text(outlier.rate)}, {below}, {usual.removeprefix(f'{outlier.quantity.name} ')}"


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
            said.append(_share_of_peak(first, quantity, median_high(known)))
    each = f" ({counted(len(first.cpus), 'CPU')} each)" if first.cpus else ""
    return f"{len(like)} x {first.name}{each}: {', '.join(said)}"


def _share_of_peak(device: DeviceRates, quantity: Quantity, rate: float) -> str:
    """Format a rate; of a matrix product also its share of the vendor's peak, if that is known."""
    precision = device.work.precision if device.work else "fp32"
    peak = peak_tflops(device.name, precision) if quantity is MATRIX else None
    share = f" ({100 * rate / quantity.size / peak:.0f} % of {peak:g} {quantity.unit})" if peak else ""
    return quantity.text(rate) + share
