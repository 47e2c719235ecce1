"""Points that live side by side: started together, warmed up one by one, measured in turns, ended together.

    start all         each point is stopped (SIGSTOP) once it is ready; GPUs hold only as many as fit
    warm up           one after the other; then the GPUs, until clock, power and temperature are steady
    blocks            one turn of each point in random order; disturbed turns are repeated (turns.py)
    account           measured windows are kept
    soak              in the first round some points take turns for longer
    inspect           uncounted steps
    finish all

This course is a generator that yields while it waits; the sweep resumes it after each report. All windows of a
point alone are one turn. A training to an accuracy has neither warm-up nor blocks (attempt.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from statistics import fmean, median

from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import SilentRanks
from scaling.plan import defaults
from scaling.plan.groups import GPU_PART, Group, held_bytes, memory_order, seats
from scaling.plan.placement import most_of_a_host
from scaling.records.events import Window
from scaling.records.messages import Heard, Paused
from scaling.records.point import Point, Record
from scaling.records.run import LATER_WINDOWS
from scaling.records.task import Finish, Rest
from scaling.records.telemetry import Sample
from scaling.sweep.attempt import Attempt, Bench
from scaling.sweep.outcome import retries_of
from scaling.sweep.state import ChildState, PointState, part
from scaling.sweep.turns import Quiet, Turn, Turns, set_aside
from scaling.sweep.warmup import pace_of
from scaling.text import counted

# seconds between two turns
ORDERS_S = 0.03


def blocks_that_fit(states: Iterable[PointState]) -> int:
    """Return the number of windows of each of these warm points: of turns like the last window of the warm-up, an
    uncounted step, and orders. Measured windows have no say in it."""
    slowest = [max((rank.warmup[-1] for rank in state.ranks), key=lambda one: one.seconds) for state in states]
    turns_s = (window.seconds * (window.steps + 1) / window.steps + ORDERS_S for window in slowest)
    return defaults.turns_in_round(fmean(turns_s))


# ---------------------------------------------------------------- soak
#
# The first seconds of a process do not show its speed ten seconds later. `analysis/measured/controls.py` compares
# the windows of the soak with the measured ones. No figure counts them.


SOAK_ROUND = 0
# A point that soaks: all its ranks, or one alone.
Soaked = tuple[Attempt, int | None]


def soak_turns(measured: Sequence[Sequence[Window]], soak_s: float) -> int:
    """Return the turns of each point: about `soak_s` seconds by the measured windows of all, with a minimum. A
    turn is one step for a common start, and windows like these."""
    turn_s = (median(one.seconds * (LATER_WINDOWS + 1 / one.steps) for one in windows) for windows in measured)
    return max(defaults.FEWEST_TURNS, round(soak_s / fmean(turn_s)))


def soak_chosen(attempts: Sequence[Attempt]) -> list[Soaked]:
    """Choose the widest exchange of each strategy whose efficiency is claimed, on real devices that wait for each
    other, with its plain loop, which runs on its first device."""
    widest: dict[str, Attempt] = {}
    for one in attempts:
        state, point = one.state, one.state.point
        is_first = point.kind == "exchange" and point.round == SOAK_ROUND and point.workload.trains
        claims = state.synchronous and not state.crowding and point.hardware.device != "emulated"
        before = widest.get(point.strategy)
        if is_first and claims and (before is None or point.world_size > before.state.point.world_size):
            widest[point.strategy] = one
    found: dict[int, Soaked] = {}
    for exchange in widest.values():
        plains = (one for one in attempts if _is_behind(one.state.point, exchange.state.point))
        if plain := next(plains, None):
            found[exchange.attempt] = exchange, None
            found[plain.attempt] = plain, 0 if plain.state.point.kind == "each" else None
    return list(found.values())


def _is_behind(plain: Point, exchange: Point) -> bool:
    """Whether this point is the plain loop of the exchange's efficiency."""
    if not plain.is_alone or plain.strategy != frameworks.load(exchange.strategy).baseline:
        return False
    return plain.workload.alone() == exchange.reference.alone() and plain.hardware == exchange.hardware


# ---------------------------------------------------------------- GPUs that points share
#
# As many points as fit are started together, and seats run at the same time if that is alike.

# Seats share something, as power or PCIe, if their steps are slower than this at the same time.
ALIKE = 0.005
# Processes that a host starts at the same time: the driver makes contexts one after another (dmlc/xgboost issue
# 2938, rapidsai/dask-cuda issue 198). More, once it is known that they take START_PART of the start-up timeout.
STARTED, START_PART = 8, 1 / 4
# The first two blocks of the first round: seats one after the other, then at the same time.
ALONE, AT_ONCE = 0, 1


