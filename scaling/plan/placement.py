"""Place ranks: each rank's host, CPUs and GPU, and the ranks of a point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.hosts.info import cores_of, granted_cpus, ids_of, pick_cpus
from scaling.records.host import HostInfo
from scaling.records.messages import Enrol
from scaling.records.point import Device, Placement, Point, Record
from scaling.text import counted

# The hardware threads of a core.
Core = tuple[int, ...]


class Slot(Record, frozen=True, kw_only=True):
    """A rank of the launch with its host, CPUs and GPU.

    `machine`: equal for hosts on the same cores (containers, nodes of a lab).
    `device_index`: counts the GPUs that this rank's agent sees; `visible_gpus` are their UUIDs.
    `gpu`: the UUID of its GPU, "" without one; `whole_gpu`: the GPU of which it is a slice (MIG), else the same.
    `shown_gpu`: the only GPU that its worker sees; "" if it sees all.
    `near`: its own CPUs near its GPU, `near_cores` the number of their cores; empty if unknown.
    `owns_machine`: whether no other host of the launch has the same kernel.
    `cpu_quotas`: the CPUs that each of its cgroups grants.
    """

    launch_rank: int
    host: str
    local_rank: int
    cpus: tuple[int, ...]
    threads: int
    machine: str = ""
    device_index: int = 0
    gpu: str = ""
    whole_gpu: str = ""
    visible_gpus: tuple[str, ...] = ()
    shown_gpu: str = ""
    near: tuple[int, ...] = ()
    near_cores: int = 0
    owns_machine: bool = False
    cpu_quotas: Mapping[str, float] = {}

    def cpus_on(self, device: Device) -> tuple[int, ...]:
        """Return the CPUs to which its worker is pinned; empty if it is not pinned."""
        return {"cpu": self.cpus, "cuda": self.near, "emulated": ()}[device]

    def threads_on(self, device: Device) -> int:
        """Return the number of threads of its worker, on GPUs at most the cores near the GPU."""
        return min(self.threads, self.near_cores) if device == "cuda" and self.near else self.threads


def place_ranks(enrolled: Sequence[Enrol], cpus_per_rank: int | None) -> tuple[Slot, ...]:
    """Give every rank its slot; `enrolled[r]` is the message of rank r.
    Each rank of a machine has the same number of cores, at most its share of a CPU quota. Raises UsageError if
    --cpus-per-rank is too large."""
    hosts = [enrol.host for enrol in enrolled]
    ranks_of = _by_machine(hosts)
    cores_by = {machine: cores_of(hosts[rank] for rank in ranks) for machine, ranks in ranks_of.items()}
    granted = min(granted_cpus(hosts[rank] for rank in ranks) for ranks in ranks_of.values())
    fewest = min(len(cores_by[machine]) // len(ranks) for machine, ranks in ranks_of.items())
    per_rank = cpus_per_rank or max(1, int(min(fewest, granted)))
    names_of: dict[str, set[str]] = {}
    for host in hosts:
        names_of.setdefault(host.boot_id, set()).add(host.hostname)
    slots: list[Slot] = []
    local_ranks: Counter[str] = Counter()
    for machine, ranks in ranks_of.items():
        cores = cores_by[machine]
        name = ", ".join(dict.fromkeys(hosts[rank].hostname for rank in ranks))
        if cpus_per_rank and cpus_per_rank > 1 and cpus_per_rank * len(ranks) > len(cores):
            raise UsageError(
                f"--cpus-per-rank {cpus_per_rank}: {len(ranks)} ranks on {name} would need "
                f"{cpus_per_rank * len(ranks)} cores, {_available(cores, [hosts[rank] for rank in ranks])}; "
                f"at most {max(1, len(cores) // len(ranks))} fit"
            )
        for index, rank in enumerate(ranks):
            host, local = hosts[rank], local_ranks[hosts[rank].hostname]
            local_ranks[host.hostname] += 1
            cpus = pick_cpus(cores, local_rank=index, per_rank=per_rank)
            is_owner = bool(host.boot_id) and len(names_of[host.boot_id]) == 1
            slot = Slot(
                launch_rank=rank, host=host.hostname, local_rank=local, cpus=cpus, threads=per_rank,
                machine=machine, cpu_quotas=host.cpu_quotas, owns_machine=is_owner, **_gpu_of(host, local),
            )  # fmt: skip
            slots.append(slot)
    return near_gpus(sorted(slots, key=lambda slot: slot.launch_rank), hosts, cpus_per_rank)


def _available(cores: Sequence[Core], hosts: Iterable[HostInfo]) -> str:
    whole = max(host.launcher_cores for host in hosts)
    if whole <= len(cores):
        return f"it has {len(cores)}"
    return (
        f"the launcher bound them to {len(cores)} of {whole} (unbind them: mpirun --bind-to none, "
        "srun --cpu-bind=none, or start by ./launch/mpirun)"
    )


def _by_machine(hosts: Sequence[HostInfo]) -> dict[str, list[int]]:
    """Group ranks by machine: hosts on one kernel with common cores; not containers with disjoint cpusets."""
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host.hostname, []).append(rank)
    machines: list[tuple[str, set[int], list[int]]] = []
    for ranks in by_host.values():
        boot_id, ids = hosts[ranks[0]].boot_id, {name for rank in ranks for name in ids_of(hosts[rank])}
        shared = [one for one in machines if boot_id and one[0] == boot_id and one[1] & ids]
        machines = [one for one in machines if one not in shared]
        ids = ids.union(*(others for _, others, _ in shared))
        machines.append((boot_id, ids, [*(rank for _, _, earlier in shared for rank in earlier), *ranks]))
    by_rank = sorted(machines, key=lambda one: min(one[2]))
    return {
        f"{boot_id} {sorted(ids)}" if boot_id else hosts[ranks[0]].hostname: ranks
        for boot_id, ids, ranks in by_rank
    }


def _gpu_of(host: HostInfo, local: int) -> dict[str, Any]:
    """Return the fields of a slot's GPU; none without one."""
    if not host.gpus:
        return {}
    index = local % len(host.gpus)
    gpu, is_sliced = host.gpus[index], any(each.parent for each in host.gpus)
    return {
        "device_index": 0 if is_sliced else index,
        "gpu": gpu.uuid,
        "whole_gpu": gpu.whole,
        "visible_gpus": tuple(each.uuid for each in host.gpus),
        "shown_gpu": gpu.uuid if is_sliced else "",
    }


