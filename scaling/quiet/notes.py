"""Notes from records on what disturbed a cell: slow canaries, and foreign load (programs outside the launch)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from math import inf
from statistics import fmean
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from scaling.quiet.canary import Canary, slow_above_s, usual_s
from scaling.records.events import Window
from scaling.records.point import Point, Record
from scaling.records.run import PointRecord, PointWarning, RankRecord
from scaling.records.telemetry import CpuTime, Foreign
from scaling.text import counted, percent, several

# Least share of the time for a note.
LEAST = 0.01
# Least share of a core at which a program is named.
LEAST_CORES = 0.2
# Least share of a CPU. Agents and the kernel's ticks of 10 ms make up to 2 % of a round on an idle CPU.
LEAST_OTHERS = 0.05
NAMED = 3
ANOTHER = "another program"
# Begin of a note; the second if only canaries were slow and no other program was seen.
FOREIGN_LOAD, SLOWER_CORES = "foreign load", "slower cores"


class Cell(Protocol):
    """The part of a cell (analysis/measured/cell.py) that notes need."""

    @property
    def load(self) -> Load: ...


def notes(*cells: Cell) -> Iterator[str]:
    """Yield one note about all that disturbed these cells; none if nothing did."""
    return joined(cell.load for cell in cells).notes()


def warnings(used: Iterable[tuple[str, tuple[Foreign, ...]]], again: int) -> Iterator[PointWarning]:
    """Yield a warning that names the programs on a point's hosts; `again` is the number of repeated windows."""
    if named := programs_used(used):
        aside = f"; {counted(again, 'window')} repeated" if again else ""
        yield PointWarning(kind="foreign-load", text=f"{FOREIGN_LOAD}: {named}{aside}")


def warned(record: PointRecord) -> tuple[PointWarning, ...]:
    """Return the record's warnings. Those about foreign load are made anew: older ones have command lines."""
    others = (one for one in record.warnings if one.kind != "foreign-load")
    used = ((rank.host, rank.telemetry.foreign) for rank in record.ranks)
    return (*others, *warnings(used, again=sum(len(rank.disturbed) for rank in record.ranks)))


class Seat(NamedTuple):
    rank: int
    host: str


