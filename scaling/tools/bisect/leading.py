"""Rank 0's part of the search: evidence, waves and proof. All points belong to one run."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import TextIO

from msgspec.structs import replace

from scaling.analysis.measured.step_time import step_time
from scaling.analysis.statistics.intervals import Estimate, interval
from scaling.errors import Interrupted, UsageError
from scaling.plan.groups import Group
from scaling.plan.plan import Plan
from scaling.records.events import Failed
from scaling.records.point import Kind, Point
from scaling.records.run import PointRecord
from scaling.run.invocation import resolve
from scaling.run.ranks import Lead
from scaling.sweep.sweep import Sweep
from scaling.sweep.view import live
from scaling.sweep.view.plain import Stream, View
from scaling.text import counted, plus_minus
from scaling.tools.bisect import searching
from scaling.tools.bisect.flags import Asked
from scaling.tools.bisect.searching import Found, Search, Suspect, Wave, searched
from scaling.tools.lab import slowdown
from scaling.transport.mpi import launcher_output

# ---------------------------------------------------------------- proof
# Every round measures all nodes, all without the suspects, and all without as many healthy nodes. This control
# shows what fewer nodes alone bring.


# Efficiencies of one round, as fractions of 1: of all nodes, of all without the suspects, and of the control.
Proved = tuple[float, float, float]


def proof(records: Iterable[PointRecord], without: Sequence[str], control: Sequence[str]) -> list[Proved]:
    """Return the complete rounds; `without` and `control` are the hosts of each side."""
    by_round: dict[int, dict[str, float]] = defaultdict(dict)
    for record in records:
        time = step_time(record)
        name = {(): "everyone", tuple(without): "without", tuple(control): "control"}.get(record.point.hosts)
        if record.point.kind == "solo":
            name = "alone"
        if time is not None and name and record.point.kind in ("solo", "exchange"):
            by_round[record.point.round][name] = time.step_s
    return [
        (one["alone"] / one["everyone"], one["alone"] / one["without"], one["alone"] / one["control"])
        for one in by_round.values()
        if len(one) == 4
    ]


# ---------------------------------------------------------------- printed lines


def outcome_line(found: Found, slow: Sequence[str], doubted: Sequence[str], points: int, waves: int) -> str:
    by = f"by {counted(points, 'point')} in {counted(waves, 'wave')}"
    left = f"; undecided: {', '.join(doubted)}" if doubted else ""
    if slow:
        return f"slow: {', '.join(slow)} ({100 * found.probability:.0f} % sure that exactly these), {by}{left}"
    if doubted:
        return f"no node is surely slow, {by}{left}: start again, with more --windows"
    return f"no slow node ({100 * found.probability:.0f} % sure), {by}"


def proof_lines(proved: Sequence[Proved], slow: Sequence[str], control: Sequence[str]) -> Iterator[str]:
    """Write the lines of a proof: `81.2 -> 94.0 % (+12.8 ± 2.1) without node03; without node05: 81.5 %`.
    Differences are paired by round."""
    before, after, other = (100 * fmean(values) for values in zip(*proved, strict=True))
    gain = interval([without - everyone for everyone, without, _ in proved])
    of_control = interval([fewer - everyone for everyone, _, fewer in proved])
    names, others = ", ".join(slow), ", ".join(control)
    yield f"{before:.1f} -> {after:.1f} % ({points(gain)}) without {names}; without {others}: {other:.1f} %"
    if gain.low is None:
        yield "one round: no interval; --rounds 3 or more give one"
    elif gain.high is not None and gain.high < 0:
        yield f"refuted: without {names} the others do worse"
    elif gain.low <= 0:
        yield "not proved: the interval includes zero; more --rounds narrow it"
    elif of_control.low is not None and of_control.low > 0:
        yield f"the control gains too ({points(of_control)}): part of the gain comes from fewer nodes"


def points(found: Estimate) -> str:
    of = found.times(100)
    return f"{of.mean:+.1f} {plus_minus(of.mean, of.low, of.high, 1)}".rstrip()


# ---------------------------------------------------------------- the search

# without one node, two must remain to exchange
LEAST_NODES = 3
EVIDENCE: tuple[Kind, ...] = ("together", "exchange")


def bisect(lead: Lead, asked: Asked) -> int:
    """Search and print the result. Raises UsageError."""
    given = {**asked.invocation.given, "world_sizes": [lead.cluster.size]}
    made = lead.planned(resolve(replace(asked.invocation, given=given)))
    _check(made)
    made = lead.proved(made)
    header = lead.header(made)
    screen = live.make(asked.invocation.view, sys.stdout)
    with lead.create(made, header) as opened:
        sweep = Sweep(made, lead.mailbox, opened, screen)
        found = Bisection(made, sweep, screen, asked.noise)
        output: TextIO = sys.stdout
        try:
            screen.opened(header, found.total)
            with slowdown.shaped(made.hardware.link_divisor):
                return found.run()
        except Interrupted as stop:
            if stop.by_launcher:
                output = launcher_output() or output
            blamed = ", ".join(found.blamed)
            before = f"the proof of {blamed} was complete" if blamed else "a slow node was found"
            found.said.append(f"stopped before {before}: the measured points are kept; start again")
            raise
        finally:
            screen.closed(output)
            Stream(output).write("\n".join(["", *found.said, f"run: {opened.folder}", ""]))


def check_one_exchange(made: Plan, why: str) -> None:
    """Raise UsageError if the plan has several exchanges, for this reason, or one that cannot be measured."""
    for flag, given in (("--strategy", made.config.strategy or ()), ("--interconnect", made.config.interconnect)):
        if len(given) > 1:
            raise UsageError(f"{flag} {','.join(given)}: {why}; name one")
    for cell in made.cells:
        if reason := made.refused.get(cell.cell) or made.missing.get(cell.strategy):
            raise UsageError(f"--strategy {cell.strategy}: {reason}")


def most_points(nodes: int, rounds: int) -> int:
    """Return how many points a search among so many nodes measures, if one node is slow."""
    return len(EVIDENCE) + searching.points_for(nodes) + 4 * rounds


def _check(made: Plan) -> None:
    if len(made.hosts) < LEAST_NODES:
        raise UsageError(
            f"this launch has {counted(len(made.hosts), 'node')}, a search needs {LEAST_NODES}: the suspect and "
            "two that exchange without it; start it on more (mpirun --host or --hostfile)"
        )
    check_one_exchange(made, "a search uses one")


class Bisection:
    """One search. `said` holds the printed lines so far, `blamed` the nodes that it leaves out."""

    def __init__(self, made: Plan, sweep: Sweep, screen: View, noise: float | None) -> None:
        self.said: list[str] = []
        self.blamed: tuple[str, ...] = ()
        self.nodes = tuple(made.hosts)
        self._made = made
        self._sweep = sweep
        self._screen = screen
        self._noise = noise
        self._cells: dict[Kind, Point] = {cell.kind: cell for cell in made.cells}
        self._solo = next(cell for cell in made.cells if cell.kind in ("solo", "each"))
        # Nobody but a script knows its gradients: groups train.
        self._waved = self._cells.get("comm", self._cells["exchange"])
        self._waves = 0
        self.total = most_points(len(self.nodes), made.rounds)

    def run(self) -> int:
        self._note(f"searching {len(self.nodes)} nodes for a slow one: {', '.join(self.nodes)}")
        self._sweep.begin()
        evidence = [self._one(self._cells[kind]) for kind in EVIDENCE]
        if any(isinstance(record.outcome, Failed) for record in evidence):
            self._note("the exchange of all nodes failed, so nothing can be searched; see the log named above")
            return 1
        together, exchange = evidence
        pointed = searching.suspects(together, exchange, self._noise or searching.noise([together]))
        for one in pointed:
            self._note(f"suspect {one.node}: {one.why}")
        if not pointed:
            self._note("no suspect: ranks compute alike, and paths carry alike")
        search = self._searched(pointed)
        if search is None:
            return 1
        found = search.found
        slow, doubted = self._names(found.slow), self._names(found.doubted)
        self._note(outcome_line(found, slow, doubted, len(search.trials), self._waves))
        computing = [one.node for one in pointed if one.slower]
        self.blamed = tuple(node for node in self.nodes if node in slow or node in computing)
        return self._proved(search, self.blamed) if self.blamed else 0

    def _searched(self, pointed: Sequence[Suspect]) -> Search | None:
        named = {one.node for one in pointed}
        priors = [searching.SUSPECTED if node in named else searching.PRIOR for node in self.nodes]
        search = Search(priors, self._noise or searching.LEAST_NOISE, self._made.config.seed)
        measured: list[PointRecord] = []
        while wave := search.next_wave():
            records = self._wave(wave)
            told = [one for record in records if (one := searching.trial(record, self.nodes)) is not None]
            if len(told) < len(wave):
                self._note("a group could not be measured: the search ends; see the log named above")
                return None
            measured += records
            search.noise = self._noise or searching.noise(measured)
            search.hear(told)
        noise, least = 100 * search.noise, 100 * searched(search.noise)
        self._note(f"noise {noise:.1f} %: nodes less than {least:.1f} % slower are not searched")
        return search

    def _wave(self, wave: Wave) -> tuple[PointRecord, ...]:
        """Measure a wave, and repeat it once if a group never became steady (a disturbance)."""
        found = self._measured(wave)
        if all(record.settled for record in found):
            return found
        self._note(f"wave {self._waves} never became steady: its groups are measured again")
        self.total += len(wave)
        self._screen.extended(self.total)
        return self._measured(wave)

    def _measured(self, wave: Wave) -> tuple[PointRecord, ...]:
        groups = [self._names(group) for group in wave]
        self._waves += 1
        self._note(f"wave {self._waves}: {' | '.join(' '.join(sorted(group)) for group in groups)}")
        number = self._waves - 1
        if self._waved.kind == "exchange":  # rounds after those of the proof, which may measure the same nodes
            number += self._made.rounds + 1
        points = tuple(self._on(self._waved, group, number) for group in groups)
        return self._sweep.measure(Group(points=points, side_by_side=False), self.total, at_once=True)

    def _proved(self, search: Search, slow: Sequence[str]) -> int:
        healthy = [node for node in self.nodes if node not in slow]
        if len(healthy) < max(2, len(slow)):
            self._note(f"{len(slow)} of {len(self.nodes)} nodes are slow: too few are left for a proof")
            return 0
        numbers = [self.nodes.index(node) for node in healthy]
        control = self._names(search.control(numbers, len(slow)))
        sides = [tuple(node for node in self.nodes if node not in out) for out in (slow, control)]
        place = () if healthy[0] == self.nodes[0] else (healthy[0],)
        alone = replace(self._solo, kind="solo", world_size=1, hosts=place)
        records: list[PointRecord] = []
        for number in range(1, self._made.rounds + 1):
            points = [replace(alone, round=number), replace(self._cells["exchange"], round=number)]
            records += self._round([*points, *(self._on(self._cells["exchange"], side, number) for side in sides)])
        whole = proof(records, *sides)
        if not whole:
            self._note("no round of the proof is complete: nothing is proved; see the logs named above")
            return 1
        for line in proof_lines(whole, slow, control):
            self._note(line)
        return int(any(isinstance(record.outcome, Failed) for record in records))

    def _round(self, points: Sequence[Point]) -> tuple[PointRecord, ...]:
        if self._made.side_by_side:
            return self._sweep.measure(Group(points=tuple(points), side_by_side=True), self.total)
        return tuple(self._one(point) for point in points)

    def _one(self, point: Point) -> PointRecord:
        (record,) = self._sweep.measure(Group(points=(point,), side_by_side=False), self.total)
        return record

    def _on(self, cell: Point, hosts: Sequence[str], number: int) -> Point:
        size = sum(slot.host in hosts for slot in self._made.slots)
        servers = round(cell.servers * len(hosts) / len(self.nodes)) if cell.servers else 0
        return replace(cell, hosts=tuple(hosts), world_size=size, servers=servers, round=number)

    def _names(self, numbers: Sequence[int] | frozenset[int]) -> tuple[str, ...]:
        return tuple(self.nodes[number] for number in sorted(numbers))

    def _note(self, line: str) -> None:
        self.said.append(line)
        self._screen.note(line)