class Sharing(Record, frozen=True, kw_only=True):
    """What earlier points of a group have shown; None if that is unknown.

    `fits`: how many of its points GPUs hold at the same time.
    `slowed`: by which fraction seats are slower at the same time.
    `start_s`: seconds that each process of a host takes to start, with the others of its group.
    """

    fits: int | None = None
    slowed: float | None = None
    start_s: float | None = None

    def started_at_once(self, startup_s: float) -> int:
        """Return how many processes a host starts at the same time; `startup_s` is the timeout of one."""
        return max(STARTED, int(START_PART * startup_s / self.start_s)) if self.start_s else STARTED

    @property
    def seats_apart(self) -> bool:
        """Whether seats run one after the other, because they share something."""
        return self.slowed is not None and self.slowed > ALIKE


def startable(points: Sequence[Point], memory_bytes: int) -> int:
    """Return how many of these points to start before any has computed: they may hold half of a GPU's memory."""
    if not memory_bytes:
        return len(points)
    return max(1, int(memory_bytes / 2 // max(map(held_bytes, points))))


Stood = Mapping[int, Paused]


def fitting(state: PointState, cold: Iterable[Stood], stood: Stood, started: int, memory_bytes: int) -> int | None:
    """Return how many points GPUs of `memory_bytes` hold, at least 1; None if readings are missing.

    `started` points hold what `stood` shows. One point, with this state, has computed: one at a time does so. It
    now holds more than before, when all points held what `cold` shows. Each point will hold as much as it.
    """

    def most(readings: Iterable[Sample]) -> int:
        return max((one.memory_used_bytes or 0 for one in readings), default=0)

    def shown(of: Stood) -> int:
        return most(chain.from_iterable(one.gpus for one in of.values()))

    held_bytes, cold_bytes = shown(stood), max(map(shown, cold), default=0)
    computing_bytes = most(one for rank in state.ranks for window in rank.warmup for one in window.gpus)
    if not held_bytes or not memory_bytes:
        return None
    spare_bytes = GPU_PART * memory_bytes - max(0, computing_bytes - held_bytes)
    cold_bytes = min(cold_bytes or held_bytes, held_bytes)
    each_bytes = cold_bytes / started + held_bytes - cold_bytes
    return max(1, int(spare_bytes // each_bytes))


def slowed(ranks: Sequence[ChildState]) -> float | None:
    """Return by which fraction the median seat was slower in block AT_ONCE than ALONE; None if unknown."""
    by_block = [{window.index: window.seconds / window.steps for window in rank.windows} for rank in ranks]
    changes = [step_s[AT_ONCE] / step_s[ALONE] - 1 for step_s in by_block if {ALONE, AT_ONCE} <= step_s.keys()]
    return median(changes) if changes else None


# ---------------------------------------------------------------- epoch


class Epoch:
    """A run of points of a group side by side, or of one alone.

    `index`: of the group in its round. `number`: of the epoch in its round; None for a point alone.
    `gpus`: how the points share GPUs, which are warmed up once for all; None elsewhere. `is_warm`: they are warm.
    `traced`: keys of points that end with profiled steps.
    `at_once`: points share no rank and no server, and are measured at the same time.
    """

    def __init__(
        self,
        bench: Bench,
        quiet: Quiet,
        group: Group,
        points: Sequence[Point],
        index: int,
        number: int | None,
        *,
        gpus: Sharing | None = None,
        is_warm: bool = False,
        traced: frozenset[str] = frozenset(),
        at_once: bool = False,
    ) -> None:
        plan, config, first = bench.plan, bench.plan.config, group.points[0]
        self._bench, self._number, self._traced, self._at_once = bench, number, traced, at_once
        self._is_shared, self.gpus = number is not None, gpus
        self._seed = f"{config.seed}/{first.round}/{index if self._is_shared else None}"
        # Points that are measured at once would disturb each other's canaries.
        self._canary = first.hardware.device == "cpu" and first.regime is None and not at_once
        # If points take turns and no number of windows is given, the time of a step decides.
        self._blocks = (config.windows or 0) if self._is_shared else 1
        self._windows = 1 if self._is_shared else config.windows or defaults.MOST_TURNS
        self._window_s = defaults.window_s(config, group.points)
        self._warm_up_s = 0.0 if is_warm and config.warm_up_s is None else config.warm_up_s
        self._soak_s = plan.soak_s if self._is_shared else 0.0
        self._turns = Turns(
            quiet,
            windows=self._windows,
            planned_s=plan.seconds(group) if self._canary else 0.0,
            deadline_s=inf if self._is_shared else bench.clocks.deadline_s,
            clock=bench.clock,
            probe=self._probe,
        )
        self._soak_begun_s: float | None = None
        self._soaked_s = 0.0
        self._stopped: set[int] = set()
        self.attempts: list[Attempt] = []
        self._most, room = 0, len(points)  # points that were started together
        self._waiting = list(points)  # points that GPUs have no room for yet
        self._due: list[Point] = []  # points that start once those before are ready
        if gpus:
            self._waiting.sort(key=memory_order, reverse=True)
            room = gpus.fits or startable(points, plan.gpu_memory_bytes)
        self._admit(room)
        self.active = self.attempts[0]
        self._way = self._run()

    def _admit(self, count: int) -> None:
        admitted, self._waiting = self._waiting[:count], self._waiting[count:]
        self._due += admitted
        self._most = max(self._most, len(self.attempts) + len(self._due))
        self._start_some()

    def _start_some(self) -> None:
        """Start all points that are due; on GPUs only as many as hosts start at the same time, at least one."""
        count = len(self._due)
        if self.gpus:
            at_once = self.gpus.started_at_once(self._bench.clocks.startup_s)
            sums = [most_of_a_host(self._due[: number + 1], self._bench.plan.slots) for number in range(count)]
            count = max(1, sum(processes <= at_once for processes in sums))
        self._group, self._due = [self._attempt(point) for point in self._due[:count]], self._due[count:]
        self.attempts += self._group

    def _learn_start(self) -> None:
        """Learn from the group that has started; tell it once, if others wait."""
        ready = [one.state for one in self._group if one.state.ready_at_s]
        if not self.gpus or not ready:
            return
        took_s = max(one.ready_at_s - one.started_s for one in ready)
        processes = most_of_a_host([one.point for one in ready], self._bench.plan.slots)
        if self.gpus.start_s is None and self._due:
            self._bench.note(
                f"workers start in groups, since a GPU driver makes contexts one after another: {processes} "
                f"on a host took {took_s:.1f} s, and {counted(len(self._due), 'point')} will follow"
            )
        self.gpus = replace(self.gpus, start_s=max(self.gpus.start_s or 0.0, took_s / processes))

    def _attempt(self, point: Point, retries: tuple[str, ...] = ()) -> Attempt:
        is_traced = point.key in self._traced
        return Attempt(self._bench, point, retries, self._number, is_traced=is_traced)

    def hear(self, said: Heard) -> None:
        for attempt in self.attempts:
            if attempt.attempt == said.attempt:
                attempt.hear(said)

    def go_on(self) -> bool:
        """Take the steps that are due; return False when the epoch is over."""
        return next(self._way, "over") is None

    @property
    def done(self) -> float:
        """The number of points that are measured, with parts of those that run."""
        return sum(part(attempt.state) for attempt in self.attempts)

    @property
    def soaked_s(self) -> float:
        """Seconds of the soak so far."""
        begun_s = self._soak_begun_s
        return self._soaked_s if begun_s is None else self._bench.clock() - begun_s

    def states(self) -> list[PointState]:
        """Return the points that are over, without those to be measured again."""
        return [attempt.final for attempt in self.attempts if not self._is_crowded_out(attempt)]

    @property
    def left(self) -> list[Point]:
        """The points that GPUs had no room for. Another epoch measures them, of half as many points if any point
        ran out of memory."""
        crowded = [attempt.state.point for attempt in self.attempts if self._is_crowded_out(attempt)]
        if crowded and self.gpus:
            self.gpus = replace(self.gpus, fits=(self._most + 1) // 2)
            self._bench.note(
                f"memory ran out on GPUs that held {counted(self._most, 'point')}: "
                f"{counted(len(crowded), 'point')} will be measured again, {self.gpus.fits} at a time"
            )
        return [*crowded, *self._waiting]

    def _is_crowded_out(self, attempt: Attempt) -> bool:
        """Whether a point ran out of memory beside other points on GPUs."""
        failure = attempt.final.failure
        return self.gpus is not None and self._most > 1 and failure is not None and failure.cause == "oom"

    def lose(self, silent: SilentRanks) -> None:
        """Fail all points in which one of these launch ranks takes part."""
        for attempt in self.attempts:
            attempt.lose(silent)

    def release(self, reason: str, *, grace_s: float) -> None:
        for attempt in self.attempts:
            attempt.release(reason, grace_s=grace_s)

    # ------------------------------------------------------------ course

    @property
    def _running(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if not attempt.fails]

    def _run(self) -> Iterator[None]:
        yield from self._start()
        if self.attempts[0].state.point.regime:
            self.active = attempt = self.attempts[0]
            while not attempt.fails and attempt.train():
                yield from self._answer(attempt)
        else:
            yield from self._measured_at_once() if self._at_once else self._in_turn()
            yield from self._account()
            yield from self._soak()
            for attempt in self._running:
                yield from self._inspect(attempt)
        for attempt in self._running:
            attempt.tell(Finish())
        while not all(attempt.over for attempt in self.attempts):
            yield

    def _start(self) -> Iterator[None]:
        """Wait until all points are ready. A failure that may be chance is retried once."""
        while True:
            for index, attempt in enumerate(self.attempts):
                if attempt.over and attempt.fails and (retries := retries_of(attempt.state)):
                    self._bench.note(f"{attempt.state.point.label}: {retries[0]}; trying once more")
                    self.attempts[index] = self.active = self._attempt(attempt.state.point, retries)
                elif attempt.attempt not in self._stopped and attempt.waits and self._stops(attempt):
                    self._stopped.add(attempt.attempt)
                    attempt.pause()
            if all((attempt.waits and not attempt.moves) or attempt.over for attempt in self.attempts):
                self._learn_start()
                if not self._due:
                    return
                self._start_some()
            yield

    def _stops(self, attempt: Attempt) -> bool:
        """Whether it must stand still: others have turns, its ranks run one by one, or its cores are probed."""
        return self._is_shared or self._canary or attempt.state.point.kind == "each"

    def _measured_at_once(self) -> Iterator[None]:
        ways = [chain(self._warm_up(one), self._measure(self._turns_of([one], 0))) for one in self._running]
        while ways := [way for way in ways if next(way, "over") is None]:
            yield

    def _in_turn(self) -> Iterator[None]:
        yield from self._warm_up_all()
        if not self._blocks and self._running:
            self._blocks = blocks_that_fit(attempt.state for attempt in self._running)
            for attempt in self._running:
                attempt.state = replace(attempt.state, expected=self._blocks)
        yield from self._measure(chain.from_iterable(map(self._shuffled, range(self._blocks))))

    def _shuffled(self, block: int) -> Iterator[Turn]:
        order = self._running
        random.Random(f"{self._seed}/{block}").shuffle(order)
        return self._turns_of(order, block)

    def _account(self) -> Iterator[None]:
        for attempt in self._running:
            attempt.account()
        for attempt in self._running:
            while not attempt.is_accounted and not attempt.fails:
                yield
            if not attempt.fails:
                self._bench.keep(attempt.so_far)

    def _soak(self) -> Iterator[None]:
        self._soak_begun_s = self._bench.clock()
        found = soak_chosen(self._running) if self._soak_s else []
        measured = [attempt.state.ranks[rank or 0].windows for attempt, rank in found]
        for block in range(soak_turns(measured, self._soak_s) if found else 0):
            random.Random(f"{self._seed}/later {block}").shuffle(found)
            first = LATER_WINDOWS * (block + 1)
            for self.active, rank in found:
                if not self.active.fails:
                    self.active.measure(LATER_WINDOWS, first, rank, canary=self._canary, soaks=True)
                    yield from self._answer(self.active)
                    yield from self._leave_off(self.active)
        self._soaked_s, self._soak_begun_s = self.soaked_s, None

    def _inspect(self, attempt: Attempt) -> Iterator[None]:
        self.active = attempt
        for rank in range(len(attempt.state.ranks)) if attempt.state.point.kind == "each" else (None,):
            if not attempt.fails and attempt.inspect(rank):
                yield from self._answer(attempt)
                yield from self._stop(attempt)

    # ------------------------------------------------------------ warm-up

    def _warm_up_all(self) -> Iterator[None]:
        warm: list[Attempt] = []
        held = [dict(attempt.stood) for attempt in self._running]
        while cold := [attempt for attempt in self._running if attempt not in warm]:
            yield from self._warm_up(cold[0])
            warm.append(cold[0])
            if self.gpus and self.gpus.fits is None and not cold[0].fails:
                yield from self._make_room(self.gpus, cold[0], held)
        if self.gpus and self._running:
            widest = max(self._running, key=lambda attempt: memory_order(attempt.state.point))
            yield from self._warm_up(widest, warms_gpus=True)

    def _make_room(self, gpus: Sharing, first: Attempt, cold: Sequence[Stood]) -> Iterator[None]:
        """Keep as many points as fit by the memory of the first one that has computed, or start more. `cold`: what
        GPUs held before."""
        running, memory_bytes = self._running, self._bench.plan.gpu_memory_bytes
        fits = fitting(first.state, cold, first.stood, len(running), memory_bytes) or len(running)
        self.gpus = replace(gpus, fits=fits)
        surplus = [attempt for attempt in running if attempt is not first][fits - 1 :]
        for attempt in surplus:
            attempt.release("GPUs have no room for it beside others")
        while not all(attempt.over for attempt in surplus):
            yield
        self.attempts = [attempt for attempt in self.attempts if attempt not in surplus]
        self._waiting = [*(attempt.state.point for attempt in surplus), *self._waiting]
        self._admit(fits - len(self._running))
        yield from self._start()

    def _warm_up(self, attempt: Attempt, *, warms_gpus: bool = False) -> Iterator[None]:
        self.active = attempt
        pace = pace_of(
            attempt.state.point, self._window_s, takes_turns=self._is_shared, warm_up_s=self._warm_up_s,
            warms_gpus=warms_gpus,
        )  # fmt: skip
        while not attempt.fails and attempt.warm_up(pace):
            yield from self._answer(attempt)
        yield from self._leave_off(attempt)

    # ------------------------------------------------------------ measuring

    def _turns_of(self, order: Sequence[Attempt], block: int) -> Iterator[Turn]:
        first = block * self._windows
        return (Turn(attempt, rank, first) for attempt in order for rank in self._seats(attempt, block))

    def _measure(self, turns: Iterable[Turn]) -> Iterator[None]:
        for turn in self._turns.before(turns):
            if turn is None:
                yield
                continue
            self.active = attempt = turn.attempt
            if not attempt.fails:
                attempt.measure(self._windows, turn.first, turn.rank, canary=self._canary)
                yield from self._answer(attempt)
                yield from self._leave_off(attempt, lingers=attempt.lingers)
            self._turns.after(turn)

    def _probe(self, turn: Turn) -> Iterator[None]:
        self.active = turn.attempt
        turn.attempt.probe(turn.launch_ranks)
        yield from self._stand(turn.attempt)

    def _seats(self, attempt: Attempt, block: int) -> Sequence[int | None]:
        """Ranks that run alone, one after the other; None is all ranks at once."""
        point = attempt.state.point
        if point.kind != "each" or (self.gpus and not self._seats_apart(attempt, self.gpus, block)):
            return (None,)
        # Each round begins with other seats, because its first block is colder.
        return seats(len(attempt.state.ranks), block + point.round, self._blocks)

    def _seats_apart(self, attempt: Attempt, gpus: Sharing, block: int) -> bool:
        """Whether seats on GPUs run one after the other. The first round tries both ways."""
        if gpus.slowed is None and block > AT_ONCE and (found := slowed(attempt.state.ranks)) is not None:
            self.gpus = gpus = replace(gpus, slowed=found)
            if gpus.seats_apart:
                for number, rank in enumerate(attempt.state.ranks):
                    attempt.keep(number, *set_aside(rank, [AT_ONCE]))
                self._bench.note(
                    f"{attempt.state.point.label}: steps are {100 * found:.1f} % slower when all GPUs compute: "
                    "they share power, PCIe or cores, so each GPU is measured alone"
                )
        return gpus.seats_apart or (gpus.slowed is None and block == ALONE)

    # ------------------------------------------------------------ waiting

    def _answer(self, attempt: Attempt) -> Iterator[None]:
        while not attempt.waits and not attempt.fails:
            yield

    def _leave_off(self, attempt: Attempt, *, lingers: bool = False) -> Iterator[None]:
        # Points on GPUs give back memory that they do not use.
        if self._stops(attempt) and (lingers or self.gpus) and not attempt.fails:
            attempt.tell(Rest())
            yield from self._answer(attempt)
        yield from self._stop(attempt)

    def _stop(self, attempt: Attempt) -> Iterator[None]:
        """Wait until all of it stands still; otherwise the next turn would begin earlier on some hosts."""
        if self._stops(attempt):
            attempt.pause()
            yield from self._stand(attempt)

    def _stand(self, attempt: Attempt) -> Iterator[None]:
        while attempt.moves and not attempt.fails:
            yield
