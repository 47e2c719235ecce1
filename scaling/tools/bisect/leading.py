"""Rank 0 leads the search: evidence, waves of groups at once, promise and proof, all as points of one run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TextIO

from msgspec.structs import replace

from scaling.errors import Interrupted, UsageError
from scaling.plan.groups import Group
from scaling.plan.plan import Plan
from scaling.records.events import Failed
from scaling.records.point import Kind, Point
from scaling.records.run import PointRecord
from scaling.records.store import Store
from scaling.run.header import make_header
from scaling.run.invocation import resolve
from scaling.run.ranks import Lead
from scaling.sweep.sweep import Sweep
from scaling.sweep.view import live
from scaling.sweep.view.base import View
from scaling.sweep.view.plain import Stream
from scaling.text import counted
from scaling.tools.bisect import trials, words
from scaling.tools.bisect.belief import PRIOR
from scaling.tools.bisect.flags import Asked
from scaling.tools.bisect.promising import Promise, promise
from scaling.tools.bisect.proof import proof
from scaling.tools.bisect.search import Search, Wave, points_for
from scaling.tools.bisect.suspects import SUSPECTED, Suspect, suspects
from scaling.tools.lab import slowdown
from scaling.transport.mpi import launcher_output

# With one node less there must be an exchange between nodes still.
LEAST_NODES = 3
EVIDENCE: tuple[Kind, ...] = ("together", "exchange")


def bisect(lead: Lead, asked: Asked) -> int:
    """Search, and print what was found; returns the exit code. Raises UsageError."""
    given = {**asked.invocation.given, "world_sizes": [lead.cluster.size]}
    made = lead.planned(resolve(replace(asked.invocation, given=given)))
    _check(made)
    made = lead.proved(made)
    header = make_header(lead.cluster, made, lead.enrolled, lead.argv)
    now = datetime.fromtimestamp(header.created_unix_s)
    screen = live.make(asked.invocation.view, sys.stdout)
    with Store.create(Path(made.config.results), made.config.name, now, header) as opened:
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
            found.said.append(words.broken_off(found.blamed))
            raise
        finally:
            screen.closed(output)
            Stream(output).write("\n".join(["", *found.said, f"run: {opened.folder}", ""]))


def _check(made: Plan) -> None:
    """Raises UsageError for what cannot be searched."""
    for flag, given in (("--strategy", made.config.strategy or ()), ("--interconnect", made.config.interconnect)):
        if len(given) > 1:
            raise UsageError(f"{flag} {','.join(given)}: nodes are searched by one; name one")
    if len(made.hosts) < LEAST_NODES:
        raise UsageError(
            f"this launch has {counted(len(made.hosts), 'node')}, a search needs {LEAST_NODES}: the suspect, and "
            "two that exchange without it, one of them the control; start it on more (mpirun --host or --hostfile)"
        )
    for cell in made.cells:
        if why := made.refused.get(cell.cell) or made.missing.get(cell.strategy):
            raise UsageError(f"--strategy {cell.strategy}: {why}")


class Bisection:
    """One search. `said` are the lines that it ends with, so far; `blamed` the nodes that it leaves out."""

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
        self._waves = 0
        self.total = len(EVIDENCE) + points_for(len(self.nodes)) + 4 * made.rounds

    def run(self) -> int:
        """Find, promise and prove; returns the exit code."""
        self._note(words.opening(self.nodes))
        self._sweep.begin()
        evidence = [self._one(self._cells[kind]) for kind in EVIDENCE]
        beside = [record for record in evidence if not isinstance(record.outcome, Failed)]
        if len(beside) < len(evidence):
            self._note("the whole launch does not run: nothing can be searched; see the log named above")
            return 1
        pointed = suspects(evidence[0], evidence[1], self._noise or trials.noise(evidence[:1]))
        for line in words.evidence(pointed):
            self._note(line)
        search = self._searched(pointed)
        if search is None:
            return 1
        self.blamed = self._slow(search, pointed)
        return self._proved(search, evidence, self.blamed) if self.blamed else 0

    # ------------------------------------------------------------ searching

    def _searched(self, pointed: Sequence[Suspect]) -> Search | None:
        """Waves until the search is over; None where a group could not be measured."""
        named = {one.node for one in pointed}
        priors = [SUSPECTED if node in named else PRIOR for node in self.nodes]
        search = Search(priors, self._noise or trials.LEAST_NOISE, self._made.config.seed)
        measured: list[PointRecord] = []
        while wave := search.next_wave():
            records = self._wave(wave)
            told = [one for record in records if (one := trials.trial(record, self.nodes)) is not None]
            if len(told) < len(wave):
                self._note("a group could not be measured: the search ends; see the log named above")
                return None
            measured += records
            search.noise = self._noise or trials.noise(measured)
            search.hear(told)
        self._note(words.limits(search.noise))
        return search

    def _wave(self, wave: Wave) -> tuple[PointRecord, ...]:
        """What each group said. Where one never became steady, something else had disturbed it: all once more."""
        found = self._measured(wave)
        if all(record.settled for record in found):
            return found
        self._note(words.unsteady(self._waves))
        self.total += len(wave)
        self._screen.extended(self.total)
        return self._measured(wave)

    def _measured(self, wave: Wave) -> tuple[PointRecord, ...]:
        groups = [self._names(group) for group in wave]
        self._waves += 1
        self._note(words.wave(self._waves, groups))
        points = tuple(self._on(self._cells["comm"], group, self._waves - 1) for group in groups)
        return self._sweep.measure(Group(points=points, side_by_side=False), self.total, at_once=True)

    def _slow(self, search: Search, pointed: Sequence[Suspect]) -> tuple[str, ...]:
        """The nodes to leave out: those found by groups, and those that compute slowly."""
        found = search.found
        slow, doubted = self._names(found.slow), self._names(found.doubted)
        self._note(words.outcome(found, slow, doubted, len(search.trials), self._waves))
        computing = [one.node for one in pointed if one.slower]
        return tuple(node for node in self.nodes if node in slow or node in computing)

    # ------------------------------------------------------------ promise and proof

    def _proved(self, search: Search, evidence: Sequence[PointRecord], slow: Sequence[str]) -> int:
        healthy = [node for node in self.nodes if node not in slow]
        if len(healthy) < max(2, len(slow)):
            self._note(f"{len(slow)} of {len(self.nodes)} nodes are slow: too few are left for a proof")
            return 0
        numbers = [self.nodes.index(node) for node in healthy]
        control = self._names(search.control(numbers, len(slow)))
        sides = [tuple(node for node in self.nodes if node not in out) for out in (slow, control)]
        alone = self._alone(healthy[0])
        records: list[PointRecord] = []
        promised: Promise | None = None
        for number in range(1, self._made.rounds + 1):
            points = [replace(alone, round=number), replace(self._cells["exchange"], round=number)]
            points += [self._on(self._cells["exchange"], side, number) for side in sides]
            found = self._round(points)
            if number == 1:
                promised = promise(
                    evidence[1], evidence[0], found[0], search.trials,
                    frozenset(map(self.nodes.index, slow)), self.nodes, search.noise,
                )  # fmt: skip
                self._note(words.promised(promised, slow))
            records += found
        whole = proof(records, *sides)
        if whole is None:
            self._note("no round of the proof is whole: nothing is proved; see the logs named above")
            return 1
        for line in words.proved(whole, slow, control, promised):
            self._note(line)
        return 0 if all(not isinstance(record.outcome, Failed) for record in records) else 1

    def _alone(self, node: str) -> Point:
        """The baseline, on a node that is healthy."""
        point = replace(self._solo, kind="solo", world_size=1)
        return point if node == self.nodes[0] else replace(point, hosts=(node,))

    def _round(self, points: Sequence[Point]) -> tuple[PointRecord, ...]:
        """The points of one round, side by side where the plan has them so."""
        if self._made.side_by_side:
            return self._sweep.measure(Group(points=tuple(points), side_by_side=True), self.total)
        return tuple(self._one(point) for point in points)

    def _one(self, point: Point) -> PointRecord:
        (record,) = self._sweep.measure(Group(points=(point,), side_by_side=False), self.total)
        return record

    # ------------------------------------------------------------ points and words

    def _on(self, cell: Point, hosts: Sequence[str], number: int) -> Point:
        """A cell on some nodes alone, with all of their ranks."""
        size = sum(slot.host in hosts for slot in self._made.slots)
        servers = round(cell.servers * len(hosts) / len(self.nodes)) if cell.servers else 0
        return replace(cell, hosts=tuple(hosts), world_size=size, servers=servers, round=number)

    def _names(self, numbers: Sequence[int] | frozenset[int]) -> tuple[str, ...]:
        return tuple(self.nodes[number] for number in sorted(numbers))

    def _note(self, line: str) -> None:
        self.said.append(line)
        self._screen.note(line)
