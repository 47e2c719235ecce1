"""Notes from records on what disturbed a cell: slow canaries, and foreign load (programs outside the launch)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from math import inf
from statistics import fmean
from typing import NamedTuple

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
# What takes a rank's CPUs, its words and their decimals. Shares are of its CPUs' time; of use by others, which did
# not make it wait, of one CPU.
TAKEN = {
    "CPU wait": ("waited {} of the time for CPUs that other programs used", 1),
    "use by others": ("shared its CPUs with other programs, which used {} of one", 0),
    "hypervisor": ("lost {} of its CPUs' time to the hypervisor", 1),
}


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
    """Disturbances of one or several cells.

    used             foreign processes, by host
    windows, slower  number of windows; relative slowdown of each slow canary before them
    again            number of repeated windows (`slower_again`: before these)
    shared           number of slow canaries whose core another program shared
    taken            shares by what took the CPUs (TAKEN) and by rank, of several cells the worst
    """

    used: Mapping[str, tuple[Foreign, ...]] = {}
    windows: int = 0
    slower: tuple[float, ...] = ()
    again: int = 0
    slower_again: tuple[float, ...] = ()
    shared: int = 0
    taken: Mapping[str, Mapping[Seat, float]] = {}
    hosts: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The begin of its note; "" if nothing disturbed it.

        Slow canaries alone mean foreign load if half of them shared the core; the run's own agents may disturb
        one.
        """
        if programs_used(self.used.items()) or self.taken:
            return FOREIGN_LOAD
        if not self.slower and not self.again:
            return ""
        return FOREIGN_LOAD if 2 * self.shared >= max(1, self._slow_windows) else SLOWER_CORES

    def notes(self) -> Iterator[str]:
        """Yield one note about all disturbances, if any."""
        if self.kind:
            named, taken = programs_used(self.used.items()), list(self._taken())
            parts = (named, *self._slower(), *(taken if named or taken else self._shared()))
            yield f"{self._head(self.kind)}: {'; '.join(filter(None, parts))}"

    def brief(self, kind: str) -> str:
        """Return a line: `foreign load on vm: cc1plus; 31 of 120 windows repeated, 12 to 37 % slower`."""
        slower = (*self.slower, *self.slower_again)
        repeated = f"{self.again} of {counted(self.windows + self.again, 'window')} repeated" if self.again else ""
        where = "" if repeated else f" in {len(self.slower)} of {counted(self.windows, 'window')}"
        sizes = f"{_span(slower)} slower{where}" if slower else ""
        taken = (f"{what} up to {percent(max(of.values()), 1)}" for what, of in sorted(self.taken.items()))
        parts = (self.programs, ", ".join(filter(None, (repeated, sizes))), *taken)
        return f"{self._head(kind, hosts=3)}: {'; '.join(filter(None, parts))}"

    def _head(self, kind: str, hosts: int = 6) -> str:
        return f"{kind} on {several(self.hosts, hosts)}" if self.hosts else kind

    @property
    def programs(self) -> str:
        """The busiest programs, `cc1plus, make`; "" if none was seen."""
        names = dict.fromkeys(one.name or ANOTHER for _, one in _busiest(self.used))
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
        for what, (phrase, decimals) in TAKEN.items():
            worst = sorted(self.taken.get(what, {}).items(), key=lambda item: -item[1])
            ranks = [(f"rank {seat.rank}{_on(seat.host, self.hosts)}", part) for seat, part in worst]
            if ranks:
                yield _listed(ranks, phrase, decimals=decimals)


def of(records: Sequence[PointRecord]) -> Load:
    """Return the load of one cell's records."""
    found = joined(_of_seat(ranks, records[0].point) for ranks in _by_seat(records).values())
    # With oversubscription, ranks queue behind each other.
    return replace(found, shared=0) if any(record.oversubscribed for record in records) else found


