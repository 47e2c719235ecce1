"""How the GPUs are set up and fare: whatever makes one slower than its like, or will end a run. Pure.

Numbers are compared with what the GPU itself says it could, or with GPUs of the same name; none is judged alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from scaling.records.gpu_health import GpuHealth
from scaling.tools.check.facts import Facts, Level, RankFacts, Verdict
from scaling.tools.check.verdicts.words import grouped, some


class Seat(NamedTuple):
    """Where a GPU is: its node, and its number there."""

    node: str
    number: int


Gpus = Mapping[Seat, GpuHealth]


class Fault(NamedTuple):
    """What may be wrong with a GPU by itself: `says` gives the words of one that has it, "" for a sound one."""

    level: Level
    text: str
    mend: str
    says: Callable[[GpuHealth], str]


class Like(NamedTuple):
    """What GPUs of one name should have in common; `says` gives a GPU's value, "" where it is not known."""

    what: str
    mend: str
    says: Callable[[GpuHealth], str]


def health(facts: Facts) -> Iterator[Verdict]:
    """A line for each fault and the GPUs that have it, one for each difference, or one that all is well."""
    gpus = {Seat(node, index): gpu for node in facts.nodes for index, gpu in enumerate(_every(facts.of(node)))}
    said = [*_lost(facts), *_faults(gpus), *_differences(gpus)]
    yield from said
    if gpus and not said:
        text = grouped(_places({seat: _summary(gpu) for seat, gpu in gpus.items()}))
        yield Verdict(level="ok", topic="gpu health", text=text)


def _lost(facts: Facts) -> Iterator[Verdict]:
    """GPUs that are there and do not answer, so that nobody else tells of them."""
    found = {
        node: some(dict.fromkeys(each for one in facts.of(node) for each in one.driver.lost))
        for node in facts.nodes
    }
    found = {node: text for node, text in found.items() if text}
    if found:
        yield Verdict(
            level="error",
            topic="gpu health",
            text=f"the driver counts GPUs that do not answer: {grouped(found)}",
            mend="dmesg there shows why (NVRM, Xid 79); reboot the node, and have a GPU replaced that goes again",
        )


def _every(ranks: Iterable[RankFacts]) -> Iterable[GpuHealth]:
    """A node's GPUs as its ranks see them together, those of the rank that sees most of them first."""
    lists = sorted((rank.driver.gpus for rank in ranks), key=len, reverse=True)
    found: dict[str, GpuHealth] = {}
    for gpu in (gpu for gpus in lists for gpu in gpus):
        found.setdefault(gpu.uuid, gpu)
    return found.values()


def _faults(gpus: Gpus) -> Iterator[Verdict]:
    for fault in FAULTS:
        having = {seat: fault.says(gpu) for seat, gpu in gpus.items()}
        having = {seat: words for seat, words in having.items() if words}
        if having:
            text = f"{fault.text}: {grouped(_places(having, within=gpus))}"
            yield Verdict(level=fault.level, topic="gpu health", text=text, mend=fault.mend)


def _differences(gpus: Gpus) -> Iterator[Verdict]:
    for name in dict.fromkeys(gpu.name for gpu in gpus.values()):
        alike = {seat: gpu for seat, gpu in gpus.items() if gpu.name == name}
        for like in ALIKE:
            values = {seat: like.says(gpu) for seat, gpu in alike.items()}
            if len(set(values.values()) - {""}) > 1:
                text = f"GPUs of one kind differ in {like.what}: {grouped(_places(values, within=gpus))}"
                yield Verdict(level="warning", topic="gpu health", text=text, mend=like.mend)


def _places(values: Mapping[Seat, str], within: Gpus | None = None) -> dict[str, str]:
    """The values by place: a node's name where all its GPUs have the same, else `node1 GPU 3`."""
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


# ---------------------------------------------------------------- by itself


def _narrow(gpu: GpuHealth) -> str:
    """Fewer lanes than GPU and slot have: a contact, a riser, a BIOS that shares the slot's."""
    width, most = gpu.pcie_width, gpu.pcie_width_max
    return f"x{width} of x{most}" if width and most and width < most else ""


def _slow_slot(gpu: GpuHealth) -> str:
    slot, own = gpu.pcie_generation_max, gpu.pcie_generation_own
    return f"generation {slot} of {own}" if slot and own and slot < own else ""


def _held_clock(gpu: GpuHealth) -> str:
    now, usual = gpu.application_sm_mhz, gpu.default_sm_mhz
    return f"{now} MHz, by default {usual}" if now and usual and now != usual else ""


def _capped(gpu: GpuHealth) -> str:
    now, usual = gpu.power_limit_w, gpu.default_power_limit_w
    return f"{now:.0f} of {usual:.0f} W" if now and usual and now < usual else ""


def _fabric(gpu: GpuHealth) -> str:
    return gpu.fabric_fault or (gpu.fabric if gpu.fabric == "in progress" else "")


