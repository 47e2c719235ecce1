"""Rank 0: for each epoch of points dispatch, collect, append; further rounds, Ctrl-C.

One thread, never blocking: each turn takes what agents sent, folds it, answers, lets the view look.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from scaling import frameworks
from scaling.analysis.table.incremental import Analyser
from scaling.errors import Interrupted, SilentRanks
from scaling.plan import defaults, placement
from scaling.plan.groups import Group
from scaling.plan.placement import slots_of
from scaling.plan.plan import Plan
from scaling.plan.tasks import rank_tasks
from scaling.quiet.turns import Quiet
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
from scaling.records.other_code import of_revision, revision
from scaling.records.point import Point
from scaling.records.run import PointRecord, Prediction, Question
from scaling.records.store import Line, Store, done_keys, joined
from scaling.records.task import Clocks, Task
from scaling.sweep import inspection
from scaling.sweep.bench import Bench
from scaling.sweep.epoch import Epoch
from scaling.sweep.outcome import record_of, record_so_far
from scaling.sweep.turns import Course
from scaling.sweep.view.base import View
from scaling.transport.mailbox import Mailbox

# ---------------------------------------------------------------- registering
#
# Has the later points of a sweep predicted from the earlier ones, before any of them is measured.


class Asking(Protocol):
    """Questions that somebody else answers meanwhile."""

    def answers(self) -> tuple[Prediction, ...] | None:
        """One for each question, in their order; None until there are."""

    def stop(self) -> None:
        """Wait no longer. May be called again."""


# Of a run's folder.
Predictor = Callable[[Path, Sequence[Question]], Asking]


def prediction_questions(plan: Plan) -> tuple[Question, ...]:
    """The exchanges of the later stage, each once."""
    points = [point for group in plan.groups if plan.is_later(group) for point in group.points]
    return tuple(
        Question(point=replace(point, round=0), nodes=len({slot.host for slot in slots_of(point, plan.slots)}))
        for point in points
        if point.kind == "exchange" and point.strategy not in plan.missing and point.cell not in plan.refused
    )


def prediction_begun(plan: Plan, records: Iterable[PointRecord]) -> bool:
    """Whether any point of the later stage was tried already: what is said now would not be said before."""
    later = {point.cell for group in plan.groups if plan.is_later(group) for point in group.points}
    return any(record.point.cell in later for record in records)


def ask_prediction(
    predictor: Predictor, run: Path, asked: Sequence[Question], mailbox: Mailbox[ToAgent, ToSweep]
) -> tuple[Prediction, ...]:
    """Wait for the answers, in turn with this rank's agent. Raises Interrupted on a signal."""
    asking = predictor(run, asked)
    try:
        while (found := asking.answers()) is None:
            for _ in mailbox.news():
                pass
            if mailbox.signalled is not None:
                raise Interrupted(mailbox.signalled)
        return found
    finally:
        asking.stop()


def predictions_told(found: Iterable[Prediction]) -> Iterator[str]:
    """What is worth a line of each, and once what is noted of any."""
    for text in dict.fromkeys(text for one in found for text in one.notes):
        yield f"note: {text}"
    for one in found:
        name = _name(one.point)
        if one.refused or one.efficiency is None or one.efficiency_low is None or one.efficiency_high is None:
            yield f"not predicted: {name}: {one.refused}"
            continue
        ends = f"{100 * one.efficiency_low:.0f} to {100 * one.efficiency_high:.0f}"
        claim = "" if one.claimed else ", too wide to be claimed"
        yield f"PREDICTED, not measured: {name}: efficiency {100 * one.efficiency:.1f} % (80 %: {ends}{claim})"


def _name(point: Point) -> str:
    return f"{point.strategy} over {point.interconnect} N={point.world_size} batch {point.workload.batch_size}"


# ---------------------------------------------------------------- preloading
#
# What is done before points are measured: imports, once, and listening to idle networks before each round.


LISTEN_S = 0.5
PATIENCE_S = 10.0


def preload(plan: Plan, mailbox: Mailbox[ToAgent, ToSweep], within_s: float) -> None:
    """Have all agents import what they need, since half of a short run would else be imports, and wait until they
    have. Raises Interrupted on a signal."""
    wanted: dict[int, list[Task]] = defaultdict(list)
    for point in _samples(plan):
        slots = placement.slots_of(point, plan.slots)
        tasks = rank_tasks(
            point, slots, (), plan.network(point).places,
            attempt=0, retry=0, seed=plan.config.seed, clocks=Clocks(), logs="",
            malloc=plan.config.malloc, fresh=plan.config.fresh_workers, code=plan.code(point),
        )  # fmt: skip
        for task in tasks:
            wanted[task.launch_rank].append(task)
    names = tuple(dict.fromkeys(cell.strategy for cell in plan.cells if cell.strategy not in plan.missing))
    for rank, tasks_here in wanted.items():
        mailbox.order([rank], Preload(tasks=tuple(tasks_here), strategies=names))
    if wanted:
        mailbox.answers(Preloaded, wanted.keys(), within_s)


