"""Rank 0's main loop: it measures each epoch of points, appends their records and adds rounds.

One thread, which never blocks: each turn takes the agents' messages, applies them, answers and updates the view.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

from msgspec.structs import replace

from scaling import frameworks
from scaling.analysis.table.burn_in import summarized
from scaling.analysis.table.cell_rows import Analyser
from scaling.analysis.table.rows import Row
from scaling.errors import Interrupted, SilentRanks
from scaling.plan.groups import Group
from scaling.plan.placement import slots_of
from scaling.plan.plan import Plan
from scaling.plan.tasks import rank_tasks
from scaling.plan.validation import target_half_width
from scaling.records.burn_in import LIVE_ROUNDS, PointSummary, is_kept
from scaling.records.events import Failed
from scaling.records.messages import (
    INTERRUPT_GRACE_S,
    Heard,
    Listen,
    Listened,
    Preload,
    Preloaded,
    ToAgent,
    ToSweep,
)
from scaling.records.point import Point
from scaling.records.run import PointRecord
from scaling.records.store import Line, Store, done_keys, joined, settled
from scaling.records.task import Clocks, Task
from scaling.sweep.attempt import Bench, traced_keys
from scaling.sweep.epoch import SOAK_ROUND, Epoch, Sharing
from scaling.sweep.outcome import record_of, record_so_far
from scaling.sweep.state import Ahead, ahead
from scaling.sweep.turns import Quiet
from scaling.sweep.view.plain import View
from scaling.sweep.warmup import SINGLE_STEPS
from scaling.text import counted, duration
from scaling.transport.base import Mailbox

# ---------------------------------------------------------------- burn-in
# A burn-in (`--for`): when it ends, which of its records are kept, and how far it is. Its clock is the sweep's,
# without the time between an interruption and its `--resume`.


class BurnIn:
    """Rounds until `for_s` seconds are over. `earlier` has the summaries of the rounds before an interruption."""

    def __init__(self, for_s: float, clock: Callable[[], float], earlier: Sequence[PointSummary] = ()) -> None:
        self._for_s = for_s
        self._clock = clock
        self._spent_s = max((one.end_s for one in earlier), default=0.0)
        self._begun_s = clock()
        self.first_round = self._rounds = max((one.first_round + one.rounds for one in earlier), default=0)
        self.failures = sum(sum(one.failures.values()) for one in earlier)

    def begin(self) -> None:
        """Start the clock: now the first round begins."""
        self._begun_s = self._clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds of all rounds so far."""
        return self._spent_s + self._clock() - self._begun_s

    @property
    def ahead(self) -> Ahead:
        return Ahead(min(self.elapsed_s / self._for_s, 1.0), max(self._for_s - self.elapsed_s, 0.0))

    def __call__(self, _: object, rounds: int) -> bool:
        """Return whether another round follows, which probably takes as long as the mean of `rounds` before it."""
        elapsed_s = self.elapsed_s
        return elapsed_s + elapsed_s / max(rounds, 1) <= self._for_s

    def keeps(self, record: PointRecord) -> bool:
        """Return whether the file gets the whole record: its round is among the evenly spaced ones."""
        number = record.point.round
        self._rounds = max(self._rounds, number + 1)
        return is_kept(number, self._rounds)

    def summary(self, record: PointRecord) -> PointSummary:
        """Summarise a point that has just ended."""
        self.failures += isinstance(record.outcome, Failed)
        end_s = self.elapsed_s
        return summarized(record, max(end_s - record.wall_s, 0.0), end_s)

    def thinned(self, records: Iterable[PointRecord]) -> tuple[PointRecord, ...]:
        """Return the records that stay in memory: of evenly spaced rounds, and of the newest one."""
        rounds = self._rounds
        return tuple(
            one
            for one in records
            if is_kept(one.point.round, rounds, LIVE_ROUNDS) or one.point.round == rounds - 1
        )

    def __str__(self) -> str:
        """Return `1 h 12 min of 2 h 0 min, 35 rounds`."""
        spent_s = min(self.elapsed_s, self._for_s)
        return f"{duration(spent_s)} of {duration(self._for_s)}, {counted(self._rounds, 'round')}"


# ---------------------------------------------------------------- before points are measured


LISTEN_S = 0.5
PATIENCE_S = 10.0


