"""Who sits where: every rank's host, CPUs and GPU, and which ranks a point takes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scaling import network
from scaling.errors import LaunchError, UsageError
from scaling.hostinfo import pick_cpus
from scaling.messages import Enrol
from scaling.records import HostInfo, Point, Record
from scaling.tasks import Clocks, Task


class Seat(Record, frozen=True):
    """A rank of the launch: its host, its place there, its own CPUs, its GPU.

    `device_index` counts the GPUs that this rank's agent sees (a batch system may show each rank one);
    `gpu` is that GPU's UUID, "" without one, by which two ranks that share a GPU are found.
    """

    launch_rank: int
    host: str
    local_rank: int
    cpus: tuple[int, ...]
    threads: int
    device_index: int = 0
    gpu: str = ""


def seat(enrolled: Sequence[Enrol], cpus_per_rank: int | None) -> tuple[Seat, ...]:
    """Give every rank of the launch its place. `enrolled[r]` is rank r's.

    A host's cores are those that any of its ranks may use; each rank gets the same number of them.
    Raises UsageError when `--cpus-per-rank` asks for more than there are.
    """
    hosts = [enrol.host for enrol in enrolled]
    ranks_of: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks_of.setdefault(host.hostname, []).append(rank)
    per_rank = cpus_per_rank or max(1, min(len(_cores(hosts, r)) // len(r) for r in ranks_of.values()))
    seats: list[Seat] = []
    for name, ranks in ranks_of.items():
        cores = _cores(hosts, ranks)
        if cpus_per_rank and cpus_per_rank > 1 and cpus_per_rank * len(ranks) > len(cores):
            raise UsageError(
                f"--cpus-per-rank {cpus_per_rank}: {len(ranks)} ranks on {name} would need "
                f"{cpus_per_rank * len(ranks)} cores, it has {len(cores)}; "
                f"at most {max(1, len(cores) // len(ranks))} fit"
            )
        for local, rank in enumerate(ranks):
            cpus = pick_cpus(cores, local_rank=local, per_rank=per_rank)
            seats.append(_seat(rank, hosts[rank], local, cpus, per_rank))
    return tuple(sorted(seats, key=lambda one: one.launch_rank))


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
    taken = [(one.host, cpu) for one in seats for cpu in one.cpus]
    return len(taken) != len(set(taken))


def tasks(
    point: Point,
    seats: Sequence[Seat],
    places: Mapping[str, network.Place],
    *,
    attempt: int,
    retry: int,
    ports: tuple[int, ...],
    seed: int,
    clocks: Clocks,
    logs: str,
) -> tuple[Task, ...]:
    """One task per rank of the point. `logs` is the folder of the run's logs."""
    hosts = tuple(one.host for one in seats)
    alone = len(set(hosts)) == 1
    loopback = network.Place(address=network.LOOPBACK, interface="lo")
    found = []
    for rank, one in enumerate(seats):
        here = loopback if alone else places[one.host]
        meet = loopback if alone else places[hosts[0]]
        local = [other for other in range(rank) if hosts[other] == one.host]
        found.append(
            Task(
                point=point,
                attempt=attempt,
                retry=retry,
                rank=rank,
                launch_rank=one.launch_rank,
                local_rank=len(local),
                local_world_size=hosts.count(one.host),
                hosts=hosts,
                device_index=one.device_index,
                # On GPUs workers keep the launcher's binding, which knows what is near which GPU.
                cpus=one.cpus if point.device == "cpu" else (),
                threads=one.threads,
                seed=seed,
                log=f"{logs}/{attempt:04d}-{_slug(point)}.{rank}.log",
                address=meet.address,
                interface=here.interface,
                ports=ports,
                clocks=clocks,
            )
        )
    return tuple(found)


def _slug(point: Point) -> str:
    strategy = point.strategy.replace(":", "-").replace("/", "-")
    return f"{strategy[:80]}-{point.kind}-n{point.world_size}-r{point.round}"