PCIE = "nvidia-smi -q -d PCIE; reseat the card, look at risers and the BIOS's lanes of that slot"
FAULTS = (
    Fault(
        "error",
        "NVLink's fabric is not set up, and CUDA does not start (error 802)",
        "systemctl restart nvidia-fabricmanager, of the driver's very version",
        _fabric,
    ),
    Fault(
        "error",
        "the compute mode forbids all computing",
        "nvidia-smi -c DEFAULT",
        lambda gpu: gpu.compute_mode if gpu.compute_mode == "Prohibited" else "",
    ),
    Fault(
        "error",
        "memory is broken and its repair has failed",
        "nvidia-smi -q -d ROW_REMAPPER; have the GPU replaced",
        lambda gpu: "repair failed" if gpu.is_repair_failed else "",
    ),
    Fault(
        "error",
        "uncorrected memory errors since the driver was loaded",
        "nvidia-smi -q -d ECC; nvidia-smi -r resets the GPU, and its memory is repaired then",
        lambda gpu: str(gpu.uncorrected_errors or ""),
    ),
    Fault(
        "warning",
        "broken memory waits for a reset to be repaired",
        "nvidia-smi -r, with nothing running on the GPU",
        lambda gpu: "repair pending" if gpu.is_repair_pending else "",
    ),
    Fault("warning", "the PCIe link has lost lanes", PCIE, _narrow),
    Fault(
        "warning",
        "the PCIe slot is slower than the GPU",
        f"another slot, or the BIOS's limit of its speed: {PCIE}",
        _slow_slot,
    ),
    Fault(
        "warning",
        "PCIe switches send it up to the root complex to reach GPUs and RDMA cards beside it (ACS)",
        "as root after each boot: setpci -s PORT ECAP_ACS+6.w=0000 for each port; or IO virtualisation off in the "
        "BIOS, where no virtual machine needs it",
        lambda gpu: some(gpu.acs_redirects or ()),
    ),
    Fault(
        "warning",
        "others compute there",
        "end them (nvidia-smi shows them), or take nodes for this job alone (Slurm: --exclusive)",
        lambda gpu: some(gpu.processes),
    ),
    Fault(
        "warning",
        "one process at a time may compute there, and workers of several points wait side by side",
        "nvidia-smi -c DEFAULT",
        lambda gpu: gpu.compute_mode if gpu.compute_mode.startswith("Exclusive") else "",
    ),
    Fault(
        "warning",
        "MIG divides them, and a process can use one part alone",
        "nvidia-smi -mig 0, or a part for each rank by its UUID in CUDA_VISIBLE_DEVICES",
        lambda gpu: "MIG on" if gpu.is_mig else "",
    ),
    Fault("warning", "clocks were set", "nvidia-smi -rac", _held_clock),
    Fault(
        "warning",
        "the power limit is below the default",
        "nvidia-smi -pl WATTS, or say so beside the numbers",
        _capped,
    ),
    Fault(
        "warning",
        "persistence mode is off: the first user of a GPU waits 1 to 3 s for it, and clocks set are forgotten",
        "systemctl enable --now nvidia-persistenced (or nvidia-smi -pm 1)",
        lambda gpu: "off" if gpu.is_persistent is False else "",
    ),
)

# ---------------------------------------------------------------- beside its like


def _width(gpu: GpuHealth) -> str:
    return f"x{gpu.pcie_width_max}" if gpu.pcie_width_max else ""


def _clock(gpu: GpuHealth) -> str:
    return f"{gpu.sm_mhz_max} MHz" if gpu.sm_mhz_max else ""


def _power(gpu: GpuHealth) -> str:
    return f"{gpu.power_limit_w:.0f} W" if gpu.power_limit_w else ""


def _ecc(gpu: GpuHealth) -> str:
    return "" if gpu.is_ecc is None else "on" if gpu.is_ecc else "off"


ALIKE = (
    Like("PCIe lanes", PCIE, _width),
    Like("the highest clock", "nvidia-smi -q -d CLOCK on each; the same VBIOS everywhere", _clock),
    Like("the power limit", "nvidia-smi -pl WATTS, the same everywhere", _power),
    Like("ECC, which costs memory and bandwidth on some", "nvidia-smi -e 1 everywhere, and a reboot", _ecc),
)


def _summary(gpu: GpuHealth) -> str:
    """`compute capability 9.0, PCIe 5 x16, 1980 MHz, 700 W, ECC on, persistence on`: what is known."""
    slot = f"PCIe {gpu.pcie_generation_max or '?'} x{gpu.pcie_width}" if gpu.pcie_width else ""
    capability = f"compute capability {gpu.compute_capability}" if gpu.compute_capability else ""
    ecc = f"ECC {_ecc(gpu)}" if _ecc(gpu) else ""
    persistence = "persistence on" if gpu.is_persistent else ""
    acs = "no ACS redirects" if gpu.acs_redirects == () else ""
    parts = (capability, slot, acs, _clock(gpu), _power(gpu), ecc, persistence)
    return ", ".join(filter(None, parts)) or "NVML tells nothing"
