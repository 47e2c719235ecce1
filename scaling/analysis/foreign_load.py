"""Who else used the machine while cells were measured, and how much slower it was: in one note. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis import canaries
from scaling.analysis.canaries import Canary
from scaling.records import canary
from scaling.records.events import Window
from scaling.records.point import Point, Record
from scaling.records.run import PointRecord, RankRecord
from scaling.records.telemetry import CpuTime, Foreign
from scaling.text import counted, several

# Parts of the time that are worth a note.
LEAST = 0.01
# Of a core: what uses less in all is not what slowed a rank down.
LEAST_CORES = 0.2
# Of a CPU: on a quiet one the run's own agents, which wake now and then, and the kernel's ticks of 10 ms make up
# to 2 % of a round.
LEAST_OTHERS = 0.05
NAMED = 3
# How a note begins; the second where only canaries tell, and of nobody.
FOREIGN_LOAD, SLOWER_CORES = "foreign load", "slower cores"


class Seat(NamedTuple):
    """A rank, and where it ran."""

    rank: int
    host: str


class Load(Record, frozen=True, kw_only=True):
    """What else the machine did while a cell, or several, was measured.

    `used` are processes by host. `slower` says of each slow one of `windows` by how much its core was,
    `slower_again` the same of the `again` windows that were measured again; before `shared` of all these others
    had the core for so much of the canary that it was slow for that. `queued` and `stolen` are by rank the part of
    the time that other processes, or the hypervisor, had its CPUs; of several cells in the worst. `others` is what
    other processes ran there, as a part of one CPU, where the rank did not wait for most of that: as on the other
    hyperthreads of its cores.
    """

    used: Mapping[str, tuple[Foreign, ...]] = {}
    windows: int = 0
    slower: tuple[float, ...] = ()
    again: int = 0
    slower_again: tuple[float, ...] = ()
    shared: int = 0
    queued: Mapping[Seat, float] = {}
    stolen: Mapping[Seat, float] = {}
    others: Mapping[Seat, float] = {}
    hosts: tuple[str, ...] = ()

    def notes(self) -> Iterator[str]:
        """One that says all of it; none where there is nothing to say. Canaries tell of somebody where others had
        the core in half of the slow ones: a single one may have met the run's own agents."""
        where = f" on {several(self.hosts)}" if self.hosts else ""
        named, slower, taken = who(self.used), list(self._slower()), [part for part in self._taken() if part]
        if named or taken:
            yield f"{FOREIGN_LOAD}{where}: {'; '.join(filter(None, (named, *slower, *taken)))}"
        elif slower:
            is_load = 2 * self.shared >= max(1, self._slow_windows)
            yield f"{FOREIGN_LOAD if is_load else SLOWER_CORES}{where}: {'; '.join((*slower, *self._shared()))}"

    @property
    def _slow_windows(self) -> int:
        """In how many windows the core was slow, at first or again."""
        return len(self.slower) + len(self.slower_again)

    def _shared(self) -> Iterator[str]:
        if self.shared >= self._slow_windows and self.shared:
            yield "others had the core then"
        elif self.shared:
            yield f"others had the core in {self.shared} of these {self._slow_windows}"

    def _slower(self) -> Iterator[str]:
        if self.slower:
            size = _percent(fmean(self.slower))
            yield f"the core was {size} slower in {len(self.slower)} of {self.windows} windows"
        if self.again:
            size = f", {_percent(fmean(self.slower_again))} slower" if self.slower_again else ""
            again = str(self.again) if self.slower else counted(self.again, "window")
            yield f"{again} measured again{size}"

    def _taken(self) -> Iterator[str]:
        yield _listed(self._worst(self.queued), "waited {} of the time for CPUs that others used")
        yield _listed(self._worst(self.others), "shared its CPUs with others, who used {} of one", decimals=0)
        yield _listed(self._worst(self.stolen), "lost {} of its CPUs' time to the hypervisor")

    def _worst(self, parts: Mapping[Seat, float]) -> list[tuple[str, float]]:
        """By rank, with its host where that is not the only one, most first."""
        found = sorted(parts.items(), key=lambda item: -item[1])
        return [(f"rank {seat.rank}{_on(seat.host, self.hosts)}", part) for seat, part in found]


def of(records: Sequence[PointRecord]) -> Load:
    """What the records of a cell tell."""
    by_seat: dict[int, list[RankRecord]] = {}
    for rank in chain.from_iterable(record.ranks for record in records):
        by_seat.setdefault(rank.launch_rank, []).append(rank)
    found = joined(_of_seat(ranks, records[0].point) for ranks in by_seat.values())
    # Ranks that share a core queue behind each other there.
    return replace(found, shared=0) if any(record.oversubscribed for record in records) else found


def joined(loads: Iterable[Load]) -> Load:
    """What several tell."""
    told = list(loads)
    return Load(
        used=_added(pair for one in told for pair in one.used.items()),
        windows=sum(one.windows for one in told),
        slower=tuple(part for one in told for part in one.slower),
        again=sum(one.again for one in told),
        slower_again=tuple(part for one in told for part in one.slower_again),
        shared=sum(one.shared for one in told),
        queued=_most(one.queued for one in told),
        stolen=_most(one.stolen for one in told),
        others=_most(one.others for one in told),
        hosts=tuple(dict.fromkeys(host for one in told for host in one.hosts)),
    )


def _most(parts: Iterable[Mapping[Seat, float]]) -> dict[Seat, float]:
    """A rank's worst, of several controls in which it ran."""
    found: dict[Seat, float] = {}
    for seat, part in chain.from_iterable(one.items() for one in parts):
        found[seat] = max(part, found.get(seat, 0.0))
    return found


