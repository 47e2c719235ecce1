"""Which TCP ports a point needs, on which hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from scaling.frameworks.base import Traits
from scaling.records.point import Record
from scaling.records.task import Task


class Wanted(Record, frozen=True, kw_only=True):
    """How many ports a point needs on an address of one host, held by the agent of rank `launch_rank`."""

    launch_rank: int
    host: str
    address: str
    count: int


def wanted(tasks: Sequence[Task], traits: Traits) -> tuple[Wanted, ...]:
    """Return what a point needs: ports of rank 0, of all ranks, of the servers. `tasks` is one per rank."""
    first = tasks[0]
    shared = [_beside(first, traits.ports)] if traits.ports else []
    own = [_beside(task, 1) for task in tasks] if traits.rank_ports else []
    servers = [
        Wanted(launch_rank=server.launch_rank, host=server.host, address=server.address, count=1)
        for server in first.servers
    ]
    return (*shared, *own, *servers)


def _beside(task: Task, count: int) -> Wanted:
    return Wanted(
        launch_rank=task.launch_rank,
        host=task.hosts[task.rank],
        address=task.addresses[task.rank],
        count=count,
    )


def assigned(tasks: Sequence[Task], traits: Traits, held: Mapping[int, tuple[int, ...]]) -> tuple[Task, ...]:
    """Return the tasks with their ports; `held[i]` are those of `wanted(...)[i]`."""
    answers = [held[index] for index in range(len(held))]
    ports = answers.pop(0) if traits.ports else ()
    count = len(tasks) if traits.rank_ports else 0
    rank_ports = tuple(port for (port,) in answers[:count])
    servers = tuple(
        replace(server, port=port) for server, (port,) in zip(tasks[0].servers, answers[count:], strict=True)
    )
    return tuple(replace(task, ports=ports, rank_ports=rank_ports, servers=servers) for task in tasks)