def preload(plan: Plan, mailbox: Mailbox[ToAgent, ToSweep], within_s: float) -> tuple[str, ...]:
    """Have all agents preload imports (half of a short run), and wait. Return notes for the user. The widest plain
    loop of each framework stands for its points, because an exchange needs ports and servers first.
    Raises Interrupted on a signal."""
    cells = [cell for cell in plan.cells if cell.strategy not in plan.missing]
    widest: dict[str, Point] = {}
    for cell in cells:
        name = frameworks.load(cell.strategy).baseline
        if frameworks.named(name).preload and (name not in widest or cell.world_size > widest[name].world_size):
            widest[name] = replace(cell, strategy=name, kind="solo", options={})
    wanted: dict[int, list[Task]] = defaultdict(list)
    for point in widest.values():
        tasks = rank_tasks(
            point, slots_of(point, plan.slots), (), plan.network(point).places,
            attempt=0, retry=0, seed=plan.config.seed, clocks=Clocks(), logs="",
            malloc=plan.config.malloc, fresh=plan.config.fresh_workers,
        )  # fmt: skip
        for task in tasks:
            wanted[task.launch_rank].append(task)
    names = tuple(dict.fromkeys(cell.strategy for cell in cells))
    for rank, tasks_here in wanted.items():
        mailbox.order([rank], Preload(tasks=tuple(tasks_here), strategies=names))
    answers = mailbox.answers(Preloaded, wanted.keys(), within_s) if wanted else {}
    fresh = dict.fromkeys(name for answer in answers.values() for name in answer.fresh)
    return tuple(
        f"{name}: its import initialises CUDA, so each worker starts fresh, seconds later" for name in fresh
    )


def listen(plan: Plan, mailbox: Mailbox[ToAgent, ToSweep]) -> None:
    """Have all agents measure idle traffic, if points cross hosts. Raises Interrupted on a signal."""
    if len(plan.hosts) > 1:
        mailbox.order_all(Listen(seconds=LISTEN_S))
        mailbox.answers(Listened, range(mailbox.size), LISTEN_S + PATIENCE_S)


# ---------------------------------------------------------------- rounds beyond those of the plan

# The sweep and the number of its rounds -> whether another round follows.
More = Callable[["Sweep", int], bool]


def until_narrow(sweep: Sweep, rounds: int) -> bool:
    """Ask for rounds until half of every interval is at most `--target-ci`, up to `--max-rounds`."""
    config = sweep.plan.config
    target = target_half_width(config)
    if target is None or rounds >= config.max_rounds:
        return False
    found = [row.efficiency for row in sweep.rows if row.efficiency is not None]
    return any(one.half_width is None or one.half_width > target for one in found)


# ---------------------------------------------------------------- sweep


# A view learns at most this often how far the sweep is: summing up windows costs time.
TELL_S = 0.5