def who(used: Mapping[str, Iterable[Foreign]]) -> str:
    """The busiest processes of these hosts, `` `make all` used 97 % of a core, `gcc` 45 % ``; empty where none did
    much."""
    summed = _added(used.items())
    found = [(one, host) for host, processes in summed.items() for one in processes if one.cores >= LEAST_CORES]
    found.sort(key=lambda pair: -pair[0].run_s)
    named = [(f"`{one.name}`{_on(host, summed)}", one.cores) for one, host in found]
    return _listed(named, "used {} of a core", decimals=0)


def _added(found: Iterable[tuple[str, Iterable[Foreign]]]) -> dict[str, tuple[Foreign, ...]]:
    """The sum of each process's, by host and name."""
    by_host: dict[str, dict[str, Foreign]] = {}
    for host, processes in found:
        by_name = by_host.setdefault(host, {})
        for one in processes:
            old = by_name.get(one.name, Foreign(name=one.name, run_s=0.0, over_s=0.0))
            by_name[one.name] = replace(old, run_s=old.run_s + one.run_s, over_s=old.over_s + one.over_s)
    return {host: tuple(by_name.values()) for host, by_name in by_host.items()}


def _listed(found: Sequence[tuple[str, float]], phrase: str, *, decimals: int = 1) -> str:
    """The first few names, each with its part; the whole phrase with the first of them."""
    said = [(name, _percent(part, decimals)) for name, part in found[:NAMED]]
    texts = [f"{name} {phrase.format(size) if index == 0 else size}" for index, (name, size) in enumerate(said)]
    return ", ".join(texts)


def _on(host: str, hosts: Collection[str]) -> str:
    return f" on {host}" if len(hosts) > 1 else ""


def _percent(part: float, decimals: int = 0) -> str:
    return f"{100 * part:.{decimals}f} %"


# ---------------------------------------------------------------- of one rank


def _of_seat(ranks: Sequence[RankRecord], point: Point) -> Load:
    """What one rank's records tell, over rounds. Where nothing of the run itself is beside a rank it queues behind
    others."""
    host, seat = ranks[0].host, Seat(ranks[0].rank, ranks[0].host)
    windows = [window for rank in ranks for window in rank.windows]
    again = [window for rank in ranks for window in rank.disturbed]
    known_s = canaries.known_s(ranks)
    slow, slow_again = (_slow(found, canaries.slow_above_s(known_s)) for found in (windows, again))
    queued, stolen = (_share(ranks, seconds) for seconds in (_kept_waiting_s, _stolen_s))
    others = _others(ranks) if point.has_own_cpus else 0.0
    load = Load(
        used=_added((host, rank.telemetry.foreign) for rank in ranks if rank.telemetry.foreign),
        windows=len(windows),
        slower=_above(slow, known_s),
        again=len(again),
        slower_again=_above(slow_again, known_s),
        shared=sum(canary.is_shared(*one) for one in (*slow, *filter(None, canaries.of(again)))),
        queued={seat: queued} if point.is_alone and queued > LEAST else {},
        stolen={seat: stolen} if stolen > LEAST else {},
        others={seat: others} if others else {},
    )
    taken = load.queued or load.stolen or load.others
    told = who(load.used) or load.slower or load.again or taken
    return replace(load, hosts=(host,) if told else ())


def _slow(windows: Iterable[Window], limit_s: float) -> list[Canary]:
    """Those before them that took longer."""
    return [one for one in canaries.of(windows) if one and one.seconds > limit_s]


def _above(slow: Iterable[Canary], known_s: Sequence[float]) -> tuple[float, ...]:
    """By how much."""
    usual_s = canary.usual_s(known_s) if known_s else inf
    return tuple(one.seconds / usual_s - 1 for one in slow)


def _share(ranks: Iterable[RankRecord], seconds: Callable[[CpuTime, int], float]) -> float:
    """Of the time that windows were measured, per core."""
    told = [(rank.threads, cpu) for rank in ranks if (cpu := rank.telemetry.cpu) is not None]
    wall_s = sum(threads * cpu.wall_s for threads, cpu in told)
    return sum(seconds(cpu, threads) for threads, cpu in told) / wall_s if wall_s else 0.0


def _kept_waiting_s(cpu: CpuTime, cores: int) -> float:
    """What threads queued for, as far as the rank's own did not fill its cores meanwhile: one that wakes beside
    another of the same rank queues too, and nobody else is there. Nor is it while a CPU quota holds them up, which
    counts as queueing."""
    idle_s = cores * cpu.wall_s - sum(thread.run_s for thread in cpu.threads)
    queued_s = sum(thread.queued_s for thread in cpu.threads) - cpu.throttled_s
    return max(min(queued_s, idle_s), 0.0)


def _stolen_s(cpu: CpuTime, _: int) -> float:
    return cpu.stolen_s


def _others(ranks: Iterable[RankRecord]) -> float:
    """What others ran on its CPUs, as a part of one; 0 where that is little beyond what the rank waited for, which
    its queueing tells."""
    told = [(rank.threads, cpu) for rank in ranks if (cpu := rank.telemetry.cpu) is not None]
    wall_s, others_s = sum(cpu.wall_s for _, cpu in told), sum(cpu.others_s or 0.0 for _, cpu in told)
    unnoticed_s = others_s - sum(_kept_waiting_s(cpu, threads) for threads, cpu in told)
    cores = max((threads for threads, _ in told), default=1)
    return others_s / wall_s if unnoticed_s > max(LEAST_OTHERS, LEAST * cores) * wall_s else 0.0