class Load(Record, frozen=True, kw_only=True):
    """Disturbances of one or several cells; shares of time are by rank, of several cells the worst.

    used             foreign processes, by host
    windows, slower  number of windows; relative slowdown of each slow canary before them
    again            number of repeated windows (`slower_again`: before these)
    shared           number of slow canaries whose core another program shared
    queued, stolen   share of the time that other processes, or the hypervisor, had the rank's CPUs
    others           use of its CPUs by others without making it wait, as a share of one CPU
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

    @property
    def kind(self) -> str:
        """The begin of its note; "" if nothing disturbed it.

        Slow canaries alone mean foreign load if half of them shared the core; the run's own agents may disturb
        one.
        """
        if programs_used(self.used.items()) or any(self._taken()):
            return FOREIGN_LOAD
        if not any(self._slower()):
            return ""
        return FOREIGN_LOAD if 2 * self.shared >= max(1, self._slow_windows) else SLOWER_CORES

    def notes(self) -> Iterator[str]:
        """Yield one note about all disturbances, if any."""
        named, taken, slower = programs_used(self.used.items()), list(self._taken()), list(self._slower())
        parts = (named, *slower, *taken) if named or taken else (*slower, *self._shared())
        if self.kind:
            yield f"{self._head(self.kind)}: {'; '.join(filter(None, parts))}"

    def brief(self, kind: str) -> str:
        """Return a line: `foreign load on vm: cc1plus; 31 of 120 windows repeated, 12 to 37 % slower`."""
        slower = (*self.slower, *self.slower_again)
        repeated = f"{self.again} of {counted(self.windows + self.again, 'window')} repeated" if self.again else ""
        where = "" if repeated else f" in {len(self.slower)} of {counted(self.windows, 'window')}"
        sizes = f"{_span(slower)} slower{where}" if slower else ""
        taken = {"CPU wait": self.queued, "hypervisor": self.stolen, "use by others": self.others}
        parts = (
            self.programs,
            ", ".join(filter(None, (repeated, sizes))),
            *(f"{what} up to {percent(max(part.values()), 1)}" for what, part in taken.items() if part),
        )
        return f"{self._head(kind, hosts=3)}: {'; '.join(filter(None, parts))}"

    def _head(self, kind: str, hosts: int = 6) -> str:
        return f"{kind} on {several(self.hosts, hosts)}" if self.hosts else kind

    @property
    def programs(self) -> str:
        """The busiest programs, `cc1plus, make`; "" if none was seen."""
        found = sorted((one for of in self.used.values() for one in of), key=lambda one: -one.run_s)
        names = dict.fromkeys(one.name or ANOTHER for one in found if one.cores >= LEAST_CORES)
        return ", ".join(list(names)[:NAMED])

    def summary(self) -> Iterator[str]:
        """Yield `31 of 120 windows repeated while cc1plus used the cores`; nothing if no window was repeated."""
        if self.again:
            why = f" while {self.programs} used the cores" if self.programs else ": the cores were slower at times"
            yield f"{self.again} of {self.windows + self.again} windows repeated{why}"

    @property
    def _slow_windows(self) -> int:
        return len(self.slower) + len(self.slower_again)

    def _shared(self) -> Iterator[str]:
        if self.shared >= self._slow_windows and self.shared:
            yield "another program used the core"
        elif self.shared:
            yield f"another program used the core in {self.shared} of these {self._slow_windows}"

    def _slower(self) -> Iterator[str]:
        if self.slower:
            size = percent(fmean(self.slower))
            yield f"the core was {size} slower in {len(self.slower)} of {self.windows} windows"
        if self.again:
            size = f", {percent(fmean(self.slower_again))} slower" if self.slower_again else ""
            again = str(self.again) if self.slower else counted(self.again, "window")
            yield f"{again} repeated{size}"

    def _taken(self) -> Iterator[str]:
        phrases = (
            (self.queued, "waited {} of the time for CPUs that other programs used", 1),
            (self.others, "shared its CPUs with other programs, which used {} of one", 0),
            (self.stolen, "lost {} of its CPUs' time to the hypervisor", 1),
        )
        return (_listed(self._worst(of), phrase, decimals=digits) for of, phrase, digits in phrases if of)

    def _worst(self, parts: Mapping[Seat, float]) -> list[tuple[str, float]]:
        found = sorted(parts.items(), key=lambda item: -item[1])
        return [(f"rank {seat.rank}{_on(seat.host, self.hosts)}", part) for seat, part in found]


def of(records: Sequence[PointRecord]) -> Load:
    """Return the load of one cell's records."""
    found = joined(_of_seat(ranks, records[0].point) for ranks in _by_seat(records).values())
    # With oversubscription, ranks queue behind each other.
    return replace(found, shared=0) if any(record.oversubscribed for record in records) else found


def joined(loads: Iterable[Load]) -> Load:
    """Return the load of several cells together."""
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


def briefs(loads: Iterable[Load]) -> dict[str, str]:
    """Return a line for each kind of note, over the loads of that kind; if there are none, over all disturbed."""
    disturbed = [one for one in loads if one.kind]
    found: dict[str, str] = {}
    for kind in (FOREIGN_LOAD, SLOWER_CORES):
        of_kind = [one for one in disturbed if one.kind == kind] or disturbed
        found |= {kind: joined(of_kind).brief(kind)} if of_kind else {}
    return found


def _most(parts: Iterable[Mapping[Seat, float]]) -> dict[Seat, float]:
    found: dict[Seat, float] = {}
    for seat, part in chain.from_iterable(one.items() for one in parts):
        found[seat] = max(part, found.get(seat, 0.0))
    return found


def programs_used(used: Iterable[tuple[str, Iterable[Foreign]]]) -> str:
    """Return the busiest programs, `make used 97 % of a core, gcc 45 %`; empty if use is small."""
    summed = _added(used)
    found = [(one, host) for host, processes in summed.items() for one in processes if one.cores >= LEAST_CORES]
    found.sort(key=lambda pair: -pair[0].run_s)
    named = [(f"{one.name or ANOTHER}{_on(host, summed)}", one.cores) for one, host in found]
    return _listed(named, "used {} of a core", decimals=0)