def near_gpus(
    slots: Sequence[Slot], hosts: Sequence[HostInfo], cpus_per_rank: int | None = None
) -> tuple[Slot, ...]:
    """Divide the cores of each NUMA node among the ranks whose GPUs are on it; more ranks than cores share them.
    If the near cores of one rank are unknown, no rank of its machine is pinned."""
    # The ranks' answers are joined: each reports only cores that it may use.
    found: dict[tuple[str, str], set[Core]] = {}
    for slot in slots:
        for gpu in hosts[slot.launch_rank].gpus:
            found.setdefault((slot.machine, gpu.uuid), set()).update(gpu.cores)
    near = {key: tuple(sorted(cores)) for key, cores in found.items()}
    floating = {slot.machine for slot in slots if not near.get((slot.machine, slot.gpu))}
    sharing: dict[tuple[str, tuple[Core, ...]], list[Slot]] = {}
    for slot in slots:
        cores = () if slot.machine in floating else near[slot.machine, slot.gpu]
        sharing.setdefault((slot.machine, cores), []).append(slot)
    placed: list[Slot] = []
    for (_, cores), ranks in sharing.items():
        count = min(len(cores) // len(ranks), cpus_per_rank or len(cores))
        for index, slot in enumerate(ranks):
            own = cores[index * count : (index + 1) * count] or cores
            cpus = tuple(dict.fromkeys(cpu for core in own for cpu in core))
            placed.append(replace(slot, near=cpus, near_cores=len(own)))
    return tuple(sorted(placed, key=lambda slot: slot.launch_rank))


def slots_of(point: Point, slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """Return the slots of a point, rank by rank. A point on a whole CPU has all CPUs of its host."""
    if point.hosts:
        slots = [slot for slot in slots if slot.host in point.hosts]
    taken = first_slots(point.world_size, point.placement, slots)
    return tuple(whole_cpu(slot, slots) for slot in taken) if point.hardware.cores else taken


def most_of_a_host(points: Iterable[Point], slots: Sequence[Slot]) -> int:
    """Return the most workers that one host starts for these points."""
    hosts = Counter(slot.host for point in points for slot in slots_of(point, slots))
    return max(hosts.values(), default=0)


def whole_cpu(slot: Slot, slots: Iterable[Slot]) -> Slot:
    """Return a slot with the CPUs of all ranks of its host, and a thread for each core."""
    beside = [one for one in slots if one.host == slot.host]
    cpus = tuple(dict.fromkeys(cpu for one in beside for cpu in one.cpus))
    return replace(slot, cpus=cpus, threads=min(len(cpus), sum(one.threads for one in beside)))


def first_slots(size: int, placement: Placement, slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """Return the slots of `size` ranks: `pack` fills one host after another, `spread` distributes the ranks."""
    hosts = list(dict.fromkeys(slot.host for slot in slots))
    ordered = sorted(slots, key=lambda slot: (hosts.index(slot.host), slot.local_rank))
    if placement == "spread":
        ordered = sorted(slots, key=lambda slot: (slot.local_rank, hosts.index(slot.host)))
    return tuple(ordered[:size])


def crowding(point: Point, slots: Sequence[Slot]) -> str:
    """Return why ranks share a CPU or GPU at a time, or why a CPU quota is too small; "" if neither."""
    device = point.hardware.device
    if device == "emulated":
        return ""
    beside: list[Sequence[Slot]] = [[slot] for slot in slots] if point.kind == "each" else [slots]
    if device == "cpu":
        return next(filter(None, map(_crowding, beside)), "")
    gpus = set(gpus_of(point, slots))
    is_shared = point.kind != "each" and len(gpus) < len(slots)
    return f"{counted(len(slots), 'rank')} on {counted(len(gpus), 'GPU')}" if is_shared else ""


def _crowding(slots: Sequence[Slot]) -> str:
    taken = [(slot.machine or slot.host, cpu) for slot in slots for cpu in slot.cpus]
    if len(taken) != len(set(taken)):
        return "more workers than cores"
    sharing: dict[tuple[str, str], list[Slot]] = {}
    for slot in slots:
        for group in slot.cpu_quotas:
            sharing.setdefault((slot.machine or slot.host, group), []).append(slot)
    for (_, group), ranks in sharing.items():
        quota, asked = ranks[0].cpu_quotas[group], sum(slot.threads for slot in ranks)
        if asked > quota:
            what = f"{counted(len(ranks), 'rank')} with {counted(asked, 'thread')}"
            return f"a CPU quota grants {what} on {ranks[0].host} the time of {quota:.3g} cores"
    return ""


def gpus_of(point: Point, slots: Sequence[Slot]) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs of a point's ranks; empty on other devices."""
    return tuple(slot.gpu for slot in slots) if point.hardware.device == "cuda" else ()


def server_slots(point: Point, rank_slots: Sequence[Slot], slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """Return the slot of each parameter server, one node after another.
    `shared` takes the nodes that train, `dedicated` the nodes that the point leaves free, if there are any."""
    training = list(dict.fromkeys(slot.host for slot in rank_slots))
    free = [host for host in dict.fromkeys(slot.host for slot in slots) if host not in training]
    hosts = free if point.server_hosts == "dedicated" and free else training
    ordered = (*rank_slots, *slots)
    first = {host: next(slot for slot in ordered if slot.host == host) for host in hosts}
    return tuple(first[hosts[index % len(hosts)]] for index in range(point.servers))
