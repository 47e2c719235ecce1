"""Who sits where: every rank's host, CPUs and GPU, and which ranks a point takes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from scaling.errors import LaunchError, UsageError
from scaling.frameworks.base import Helper, Traits
from scaling.hosts.fabric import Place
from scaling.hosts.info import pick_cpus
from scaling.hosts.networks import ALONE
from scaling.records.messages import Enrol
from scaling.records.point import Point, Record
from scaling.records.run import HostInfo
from scaling.records.task import Clocks, Server, Task


class Seat(Record, frozen=True):
    """A rank of the launch: its host, its place there, its own CPUs, its GPU.

    `device_index` counts the GPUs that this rank's agent sees (a batch system may show each rank one);
    `gpu` is that GPU's UUID, "" without one, by which two ranks that share a GPU are found; `machine` is one
    for hosts on the same cores (containers, nodes of a lab), by which two that share a CPU are.
    """

    launch_rank: int
    host: str
    local_rank: int
    cpus: tuple[int, ...]
    threads: int
    machine: str = ""
    device_index: int = 0
    gpu: str = ""


def seat(enrolled: Sequence[Enrol], cpus_per_rank: int | None) -> tuple[Seat, ...]:
    """Give every rank of the launch its place. `enrolled[r]` is rank r's.

    A machine's cores are those that any of its ranks may use; each rank gets the same number of them.
    Raises UsageError when `--cpus-per-rank` asks for more than there are.
    """
    hosts = [enrol.host for enrol in enrolled]
    ranks_of = _by_machine(hosts)
    per_rank = cpus_per_rank or max(1, min(len(_cores(hosts, r)) // len(r) for r in ranks_of.values()))
    seats: list[Seat] = []
    local_ranks: Counter[str] = Counter()
    for machine, ranks in ranks_of.items():
        cores = _cores(hosts, ranks)
        name = ", ".join(dict.fromkeys(hosts[rank].hostname for rank in ranks))
        if cpus_per_rank and cpus_per_rank > 1 and cpus_per_rank * len(ranks) > len(cores):
            raise UsageError(
                f"--cpus-per-rank {cpus_per_rank}: {len(ranks)} ranks on {name} would need "
                f"{cpus_per_rank * len(ranks)} cores, it has {len(cores)}; "
                f"at most {max(1, len(cores) // len(ranks))} fit"
            )
        for index, rank in enumerate(ranks):
            local = local_ranks[hosts[rank].hostname]
            local_ranks[hosts[rank].hostname] += 1
            cpus = pick_cpus(cores, local_rank=index, per_rank=per_rank)
            seats.append(replace(_seat(rank, hosts[rank], local, cpus, per_rank), machine=machine))
    return tuple(sorted(seats, key=lambda one: one.launch_rank))


def _by_machine(hosts: Sequence[HostInfo]) -> dict[str, list[int]]:
    """The ranks of each machine. Hosts that name one kernel and the same cores are one; those of one kernel with
    other cores (containers with cpusets) are not."""
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host.hostname, []).append(rank)
    found: dict[str, list[int]] = {}
    for name, ranks in by_host.items():
        boot_id = hosts[ranks[0]].boot_id
        machine = f"{boot_id} {sorted(_cores(hosts, ranks))}" if boot_id else name
        found.setdefault(machine, []).extend(ranks)
    return found


def _seat(rank: int, host: HostInfo, local: int, cpus: tuple[int, ...], threads: int) -> Seat:
    index = local % len(host.gpus) if host.gpus else 0
    gpu = host.gpus[index].uuid if host.gpus else ""
    return Seat(
        launch_rank=rank,
        host=host.hostname,
        local_rank=local,
        cpus=cpus,
        threads=threads,
        device_index=index,
        gpu=gpu,
    )


def _cores(hosts: Sequence[HostInfo], ranks: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """The union of the ranks' cores, in their order."""
    return tuple(dict.fromkeys(core for rank in ranks for core in hosts[rank].cores))