def _added(found: Iterable[tuple[str, Iterable[Foreign]]]) -> dict[str, tuple[Foreign, ...]]:
    """Add up the use of each program by host; its arguments are left out."""
    by_host: dict[str, dict[str, Foreign]] = {}
    for host, processes in found:
        summed = by_host.setdefault(host, {})
        for name, one in _by_program(processes).items():
            old = summed.get(name, _unused(name))
            summed[name] = replace(old, run_s=old.run_s + one.run_s, over_s=old.over_s + one.over_s)
    return {host: tuple(by_name.values()) for host, by_name in by_host.items()}


def _by_program(processes: Iterable[Foreign]) -> dict[str, Foreign]:
    """Add up what one rank saw. Command lines of one program are taken as seen at the same time."""
    found: dict[str, Foreign] = {}
    for one in processes:
        old = found.get(one.program, _unused(one.program))
        found[one.program] = replace(old, run_s=old.run_s + one.run_s, over_s=max(old.over_s, one.over_s))
    return found


def _unused(program: str) -> Foreign:
    return Foreign(name=program, run_s=0.0, over_s=0.0)


def _listed(found: Sequence[tuple[str, float]], phrase: str, *, decimals: int = 1) -> str:
    said = [(name, percent(part, decimals)) for name, part in found[:NAMED]]
    texts = [f"{name} {phrase.format(size) if index == 0 else size}" for index, (name, size) in enumerate(said)]
    return ", ".join(texts)


def _on(host: str, hosts: Collection[str]) -> str:
    return f" on {host}" if len(hosts) > 1 else ""


def _span(parts: Sequence[float]) -> str:
    low, high = (percent(part) for part in (min(parts), max(parts)))
    return high if low == high else f"{low.removesuffix(' %')} to {high}"


# ---------------------------------------------------------------- one rank


def _of_seat(ranks: Sequence[RankRecord], point: Point) -> Load:
    host, seat = ranks[0].host, Seat(ranks[0].rank, ranks[0].host)
    windows = [window for rank in ranks for window in rank.windows]
    again = [window for rank in ranks for window in rank.disturbed]
    known_s = _known_s(ranks)
    slow, slow_again = (_slow(found, _limit_s(known_s)) for found in (windows, again))
    queued, stolen = (_share(ranks, seconds) for seconds in (_kept_waiting_s, _stolen_s))
    others = _others(ranks) if point.has_own_cpus else 0.0
    load = Load(
        used=_added((host, rank.telemetry.foreign) for rank in ranks if rank.telemetry.foreign),
        windows=len(windows),
        slower=_above(slow, known_s),
        again=len(again),
        slower_again=_above(slow_again, known_s),
        shared=sum(one.is_shared for one in (*slow, *filter(None, _before_each(again)))),
        queued={seat: queued} if point.is_alone and queued > LEAST else {},
        stolen={seat: stolen} if stolen > LEAST else {},
        others={seat: others} if others else {},
    )
    taken = load.queued or load.stolen or load.others
    told = programs_used(load.used.items()) or load.slower or load.again or taken
    return replace(load, hosts=(host,) if told else ())


def _slow(windows: Iterable[Window], limit_s: float) -> list[Canary]:
    return [one for one in _before_each(windows) if one and one.seconds > limit_s]


def _above(slow: Iterable[Canary], known_s: Sequence[float]) -> tuple[float, ...]:
    usual = usual_s(known_s) if known_s else inf
    return tuple(one.seconds / usual - 1 for one in slow)


def _share(ranks: Iterable[RankRecord], seconds: Callable[[CpuTime, int], float]) -> float:
    told = [(rank.threads, cpu) for rank in ranks if (cpu := rank.telemetry.cpu) is not None]
    wall_s = sum(threads * cpu.wall_s for threads, cpu in told)
    return sum(seconds(cpu, threads) for threads, cpu in told) / wall_s if wall_s else 0.0