class Sweep:
    """The main loop: it measures the points of a plan that `records` lack, and appends their records."""

    def __init__(
        self,
        plan: Plan,
        mailbox: Mailbox[ToAgent, ToSweep],
        store: Store,
        view: View,
        *,
        records: Sequence[PointRecord] = (),
        more: More | None = None,
        summaries: Sequence[PointSummary] = (),
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self.plan, self.mailbox, self.store, self.view = plan, mailbox, store, view
        self.records = list(records)
        self.burn_in = BurnIn(plan.burn_in_s, clock, summaries) if plan.burn_in_s else None
        self._more: More = more or self.burn_in or until_narrow
        self._clock, self._unix_clock = clock, unix_clock
        self._analyser = Analyser(records)
        self._keys = {record.point.key for record in records}
        # A burn-in goes on with new rounds.
        self._done = set[str]() if self.burn_in else done_keys(records)
        self._earlier = self._total = 0  # points of earlier rounds whose keys are forgotten; all that are planned
        self._before = self._base = self._count  # points before this run, and before the running epoch
        self._step_s: float | None = None  # of the longest step so far
        self._each_s = 0.0  # estimate of a point, by:
        self._basis: tuple[float | None, dict[frozenset[str], Sharing]] | None = None
        self._begun_s = self._told_s = clock()
        self._soak_s = self._soaked_s = 0.0  # planned soak of the group; soaks of epochs that are over
        self._epoch: Epoch | None = None
        self._quiet = Quiet()
        self._gpus: dict[frozenset[str], Sharing] = {}  # by the cells of a group
        logs = store.folder.resolve() / "logs"
        self._bench = Bench(
            plan=plan, mailbox=mailbox, logs=str(logs), number=lambda: next(self._numbers), note=view.note,
            keep=lambda state: self._append(self._emulating(record_so_far(state, now_s=clock()))),
            clock=clock, unix_clock=unix_clock,
        )  # fmt: skip
        # After the numbers of existing logs: a resumed run appends to no older log.
        numbers = (log.name.partition("-")[0] for log in logs.glob("[0-9]*-*"))
        self._numbers = count(1 + max((int(number) for number in numbers if number.isdecimal()), default=0))

    @property
    def rows(self) -> Sequence[Row]:
        """The rows of the points so far."""
        return self._analyser.rows()

    @property
    def _count(self) -> int:
        return self._earlier + len(self._keys)

    def run(self) -> None:
        """Measure everything. Raises Interrupted after a signal, StoreError if a record cannot be kept."""
        self.begin()
        number = self.burn_in.first_round if self.burn_in else 0
        planned = max(self.plan.rounds, number)
        for planned_number in range(number, planned):
            self._allow(planned_number)
        while number < planned or self._more(self, number):
            if number == planned:
                self._allow(planned)
                planned += 1
                if self.burn_in is None:
                    self.view.extended(len(self.plan.cells) * planned)
            if self.burn_in:  # keys of earlier rounds do not occur again
                self._earlier += len(self._keys)
                self._keys.clear()
            listen(self.plan, self.mailbox)
            for index, group in enumerate(self.plan.round(number)):
                self._measure(group, len(self.plan.cells) * planned, index)
            number += 1
            if self.plan.config.script and all(isinstance(one.outcome, Failed) for one in self.records):
                self.view.note("the script failed in all points: other rounds are left out")
                break

    def begin(self) -> None:
        for said in preload(self.plan, self.mailbox, self._bench.clocks.startup_s):
            self.view.note(said)
        self._begun_s = self._clock()
        if self.burn_in:
            self.burn_in.begin()

    def _allow(self, number: int) -> None:
        """Add to the retry budget what a round may spend."""
        lacking = (
            group
            for group in self.plan.round(number)
            if any(point.key not in self._done for point in group.points)
        )
        self._quiet.allow(sum(map(self.plan.seconds, lacking)))

    def measure(self, group: Group, total: int, *, at_once: bool = False) -> tuple[PointRecord, ...]:
        """Measure a group that is in no round of the plan, of `total` points in all, and keep its records.
        `at_once`: points share no rank and are measured at the same time."""
        if not at_once:
            self._quiet.allow(self.plan.seconds(group))
        return self._measure(group, total, 0, at_once=at_once)

    def _measure(self, group: Group, total: int, index: int, *, at_once: bool = False) -> tuple[PointRecord, ...]:
        self._total = total
        self._soak_s = self.plan.soak_of_s(group) if group.points[0].round == SOAK_ROUND else 0.0
        found = []
        for record in self._records_of(group, index, at_once=at_once):
            self._keys.add(record.point.key)
            number = self._count
            self._append(record)
            if record.point.workload.script:  # its batch follows from all records
                self._analyser = Analyser(self.records)
            else:
                self._analyser.add(record)
            self.view.advanced(self._ahead())
            self.view.finished(record, self._analyser.rows(), number, self._total)
            found.append(record)
        return tuple(found)

    # ------------------------------------------------------------ how far it is

    def _ahead(self) -> Ahead:
        if self.burn_in:
            return self.burn_in.ahead
        running, soaks_s = (self._epoch.done, self._epoch.soaked_s) if self._epoch else (0.0, 0.0)
        done, soaked_s = max(self._count, self._base + running), self._soaked_s + soaks_s
        measured_s = self._clock() - self._begun_s - soaked_s
        return ahead(
            done, self._total, done - self._before, measured_s,
            planned_s=self._planned_s(), soaked_s=soaked_s, soak_s=self._soaked_s + self._soak_s,
        )  # fmt: skip

    def _planned_s(self) -> float:
        """Seconds of a point by the plan: of the model's operations, or of the longest step that ran so far."""
        for attempt in self._epoch.attempts if self._epoch else ():
            for warm in (rank.warmup[SINGLE_STEPS - 1 : SINGLE_STEPS] for rank in attempt.state.ranks):
                self._step_s = max((self._step_s or 0.0, *(window.seconds / window.steps for window in warm)))
        basis = self._step_s, dict(self._gpus)
        if self._basis != basis:
            plan, seconds = self.plan, 0.0
            for group in () if plan.config.epochs else plan.groups:
                of = self._gpus.get(group.cells, Sharing())
                seconds += plan.seconds(group, self._step_s or None, fits=of.fits, seats_apart=of.seats_apart)
            self._basis, self._each_s = basis, seconds / len(plan.cells)
        return self._each_s

    def _tell(self) -> None:
        now_s = self._clock()
        if now_s >= self._told_s + TELL_S:
            self._told_s = now_s
            self.view.advanced(self._ahead())

    # ------------------------------------------------------------ the run's file

    def _append(self, record: PointRecord) -> None:
        if record.point.workload.script:
            *_, record = settled((*self.records, record))
        if self.burn_in is None or self.burn_in.keeps(record):
            self._write(record)
        self.records[:] = joined((*self.records, record))
        if self.burn_in is None:
            return
        if record.ended:
            self._write(self.burn_in.summary(record))
        if len(kept := self.burn_in.thinned(self.records)) < len(self.records):
            self.records[:] = kept
            self._analyser = Analyser(kept)

    def _write(self, line: Line) -> None:
        if said := self.store.append(line):
            self.view.note(said)
            self._bench = replace(self._bench, logs=str(self.store.folder.resolve() / "logs"))

    # ------------------------------------------------------------ points side by side

    def _records_of(self, group: Group, index: int, *, at_once: bool) -> Iterator[PointRecord]:
        """Yield records of the points of a group that are lacking, first of those that cannot be measured."""
        able, is_warm = [], group.cells in self._gpus
        traced = traced_keys(group.points, self.records) if self.plan.config.trace else frozenset()
        on_gpus = group.side_by_side and group.points[0].hardware.device == "cuda"
        number, gpus = index if group.side_by_side else None, Sharing() if on_gpus else None
        if group.side_by_side and any(point.key in self._done for point in group.points):
            number = self._new_epoch(group)  # points of the group were measured before, in other turns
        for point in group.points:
            if point.key in self._done:
                continue
            if reason := self.plan.missing.get(point.strategy):
                yield self._unmeasured(point, Failed(cause="missing", message=reason))
            elif reason := self.plan.refused.get(point.cell):
                yield self._unmeasured(point, Failed(cause="refused", message=reason))
            else:
                able.append(point)
        while able:
            gpus = gpus and self._gpus.get(group.cells, gpus)
            current = Epoch(
                self._bench, self._quiet, group, able, index, number,
                gpus=gpus, is_warm=is_warm, traced=traced, at_once=at_once,
            )  # fmt: skip
            self._wait_for(current)
            ended_s = self._clock()
            yield from (self._emulating(record_of(state, ended_s=ended_s)) for state in current.states())
            able = current.left
            if current.gpus is not None:
                self._gpus[group.cells], number = current.gpus, self._new_epoch(group)

    def _unmeasured(self, point: Point, failed: Failed) -> PointRecord:
        traits = frameworks.load(point.strategy).traits(point.strategy)
        return PointRecord(
            point=point, outcome=failed, ranks=(), started_unix_s=self._unix_clock(), wall_s=0.0,
            startup_s=0.0, measured_s=0.0, synchronous=traits.synchronous,
        )  # fmt: skip

    def _wait_for(self, current: Epoch) -> None:
        self._soaked_s += self._epoch.soaked_s if self._epoch else 0.0
        self._epoch, self._base = current, self._count
        self.view.began(current.active.state, self._count + 1)
        try:
            while current.go_on():
                self._tell()
                self.view.progress(current.active.state)
                for _, said in self.mailbox.news():
                    if isinstance(said, Heard):
                        current.hear(said)
                if self.mailbox.signalled is not None:
                    raise Interrupted(self.mailbox.signalled)
                self.view.progress(current.active.state)
        except SilentRanks as error:
            current.lose(error)
            measured = done_keys(self.records)
            for state in current.states():
                if state.failure is not None and state.point.key not in measured:
                    self._append(self._emulating(record_of(state, ended_s=self._clock())))
            raise
        finally:
            grace_s = 2.0 if self.mailbox.signalled is None else INTERRUPT_GRACE_S
            current.release("the point is over", grace_s=grace_s)

    def _emulating(self, record: PointRecord) -> PointRecord:
        return replace(record, emulation=self.plan.emulation(record.point))

    def _new_epoch(self, group: Group) -> int:
        """The number of an epoch in its round that no other one has."""
        number = group.points[0].round
        taken = (one.epoch for one in self.records if one.point.round == number and one.epoch is not None)
        return 1 + max((len(self.plan.groups), *taken))