def listen(plan: Plan, mailbox: Mailbox[ToAgent, ToSweep]) -> None:
    """Have all agents count what their hosts' cards carry while nothing runs, where points cross hosts. Raises
    Interrupted on a signal."""
    if len(plan.hosts) > 1:
        mailbox.order_all(Listen(seconds=LISTEN_S))
        mailbox.answers(Listened, range(mailbox.size), LISTEN_S + PATIENCE_S)


def _samples(plan: Plan) -> Iterator[Point]:
    """Of each framework that can be imported beforehand, its plain loop on as many ranks as any point has: what an
    exchange asks of the environment there is none of yet, no port, no server."""
    by_baseline: dict[str, list[Point]] = defaultdict(list)
    for cell in plan.cells:
        if cell.strategy not in plan.missing:
            baseline = frameworks.load(cell.strategy).baseline
            by_baseline[of_revision(baseline, revision(cell.strategy))].append(cell)
    for baseline, cells in by_baseline.items():
        if frameworks.named(baseline).preload:
            largest = max(cells, key=lambda cell: cell.world_size)
            yield replace(largest, strategy=baseline, kind="solo", options={})


# ---------------------------------------------------------------- sweep


class Sweep:
    """Measures the points of a plan that `records` lack, in rounds, and appends their records."""

    def __init__(
        self,
        plan: Plan,
        mailbox: Mailbox[ToAgent, ToSweep],
        store: Store,
        view: View,
        *,
        records: Sequence[PointRecord] = (),
        target_half_width: float | None = None,
        predictor: Predictor | None = None,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self.plan = plan
        self.mailbox = mailbox
        self.store = store
        self.view = view
        self.records = list(records)
        self._keys = {record.point.key for record in records}
        self._analyser = Analyser(records)
        self._done = done_keys(records)
        self._target = target_half_width
        self._predictor = predictor
        self._clock = clock
        self._begun_s, self._points_so_far = clock(), 0
        self._unix_clock = unix_clock
        logs = store.folder.resolve() / "logs"
        # After those whose logs are there: a resumed run appends to no older log.
        self._attempt: int = max((int(log.name[:4]) for log in logs.glob("[0-9]" * 4 + "-*")), default=0)
        self._quiet = Quiet()
        self._bench = Bench(plan=plan, mailbox=mailbox, logs=str(logs), clock=clock, unix_clock=unix_clock)

    def run(self) -> None:
        """Measure everything. Raises Interrupted after a signal, StoreError when a record cannot be kept;
        whatever was kept before stays."""
        self.begin()
        for later in self.plan.stages:
            if later:
                self._register()
            self._run(later)

    def _run(self, later: bool) -> None:
        """All rounds of one stage."""
        number, planned = 0, self.plan.rounds
        for ahead in range(planned):
            self._allow(ahead, later)
        while number < planned:
            listen(self.plan, self.mailbox)
            for index, group in self._groups(number, later):
                self._measure(group, len(self.plan.cells) * planned, self._course(group, index))
            number += 1
            if number == planned and self._too_wide() and planned < self.plan.config.max_rounds:
                self._allow(planned, later)
                planned += 1
                self.view.extended(len(self.plan.cells) * planned)

    def _allow(self, number: int, later: bool) -> None:
        """Add to the retry budget what a round of a stage may spend."""
        groups = (group for _, group in self._groups(number, later))
        lacking = (group for group in groups if any(point.key not in self._done for point in group.points))
        self._quiet.allow(sum(map(self.plan.seconds, lacking)))

    def _groups(self, number: int, later: bool) -> list[tuple[int, Group]]:
        """Those of a round that a stage measures, with their places in the round."""
        every = enumerate(self.plan.round(number))
        return [(index, group) for index, group in every if self.plan.is_later(group) == later]

    def begin(self) -> None:
        """Have agents import what their workers will need."""
        preload(self.plan, self.mailbox, self._bench.clocks.startup_s)
        self._begun_s = self._clock()

    def measure(self, group: Group, total: int, *, at_once: bool = False) -> tuple[PointRecord, ...]:
        """Measure the points of a group that no round of the plan has, and keep their records; `total` is how many
        there are in all. `at_once`: they share no rank, and none waits for another."""
        if at_once:  # groups beside each other disturb each other's canaries
            return self._measure(group, total, replace(self._course(group, 0), at_once=True, canary=False))
        self._quiet.allow(self.plan.seconds(group))
        return self._measure(group, total, self._course(group, 0))

    def _measure(self, group: Group, total: int, course: Course) -> tuple[PointRecord, ...]:
        # Of which the time so far is: points of a group end together.
        self._points_so_far += sum(point.key not in self._done for point in group.points)
        found = []
        for record in self._records_of(group, course):
            self._keep(record, total)
            found.append(record)
        return tuple(found)

    def _register(self) -> None:
        """Write down what the later stage will do, as long as none of it was tried."""
        if self._predictor is None:
            return
        if prediction_begun(self.plan, self.records):
            self.view.note("not predicted: points of larger world sizes were measured before")
            return
        asked = prediction_questions(self.plan)
        try:
            found = ask_prediction(self._predictor, self.store.folder, asked, self.mailbox) if asked else ()
        except OSError as error:  # no room, no process: a reason to go on without
            self.view.note(f"not predicted: {error}")
            return
        for one in found:
            self._write(one)
        for line in predictions_told(found):
            self.view.note(line)

    def _keep(self, record: PointRecord, total: int) -> None:
        self._keys.add(record.point.key)
        number = len(self._keys)
        self._append(record)
        self._analyser.add(record)
        each_s = (self._clock() - self._begun_s) / self._points_so_far
        self.view.finished(record, self._analyser.rows(), number, total, (total - number) * each_s)

    def _append(self, record: PointRecord) -> None:
        self._write(record)
        self.records[:] = joined((*self.records, record))

    def _write(self, line: Line) -> None:
        if said := self.store.append(line):
            self.view.note(said)
            self._bench = replace(self._bench, logs=str(self.store.folder.resolve() / "logs"))

    def _too_wide(self) -> bool:
        """Whether any claimed efficiency's interval is wider than `--target-ci` allows."""
        if self._target is None:
            return False
        found = [row.efficiency for row in self._analyser.rows() if row.efficiency is not None]
        return any(one.half_width is None or one.half_width > self._target for one in found)

    # ------------------------------------------------------------ points side by side

    def _records_of(self, group: Group, course: Course) -> Iterator[PointRecord]:
        """Measure the points of a group that are lacking; those first that cannot be measured."""
        able = []
        for point in group.points:
            if point.key in self._done:
                continue
            if reason := self.plan.missing.get(point.strategy):
                yield self._unmeasured(point, "missing", reason)
            elif reason := self.plan.refused.get(point.cell):
                yield self._unmeasured(point, "refused", reason)
            else:
                able.append(point)
        if able:
            yield from self._measured(able, course)

    def _unmeasured(self, point: Point, cause: str, reason: str) -> PointRecord:
        failed = Failed(cause=cause, message=reason)
        traits = frameworks.load(point.strategy).traits(point.strategy)
        return PointRecord(
            point=point, outcome=failed, ranks=(), started_unix_s=self._unix_clock(), wall_s=0.0,
            startup_s=0.0, measured_s=0.0, synchronous=traits.synchronous,
        )  # fmt: skip

    def _measured(self, points: Sequence[Point], course: Course) -> list[PointRecord]:
        current = Epoch(
            self._bench,
            points,
            course,
            next_attempt=self._next_attempt,
            quiet=self._quiet,
            note=self.view.note,
            keep=lambda state: self._append(self._emulating(record_so_far(state, now_s=self._clock()))),
        )
        self.view.began(current.active.state, len(self._keys) + 1)
        try:
            while current.go_on():
                self.view.progress(current.active.state)
                for _, said in self.mailbox.news():
                    if isinstance(said, Heard):
                        current.hear(said)
                if self.mailbox.signalled is not None:
                    raise Interrupted(self.mailbox.signalled)
                self.view.progress(current.active.state)
        except SilentRanks as error:
            self._lose(current, error)
            raise
        finally:
            grace_s = 2.0 if self.mailbox.signalled is None else INTERRUPT_GRACE_S
            current.release("the point is over", grace_s=grace_s)
        # No other round has it, so that the time left does not follow from it.
        self._begun_s += current.soaked_s
        ended_s = self._clock()
        return [self._emulating(record_of(state, ended_s=ended_s)) for state in current.states()]

    def _lose(self, current: Epoch, error: SilentRanks) -> None:
        """Keep that points failed because ranks stand still; those that were measured stay measured."""
        current.lose(error.ranks, str(error))
        measured = done_keys(self.records)
        for state in current.states():
            if state.failure is not None and state.point.key not in measured:
                self._append(self._emulating(record_of(state, ended_s=self._clock())))

    def _emulating(self, record: PointRecord) -> PointRecord:
        return replace(record, emulation=self.plan.emulation(record.point))

    def _course(self, group: Group, index: int) -> Course:
        config, first = self.plan.config, group.points[0]
        assert config.window_s is not None
        shared, canary = group.side_by_side, first.hardware.device == "cpu" and first.regime is None
        return Course(
            number=self._epoch(group, index) if shared else None,
            blocks=config.windows if shared else 1,
            windows=1 if shared else config.windows or defaults.MOST_TURNS,
            window_s=config.window_s,
            seed=f"{config.seed}/{first.round}/{index if shared else None}",
            canary=canary,
            planned_s=self.plan.seconds(group) if canary else 0.0,
            soak_s=self.plan.soak_s if shared else 0.0,
            traced=inspection.traced(group.points, self.records) if config.trace else frozenset(),
        )

    def _epoch(self, group: Group, index: int) -> int:
        """The number of an epoch in its round; another one where points of the group are there already, which took
        no turns with those that were lacking."""
        if not any(point.key in self._done for point in group.points):
            return index
        number = group.points[0].round
        taken = (one.epoch for one in self.records if one.point.round == number and one.epoch is not None)
        return 1 + max((len(self.plan.groups), *taken))

    def _next_attempt(self) -> int:
        self._attempt += 1
        return self._attempt