def _kept_waiting_s(cpu: CpuTime, cores: int) -> float:
    """Seconds behind other programs, at most the cores' idle time: threads also queue behind their own rank.

    The kernel counts a CPU quota's pauses as queueing; they are subtracted.
    """
    idle_s = cores * cpu.wall_s - sum(thread.run_s for thread in cpu.threads)
    queued_s = sum(thread.queued_s for thread in cpu.threads) - cpu.throttled_s
    return max(min(queued_s, idle_s), 0.0)


def _stolen_s(cpu: CpuTime, _: int) -> float:
    return cpu.stolen_s


def _others(ranks: Iterable[RankRecord]) -> float:
    """Share of one CPU; 0 if it is little more than the time that the rank queued, which has its own note."""
    told = [(rank.threads, cpu) for rank in ranks if (cpu := rank.telemetry.cpu) is not None]
    wall_s, others_s = sum(cpu.wall_s for _, cpu in told), sum(cpu.others_s or 0.0 for _, cpu in told)
    unnoticed_s = others_s - sum(_kept_waiting_s(cpu, threads) for threads, cpu in told)
    cores = max((threads for threads, _ in told), default=1)
    return others_s / wall_s if unnoticed_s > max(LEAST_OTHERS, LEAST * cores) * wall_s else 0.0


# ---------------------------------------------------------------- canaries of records


def at_first(records: Sequence[PointRecord]) -> Iterator[PointRecord]:
    """Yield the records with the first try of each window, without windows with a slow canary on any rank."""
    limits_s = {seat: _limit_s(_known_s(ranks)) for seat, ranks in _by_seat(records).items()}
    for record in records:
        ranks = [replace(rank, windows=_first(rank)) for rank in record.ranks]
        slow = frozenset[int]().union(*(_slow_blocks(one.windows, limits_s[one.launch_rank]) for one in ranks))
        kept = (tuple(window for window in rank.windows if window.index not in slow) for rank in ranks)
        both = zip(ranks, kept, strict=True)
        yield replace(record, ranks=tuple(replace(rank, windows=windows) for rank, windows in both))


def later(record: PointRecord) -> PointRecord:
    """Return the record with the windows of its soak as its windows, without those with a slow canary."""
    return replace(record, ranks=tuple(replace(rank, windows=_later(rank)) for rank in record.ranks))


def _later(rank: RankRecord) -> tuple[Window, ...]:
    known_s = [one.canary_s for one in (*rank.windows, *rank.soaked) if one.canary_s is not None]
    slow = _slow_blocks(rank.soaked, _limit_s(known_s))
    return tuple(window for window in rank.soaked if window.index not in slow)


def _by_seat(records: Iterable[PointRecord]) -> dict[int, list[RankRecord]]:
    found: dict[int, list[RankRecord]] = {}
    for rank in chain.from_iterable(record.ranks for record in records):
        found.setdefault(rank.launch_rank, []).append(rank)
    return found


def _before_each(windows: Iterable[Window]) -> list[Canary | None]:
    """Windows that ran in one go have the canary of the first."""
    own = (None if one.canary_s is None else Canary(one.canary_s, one.canary_queued_s) for one in windows)
    found: Iterator[Canary | None] = accumulate(own, lambda before, own: own or before)
    return list(found)


def _known_s(ranks: Iterable[RankRecord]) -> list[float]:
    """Only counted and first tries: tries that waited for a burner's end would make its slowness usual."""
    windows = chain.from_iterable((*rank.windows, *_first_tries(rank).values()) for rank in ranks)
    return [window.canary_s for window in windows if window.canary_s is not None]


def _first(rank: RankRecord) -> tuple[Window, ...]:
    first = _first_tries(rank)
    return tuple(first.get(window.index, window) for window in rank.windows)


def _first_tries(rank: RankRecord) -> dict[int, Window]:
    """By index, only of windows whose first try is not the counted one."""
    first = {window.index: window for window in reversed(rank.disturbed)}
    return {one.index: first[one.index] for one in rank.windows if first.get(one.index, one).start_s < one.start_s}


def _limit_s(canaries_s: Sequence[float]) -> float:
    return slow_above_s(canaries_s) if canaries_s else inf


def _slow_blocks(windows: Sequence[Window], limit_s: float) -> frozenset[int]:
    found = zip(windows, _before_each(windows), strict=True)
    return frozenset(window.index for window, one in found if one and one.seconds > limit_s)