def check_versions(enrolled: Sequence[Enrol]) -> None:
    """Refuse a launch whose ranks run different code; raises LaunchError naming the host."""
    first = enrolled[0]
    for rank, enrol in enumerate(enrolled):
        if (enrol.version, enrol.code) != (first.version, first.code):
            raise LaunchError(
                f"rank {rank} on {enrol.host.hostname} runs scaling {enrol.version} (code {enrol.code}), "
                f"rank 0 on {first.host.hostname} {first.version} (code {first.code}); "
                "install the same version on every host"
            )


def place(point: Point, seats: Sequence[Seat]) -> tuple[Seat, ...]:
    """The seats of a point, rank by rank: `pack` fills one host after the other, `spread` deals them out."""
    hosts = list(dict.fromkeys(one.host for one in seats))
    packed = sorted(seats, key=lambda one: (hosts.index(one.host), one.local_rank))
    if point.placement == "spread":
        packed = sorted(seats, key=lambda one: (one.local_rank, hosts.index(one.host)))
    return tuple(packed[: point.world_size])


def oversubscribed(point: Point, seats: Sequence[Seat]) -> bool:
    """Whether two ranks of the point share a CPU."""
    if point.device != "cpu":
        return False
    taken = [(one.machine or one.host, cpu) for one in seats for cpu in one.cpus]
    return len(taken) != len(set(taken))


def server_seats(point: Point, mine: Sequence[Seat], seats: Sequence[Seat]) -> tuple[Seat, ...]:
    """Beside which agent each parameter server of a point runs: one node after the other, the training ones
    (`shared`), or those that the point leaves free (`dedicated`, while it leaves any)."""
    training = list(dict.fromkeys(one.host for one in mine))
    free = [host for host in dict.fromkeys(one.host for one in seats) if host not in training]
    hosts = free if point.server_hosts == "dedicated" and free else training
    order = (*mine, *seats)
    first = {host: next(one for one in order if one.host == host) for host in hosts}
    return tuple(first[hosts[index % len(hosts)]] for index in range(point.servers))


def tasks(
    point: Point,
    mine: Sequence[Seat],
    servers: Sequence[Seat],
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


def _server(one: Seat, place: Place) -> Server:
    return Server(launch_rank=one.launch_rank, host=one.host, address=place.address, interface=place.interface)


def _task(
    rank: int, point: Point, mine: Sequence[Seat], here: Mapping[str, Place], *, crosses: bool, **shared: Any
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
        # On GPUs workers keep the launcher's binding, which knows what is near which GPU.
        cpus=one.cpus if point.device == "cpu" else (),
        threads=one.threads,
        address=here[hosts[0]].address,
        addresses=tuple(here[host].address for host in hosts),
        interface=here[one.host].interface,
        hca=here[one.host].hca,
        counts_traffic=crosses and one.host not in hosts[:rank],
        **shared,
    )


def workers(of: Sequence[Task], traits: Traits) -> tuple[Task, ...]:
    """The tasks of a point's workers: those of all ranks, or rank 0's alone with all devices of its host."""
    if traits.drives == "device":
        return tuple(of)
    local = [task for task in of if task.hosts[task.rank] == of[0].hosts[0]]
    return (
        replace(
            of[0],
            cpus=tuple(dict.fromkeys(cpu for task in local for cpu in task.cpus)),
            device_indices=tuple(task.device_index for task in local),
        ),
    )


def helper(of: Sequence[Task], wanted: Helper) -> Task:
    """The task of a helper of a point; `of` are those of all its ranks."""
    task = of[wanted.rank]
    log = f"{task.log}.{wanted.name}"
    if wanted.computes:
        return replace(task, role=wanted.name, log=log)
    if wanted.server is None:
        return replace(task, role=wanted.name, log=log, cpus=(), counts_traffic=False)
    server = task.servers[wanted.server]
    return replace(
        task,
        role=wanted.name,
        log=log,
        cpus=(),
        launch_rank=server.launch_rank,
        interface=server.interface,
        counts_traffic=server.host not in task.hosts,
    )


def _slug(point: Point) -> str:
    strategy = point.strategy.replace(":", "-").replace("/", "-")
    return f"{strategy[:80]}-{point.kind}-n{point.world_size}-r{point.round}"
