"""Turn a point and its placement into the tasks of its ranks, workers and helpers, with their TCP ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from scaling import frameworks
from scaling.frameworks.base import Helper, Traits
from scaling.plan.placement import Slot
from scaling.records.network import ALONE, Place
from scaling.records.point import Point, Record
from scaling.records.task import Server, Task


def rank_tasks(
    point: Point,
    slots: Sequence[Slot],
    server_slots: Sequence[Slot],
    places: Mapping[str, Place],
    *,
    attempt: int,
    logs: str,
    **shared: Any,
) -> tuple[Task, ...]:
    """Make one task per rank of the point, without ports.
    `places` is by host. `logs` is the folder of the run's logs. `shared` are further fields of all tasks."""
    hosts = tuple(slot.host for slot in slots)
    alone = len({*hosts, *(slot.host for slot in server_slots)}) == 1
    place_of = dict.fromkeys(hosts, ALONE) if alone else places
    servers = tuple(
        Server(launch_rank=slot.launch_rank, host=slot.host, place=place_of[slot.host]) for slot in server_slots
    )
    strategy = point.strategy.replace(":", "-").replace("/", "-")[:80]
    log = f"{logs}/{attempt:04d}-{strategy}-{point.kind}-n{point.world_size}-r{point.round}"
    shared |= {"attempt": attempt, "servers": servers}
    return tuple(
        _task(rank, point, slots, place_of, crosses=not alone, log=f"{log}.{rank}.log", **shared)
        for rank in range(len(slots))
    )


def _task(
    rank: int,
    point: Point,
    slots: Sequence[Slot],
    place_of: Mapping[str, Place],
    *,
    crosses: bool,
    **shared: Any,
) -> Task:
    slot, hosts = slots[rank], tuple(slot.host for slot in slots)
    device = point.hardware.device
    shown_gpu, device_index = slot.shown_gpu if device == "cuda" else "", slot.device_index
    if device == "cuda" and slot.gpu.startswith("GPU-") and _sees_one_gpu(point.strategy):
        shown_gpu, device_index = slot.gpu, 0
    return Task(
        point=point,
        rank=rank,
        launch_rank=slot.launch_rank,
        local_rank=hosts[:rank].count(slot.host),
        local_world_size=hosts.count(slot.host),
        hosts=hosts,
        device_index=device_index,
        device_indices=(device_index,),
        shown_gpu=shown_gpu,
        cpus=slot.cpus_on(device),
        threads=slot.threads_on(device),
        place=place_of[slot.host],
        places=tuple(place_of[host] for host in hosts),
        counts_traffic=crosses and slot.host not in hosts[:rank],
        counts_energy=slot.owns_machine and slot.host not in hosts[:rank],
        **shared,
    )


def _sees_one_gpu(strategy: str) -> bool:
    drives = frameworks.load(strategy).traits(strategy).drives
    return drives == "device" and frameworks.running(strategy).sees_one_gpu


def worker_tasks(tasks: Sequence[Task], traits: Traits) -> tuple[Task, ...]:
    """Return the tasks of a point's workers: one per rank, or rank 0's alone with the CPUs of its whole host.
    A single worker computes on all devices of the host if it drives the node, on none if helpers compute."""
    if traits.drives == "device":
        return tuple(tasks)
    first = tasks[0]
    local = [task for task in tasks if task.hosts[task.rank] == first.hosts[0]]
    return (
        replace(
            first,
            cpus=tuple(dict.fromkeys(cpu for task in local for cpu in task.cpus)),
            device_indices=tuple(task.device_index for task in local) if traits.drives == "node" else (),
        ),
    )


def helper_task(tasks: Sequence[Task], helper: Helper) -> Task:
    """Return the task of a helper of a point; `tasks` are those of all its ranks."""
    beside = tasks[helper.rank]
    task = replace(beside, role=helper.name, log=f"{beside.log}.{helper.name}")
    if helper.computes:
        return task
    task = replace(task, cpus=(), device_indices=(), counts_traffic=False, counts_energy=False)
    if helper.server is None:
        return task
    server = task.servers[helper.server]
    return replace(
        task,
        launch_rank=server.launch_rank,
        place=server.place,
        counts_traffic=server.host not in task.hosts,
    )


# ---------------------------------------------------------------- ports


class WantedPorts(Record, frozen=True, kw_only=True):
    """How many ports a point needs on an address of one host, held by the agent of rank `launch_rank`."""

    launch_rank: int
    host: str
    address: str
    count: int


def wanted_ports(tasks: Sequence[Task], traits: Traits) -> tuple[WantedPorts, ...]:
    """Return what a point needs: ports of rank 0, of all ranks, of the servers. `tasks` is one per rank."""
    first = tasks[0]
    shared = [_beside(first, traits.ports)] if traits.ports else []
    own = [_beside(task, 1) for task in tasks] if traits.rank_ports else []
    servers = [
        WantedPorts(launch_rank=server.launch_rank, host=server.host, address=server.address, count=1)
        for server in first.servers
    ]
    return (*shared, *own, *servers)


def _beside(task: Task, count: int) -> WantedPorts:
    return WantedPorts(
        launch_rank=task.launch_rank,
        host=task.hosts[task.rank],
        address=task.addresses[task.rank],
        count=count,
    )


def with_ports(tasks: Sequence[Task], traits: Traits, held: Mapping[int, tuple[int, ...]]) -> tuple[Task, ...]:
    """Return the tasks with their ports; `held[i]` are those of `wanted(...)[i]`."""
    answers = [held[index] for index in range(len(held))]
    ports = answers.pop(0) if traits.ports else ()
    count = len(tasks) if traits.rank_ports else 0
    rank_ports = tuple(port for (port,) in answers[:count])
    servers = tuple(
        replace(server, port=port) for server, (port,) in zip(tasks[0].servers, answers[count:], strict=True)
    )
    return tuple(replace(task, ports=ports, rank_ports=rank_ports, servers=servers) for task in tasks)
