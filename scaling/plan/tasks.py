"""A point and its placement -> what each child is told: ranks, workers, helpers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from scaling.frameworks.base import Helper, Traits
from scaling.plan.placement import Slot
from scaling.records.network import ALONE, Place
from scaling.records.point import Point
from scaling.records.task import Clocks, Server, Task


def rank_tasks(
    point: Point,
    mine: Sequence[Slot],
    servers: Sequence[Slot],
    places: Mapping[str, Place],
    *,
    attempt: int,
    retry: int,
    seed: int,
    clocks: Clocks,
    logs: str,
) -> tuple[Task, ...]:
    """One task per rank of the point, without ports. `mine` are its seats, `servers` those of its parameter
    servers, `logs` is the folder of the run's logs."""
    hosts = tuple(one.host for one in mine)
    alone = len({*hosts, *(one.host for one in servers)}) == 1
    here = dict.fromkeys(hosts, ALONE) if alone else places
    beside = tuple(_server(one, here[one.host]) for one in servers)
    log = f"{logs}/{attempt:04d}-{_slug(point)}"
    shared = {"attempt": attempt, "retry": retry, "seed": seed, "clocks": clocks, "servers": beside}
    return tuple(
        _task(rank, point, mine, here, crosses=not alone, log=f"{log}.{rank}.log", **shared)
        for rank in range(len(mine))
    )


def _server(one: Slot, place: Place) -> Server:
    return Server(launch_rank=one.launch_rank, host=one.host, place=place)


def _task(
    rank: int,
    point: Point,
    mine: Sequence[Slot],
    here: Mapping[str, Place],
    *,
    crosses: bool,
    **shared: Any,
) -> Task:
    """One rank's, with what all tasks of the point share."""
    one, hosts = mine[rank], tuple(one.host for one in mine)
    return Task(
        point=point,
        rank=rank,
        launch_rank=one.launch_rank,
        local_rank=hosts[:rank].count(one.host),
        local_world_size=hosts.count(one.host),
        hosts=hosts,
        device_index=one.device_index,
        device_indices=(one.device_index,),
        # On GPUs workers keep the launcher's binding, which knows what is near which GPU.
        cpus=one.cpus if point.hardware.device == "cpu" else (),
        threads=one.threads,
        place=here[one.host],
        places=tuple(here[host] for host in hosts),
        counts_traffic=crosses and one.host not in hosts[:rank],
        **shared,
    )


def worker_tasks(of: Sequence[Task], traits: Traits) -> tuple[Task, ...]:
    """The tasks of a point's workers: those of all ranks, or rank 0's alone with all devices of its host."""
    if traits.drives == "device":
        return tuple(of)
    local = [task for task in of if task.hosts[task.rank] == of[0].hosts[0]]
    return (
        replace(
            of[0],
            cpus=tuple(dict.fromkeys(cpu for task in local for cpu in task.cpus)),
            device_indices=tuple(task.device_index for task in local) if traits.drives == "node" else (),
        ),
    )


def helper_task(of: Sequence[Task], wanted: Helper) -> Task:
    """The task of a helper of a point; `of` are those of all its ranks."""
    rank = of[wanted.rank]
    task = replace(rank, role=wanted.name, log=f"{rank.log}.{wanted.name}")
    if wanted.computes:
        return task
    task = replace(task, cpus=(), device_indices=(), counts_traffic=False)
    if wanted.server is None:
        return task
    server = task.servers[wanted.server]
    return replace(
        task,
        launch_rank=server.launch_rank,
        place=server.place,
        counts_traffic=server.host not in task.hosts,
    )


def _slug(point: Point) -> str:
    strategy = point.strategy.replace(":", "-").replace("/", "-")
    return f"{strategy[:80]}-{point.kind}-n{point.world_size}-r{point.round}"