def joined(loads: Iterable[Load]) -> Load:
    """Return the load of several cells together."""
    told, taken = list(loads), dict[str, dict[Seat, float]]()
    for what, parts in chain.from_iterable(one.taken.items() for one in told):
        worst = taken.setdefault(what, {})
        worst |= {seat: max(part, worst.get(seat, 0.0)) for seat, part in parts.items()}
    return Load(
        used=_added(pair for one in told for pair in one.used.items()),
        windows=sum(one.windows for one in told),
        slower=tuple(part for one in told for part in one.slower),
        again=sum(one.again for one in told),
        slower_again=tuple(part for one in told for part in one.slower_again),
        shared=sum(one.shared for one in told),
        taken=taken,
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


def programs_used(used: Iterable[tuple[str, Iterable[Foreign]]]) -> str:
    """Return the busiest programs, `make used 97 % of a core, gcc 45 %`; empty if use is small."""
    summed = _added(used)
    named = [(f"{one.name or ANOTHER}{_on(host, summed)}", one.cores) for host, one in _busiest(summed)]
    return _listed(named, "used {} of a core", decimals=0)


def _busiest(used: Mapping[str, Iterable[Foreign]]) -> list[tuple[str, Foreign]]:
    found = ((host, one) for host, processes in used.items() for one in processes if one.cores >= LEAST_CORES)
    return sorted(found, key=lambda pair: -pair[1].run_s)


def _added(found: Iterable[tuple[str, Iterable[Foreign]]]) -> dict[str, tuple[Foreign, ...]]:
    """Add up the use of each program by host; its arguments are left out. Command lines of one program that one
    rank saw are taken as seen at the same time."""
    by_host: dict[str, dict[str, tuple[float, float]]] = {}
    for host, processes in found:
        summed, seen = by_host.setdefault(host, {}), dict[str, tuple[float, float]]()
        for one in processes:
            run_s, over_s = seen.get(one.program, (0.0, 0.0))
            seen[one.program] = run_s + one.run_s, max(over_s, one.over_s)
        for name, (run_s, over_s) in seen.items():
            before = summed.get(name, (0.0, 0.0))
            summed[name] = before[0] + run_s, before[1] + over_s
    return {
        host: tuple(Foreign(name=name, run_s=run_s, over_s=over_s) for name, (run_s, over_s) in summed.items())
        for host, summed in by_host.items()
    }


def _listed(found: Sequence[tuple[str, float]], phrase: str, *, decimals: int) -> str:
    said = [(name, percent(part, decimals)) for name, part in found[:NAMED]]
    return ", ".join(f"{name} {size if index else phrase.format(size)}" for index, (name, size) in enumerate(said))


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
    limit_s, usual = _limit_s(known_s), usual_s(known_s) if known_s else inf
    before_again = list(filter(None, _before_each(again)))
    slow, slow_again = (
        [one for one in found if one and one.seconds > limit_s] for found in (_before_each(windows), before_again)
    )
    load = Load(
        used=_added((host, rank.telemetry.foreign) for rank in ranks if rank.telemetry.foreign),
        windows=len(windows),
        slower=tuple(one.seconds / usual - 1 for one in slow),
        again=len(again),
        slower_again=tuple(one.seconds / usual - 1 for one in slow_again),
        shared=sum(one.is_shared for one in (*slow, *before_again)),
        taken={what: {seat: part} for what, part in _taken(ranks, point).items()},
    )
    return replace(load, hosts=(host,) if load.kind else ())


def _taken(ranks: Sequence[RankRecord], point: Point) -> dict[str, float]:
    """The shares that others took of a rank's CPUs (TAKEN), without those too small for a note. What others used
    beside the rank counts if it is more than the time that the rank queued, which has its own note."""
    told = [(rank.threads, cpu) for rank in ranks if (cpu := rank.telemetry.cpu) is not None]
    wall_s, cpus_s = sum(cpu.wall_s for _, cpu in told), sum(threads * cpu.wall_s for threads, cpu in told)
    queued_s = sum(_kept_waiting_s(cpu, threads) for threads, cpu in told)
    others_s, stolen_s = sum(cpu.others_s or 0.0 for _, cpu in told), sum(cpu.stolen_s for _, cpu in told)
    least_s = max(LEAST_OTHERS, LEAST * max((threads for threads, _ in told), default=1)) * wall_s
    is_beside = point.has_own_cpus and others_s - queued_s > least_s
    found = {
        "CPU wait": queued_s / cpus_s if cpus_s and point.is_alone else 0.0,
        "use by others": others_s / wall_s if is_beside else 0.0,
        "hypervisor": stolen_s / cpus_s if cpus_s else 0.0,
    }
    return {what: part for what, part in found.items() if part > LEAST}


def _kept_waiting_s(cpu: CpuTime, cores: int) -> float:
    """Seconds behind other programs, at most the cores' idle time: threads also queue behind their own rank.

    The kernel counts a CPU quota's pauses as queueing; they are subtracted.
    """
    idle_s = cores * cpu.wall_s - sum(thread.run_s for thread in cpu.threads)
    queued_s = sum(thread.queued_s for thread in cpu.threads) - cpu.throttled_s
    return max(min(queued_s, idle_s), 0.0)


# ---------------------------------------------------------------- canaries of records


def at_first(records: Sequence[PointRecord]) -> Iterator[PointRecord]:
    """Yield the records with the first try of each window, without windows with a slow canary on any rank."""
    limits_s = {seat: _limit_s(_known_s(ranks)) for seat, ranks in _by_seat(records).items()}
    for record in records:
        slow, tries = set[int](), list[list[Window]]()
        for rank in record.ranks:
            first = _first_tries(rank)
            tries.append([first.get(window.index, window) for window in rank.windows])
            slow |= _slow_blocks(tries[-1], limits_s[rank.launch_rank])
        yield _without(record, tries, [slow] * len(tries))


def later(record: PointRecord) -> PointRecord:
    """Return the record with the windows of its soak as its windows, without those with a slow canary."""
    slow = []
    for rank in record.ranks:
        known_s = [one.canary_s for one in (*rank.windows, *rank.soaked) if one.canary_s is not None]
        slow.append(_slow_blocks(rank.soaked, _limit_s(known_s)))
    return _without(record, [rank.soaked for rank in record.ranks], slow)


def _without(record: PointRecord, windows: Sequence[Sequence[Window]], slow: Sequence[set[int]]) -> PointRecord:
    """Return the record with these windows of its ranks, without the slow ones."""
    each = zip(record.ranks, windows, slow, strict=True)
    ranks = (replace(rank, windows=tuple(w for w in found if w.index not in aside)) for rank, found, aside in each)
    return replace(record, ranks=tuple(ranks))


def _by_seat(records: Iterable[PointRecord]) -> dict[int, list[RankRecord]]:
    found: dict[int, list[RankRecord]] = {}
    for rank in chain.from_iterable(record.ranks for record in records):
        found.setdefault(rank.launch_rank, []).append(rank)
    return found


def _before_each(windows: Iterable[Window]) -> Iterator[Canary | None]:
    """Windows that ran in one go have the canary of the first."""
    own = (None if one.canary_s is None else Canary(one.canary_s, one.canary_queued_s) for one in windows)
    return accumulate(own, lambda before, own: own or before)


def _known_s(ranks: Iterable[RankRecord]) -> list[float]:
    """Only counted and first tries: tries that waited for a burner's end would make its slowness usual."""
    windows = chain.from_iterable((*rank.windows, *_first_tries(rank).values()) for rank in ranks)
    return [window.canary_s for window in windows if window.canary_s is not None]


def _first_tries(rank: RankRecord) -> dict[int, Window]:
    """By index, only of windows whose first try is not the counted one."""
    first = {window.index: window for window in reversed(rank.disturbed)}
    return {one.index: first[one.index] for one in rank.windows if first.get(one.index, one).start_s < one.start_s}


def _limit_s(canaries_s: Sequence[float]) -> float:
    return slow_above_s(canaries_s) if canaries_s else inf


def _slow_blocks(windows: Sequence[Window], limit_s: float) -> set[int]:
    found = zip(windows, _before_each(windows), strict=True)
    return {window.index for window, one in found if one and one.seconds > limit_s}
