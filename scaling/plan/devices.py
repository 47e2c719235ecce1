"""Which kind of device a sweep runs on, and whether each rank of the launch has one of its own. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from scaling.errors import UsageError
from scaling.plan.config import SweepConfig
from scaling.plan.placement import Slot
from scaling.records.messages import Enrol
from scaling.records.point import Device
from scaling.text import counted, several
from scaling.tools.emulated import profiles


def choose(config: SweepConfig, slots: Sequence[Slot], enrolled: Sequence[Enrol]) -> tuple[Device, str]:
    """The device, and for people why it is that one. UsageError where ranks have none of what is asked for, or
    where only some of them have GPUs and nothing is asked for: a slow sweep on CPUs is no answer to a driver that
    broke."""
    if profiles.name_of(config.device):
        return "emulated", f"--device {config.device}"
    if config.device == "cpu":
        return "cpu", "--device cpu"
    bare = {slot.host: enrolled[slot.launch_rank] for slot in slots if not slot.gpu}
    if not bare:
        return "cuda", "; ".join(("every host has GPUs", *_doubts(slots, enrolled)))
    without = f"{several(list(bare))} {'has' if len(bare) == 1 else 'have'} no NVIDIA GPU{_because(bare.values())}"
    if config.device == "cuda":
        raise UsageError(f"--device cuda: {without}; use --device cpu")
    if len(bare) < len({slot.host for slot in slots}) or any(slot.gpu for slot in slots):
        rest = [slot.host for slot in slots if slot.gpu]
        raise UsageError(
            f"--device auto: {without}, {several(list(dict.fromkeys(rest)))} {_has(rest)} one per rank; see what "
            f"nvidia-smi says on {next(iter(bare))}, leave it out, or use --device cpu"
        )
    return "cpu", f"no NVIDIA GPU on {next(iter(bare))}{_because(bare.values())}"


def check_own(slots: Sequence[Slot]) -> None:
    """Raises UsageError where two ranks would share a GPU."""
    owner: dict[tuple[str, str], Slot] = {}
    for slot in slots:
        other = owner.setdefault((slot.host, slot.gpu), slot)
        if other is not slot:
            raise UsageError(
                f"ranks {other.launch_rank} and {slot.launch_rank} on {slot.host} would share GPU {slot.gpu}; "
                "start no more ranks there than it has GPUs, or use --device cpu"
            )


def _has(hosts: Iterable[str]) -> str:
    return "has" if len(set(hosts)) == 1 else "have"


def _because(enrolled: Iterable[Enrol]) -> str:
    """What NVML says there, and what else is known; nothing where no driver is installed."""
    said = dict.fromkeys(_state(enrol) for enrol in enrolled)
    return f" ({'; '.join(said)})" if any(said) else ""


def _state(enrol: Enrol) -> str:
    driver, others = enrol.host.gpu_driver, enrol.host.unsupported_gpus
    if driver and not driver.startswith("unusable"):
        driver = f"driver {driver} shows none: see CUDA_VISIBLE_DEVICES and what the batch system granted"
    elif driver:
        driver = f"NVML is {driver}"
    return "; ".join(filter(None, (driver, others)))


def _doubts(slots: Sequence[Slot], enrolled: Sequence[Enrol]) -> Iterator[str]:
    """What is worth knowing of the ranks' GPUs before anything is measured on them."""
    kinds = Counter(
        gpu.name for slot in slots for gpu in enrolled[slot.launch_rank].host.gpus if gpu.uuid == slot.gpu
    )
    if len(kinds) > 1:
        listed = ", ".join(f"{count} x {name}" for name, count in kinds.items())
        yield f"they differ ({listed}), and so do the ranks that share the work"
    gpus: dict[str, set[str]] = {}
    on_gpu: dict[str, dict[str, None]] = {}
    for slot in slots:
        gpus.setdefault(slot.host, set()).add(slot.whole_gpu)
        on_gpu.setdefault(slot.gpu, {})[slot.host] = None
    shared = dict.fromkeys(several(list(hosts)) for hosts in on_gpu.values() if len(hosts) > 1)
    for hosts in shared:
        yield f"{hosts} share a GPU: points on more than one of them are OVERSUBSCRIBED"
    alone = [
        host
        for host, owned in gpus.items()
        if len(owned) > 1
        and all(enrol.host.reachable_gpus == 1 for enrol in enrolled if enrol.host.hostname == host)
    ]
    if alone:
        # https://github.com/NVIDIA/nccl/issues/1066, https://github.com/open-mpi/ompi/issues/11949
        yield (
            f"each rank on {several(alone)} may open one GPU alone, which can keep NCCL and MPI from copying "
            "between GPUs directly: with Slurm, --gpu-bind=none and no --gpus-per-task"
        )
    slices = [slot for slot in slots if slot.whole_gpu != slot.gpu]
    if slices:
        yield f"{counted(len(slices), 'rank')} on slices of GPUs (MIG), each shown its own alone"
