"""Points that live side by side: started together, warmed up one by one, measured in turns, ended together.

    start all         each point is stopped (SIGSTOP) once it is ready; GPUs hold only as many as fit
    warm up           one after the other; then the GPUs, until clock, power and temperature are steady
    blocks            one turn of each point in random order; disturbed turns are repeated (quiet/turns.py)
    account           measured windows are kept
    soak              in the first round some points take turns for longer
    inspect           uncounted steps
    finish all

This course is a generator that yields while it waits; the sweep resumes it after each report. All windows of a
point alone are one turn. A training to an accuracy has neither warm-up nor blocks (attempt.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from math import inf
from statistics import fmean, median
from typing import NamedTuple

from msgspec.structs import replace

from scaling import frameworks
from scaling.plan import defaults
from scaling.plan.groups import seats
from scaling.quiet.turns import Quiet, Turns, set_aside
from scaling.records.events import Window
from scaling.records.messages import Heard, Paused, Report, Reserved
from scaling.records.point import Point, Record
from scaling.records.run import LATER_WINDOWS
from scaling.records.task import Run
from scaling.sweep.attempt import Attempt, Bench
from scaling.sweep.gpu_sharing import ALONE, AT_ONCE, Sharing, fitting, memory_order, slowed, startable
from scaling.sweep.outcome import retries_of
from scaling.sweep.state import PointState, part
from scaling.sweep.warmup import lead_of, pace_of

# ---------------------------------------------------------------- turns

# seconds between two turns
ORDERS_S = 0.03


class Course(Record, frozen=True, kw_only=True):
    """How an epoch is measured.

    `number`: of the epoch in its round; None for a point alone.
    `blocks`: None if the time of a step decides.
    `windows`: of each point in a block.
    `at_once`: points share no rank and no server, and are measured at the same time.
    `planned_s`: planned duration, which limits the repetition of disturbed windows (quiet/turns.py).
    `soak_s`: duration of the soak, 0 for none.
    `traced`: keys of points that end with profiled steps.
    `warm_up_s`: the least seconds of warm-up if given.
    `gpus`: how the points share GPUs, which are warmed up once for all; None elsewhere.
    """

    number: int | None
    blocks: int | None
    windows: int
    window_s: float
    seed: str
    canary: bool
    at_once: bool = False
    planned_s: float = 0.0
    soak_s: float = 0.0
    traced: frozenset[str] = frozenset()
    warm_up_s: float | None = None
    gpus: Sharing | None = None


class Turn(NamedTuple):
    """A turn: windows of all ranks of a point, or of one rank, numbered from `first`."""

    attempt: Attempt
    rank: int | None
    first: int

    @property
    def ranks(self) -> Sequence[int]:
        return range(len(self.attempt.state.ranks)) if self.rank is None else (self.rank,)

    @property
    def launch_ranks(self) -> frozenset[int]:
        """Launch ranks of the ranks that run; each has its own cores."""
        return frozenset(self.attempt.state.ranks[number].task.launch_rank for number in self.ranks)


def blocks_that_fit(states: Iterable[PointState]) -> int:
    """Return the number of windows of each of these warm points. Measured windows have no say in it."""
    return defaults.turns_in_round(fmean(map(_planned_turn_s, states)))


def _planned_turn_s(state: PointState) -> float:
    """Seconds of a turn: a window like the last of the warm-up, an uncounted step, and orders."""
    slowest = max((rank.warmup[-1] for rank in state.ranks), key=lambda window: window.seconds)
    return slowest.seconds * (slowest.steps + 1) / slowest.steps + ORDERS_S


# ---------------------------------------------------------------- soak
#
# The first seconds of a process do not show its speed ten seconds later. `analysis/measured/pools.py` compares
# the windows of the soak with the measured ones. No figure counts them.


SOAK_ROUND = 0


class Soaked(NamedTuple):
    """A point that soaks: all its ranks, or one alone."""

    attempt: Attempt
    rank: int | None

    @property
    def windows(self) -> Sequence[Window]:
        return self.attempt.state.ranks[self.rank or 0].windows


def soak_commands(attempts: Sequence[Attempt], course: Course) -> Iterator[tuple[Soaked, Run]]:
    found = soak_chosen(attempts) if course.soak_s else []
    for block in range(soak_turns([one.windows for one in found], course.soak_s) if found else 0):
        random.Random(f"{course.seed}/later {block}").shuffle(found)
        for one in found:
            yield one, _turn(one, block, canary=course.canary)


def soak_turns(measured: Sequence[Sequence[Window]], soak_s: float) -> int:
    """Return the turns of each point: about `soak_s` seconds by the measured windows of all, with a minimum."""
    return max(defaults.FEWEST_TURNS, round(soak_s / fmean(map(_turn_s, measured))))


def _turn_s(windows: Sequence[Window]) -> float:
    """Seconds of training in a turn: one step for a common start, and windows like these."""
    return median(window.seconds * (LATER_WINDOWS + 1 / window.steps) for window in windows)


def soak_chosen(attempts: Sequence[Attempt]) -> list[Soaked]:
    """Choose the widest exchange of each strategy with its plain loop, which runs on its first device."""
    found: dict[int, Soaked] = {}
    for exchange in _widest(attempt for attempt in attempts if _is_exchange(attempt.state)):
        if plain := next((one for one in attempts if _is_behind(one.state.point, exchange.state.point)), None):
            found[exchange.attempt] = Soaked(exchange, None)
            found[plain.attempt] = Soaked(plain, 0 if plain.state.point.kind == "each" else None)
    return list(found.values())


def _is_exchange(state: PointState) -> bool:
    """Whether its efficiency is claimed, on real devices that wait for each other."""
    point = state.point
    is_first = point.kind == "exchange" and point.round == SOAK_ROUND and point.workload.trains
    return is_first and state.synchronous and not state.oversubscribed and point.hardware.device != "emulated"


def _widest(exchanges: Iterable[Attempt]) -> Iterator[Attempt]:
    by_strategy: dict[str, Attempt] = {}
    for one in exchanges:
        name = one.state.point.strategy
        if name not in by_strategy or one.state.point.world_size > by_strategy[name].state.point.world_size:
            by_strategy[name] = one
    return iter(by_strategy.values())


def _is_behind(plain: Point, exchange: Point) -> bool:
    """Whether this point is the plain loop of the exchange's efficiency."""
    if plain.kind not in ("solo", "each") or plain.strategy != frameworks.load(exchange.strategy).baseline:
        return False
    return plain.workload.alone() == exchange.reference.alone() and plain.hardware == exchange.hardware


def _turn(one: Soaked, block: int, *, canary: bool) -> Run:
    first = LATER_WINDOWS * (block + 1)
    return Run(
        windows=LATER_WINDOWS,
        steps=one.windows[-1].steps,
        measured=False,
        first=first,
        canary=canary,
        lead=lead_of(one.attempt.state.point),
    )


# ---------------------------------------------------------------- epoch


class Epoch:
    """A run of points side by side, or of one alone. `keep` is called with the state of each point whose measured
    windows are in."""

    def __init__(
        self,
        bench: Bench,
        points: Sequence[Point],
        course: Course,
        *,
        next_attempt: Callable[[], int],
        quiet: Quiet,
        note: Callable[[str], None],
        keep: Callable[[PointState], None],
    ) -> None:
        self._bench = bench
        self._course = course
        self._next_attempt = next_attempt
        self._quiet = Turns[Turn](
            quiet,
            windows=course.windows,
            planned_s=course.planned_s,
            deadline_s=inf if self._is_shared else bench.clocks.deadline_s,
            clock=bench.clock,
            probe=self._probe,
        )
        self._note, self._keep = note, keep
        self._blocks = course.blocks or 0
        self._soak_begun_s: float | None = None
        self._soaked_s = 0.0
        self.gpus = course.gpus
        self._stopped: set[int] = set()
        # Points that GPUs have no room for yet.
        self._waiting = list(points) if self.gpus is None else sorted(points, key=memory_order, reverse=True)
        self.attempts: list[Attempt] = []
        self._most = 0  # points that were started together
        self._admit(self._room(self.gpus, points) if self.gpus else len(points))
        self.active = self.attempts[0]
        self._way = self._run()

    def _room(self, gpus: Sharing, points: Sequence[Point]) -> int:
        return gpus.fits or startable(points, self._bench.plan.gpu_memory_bytes)

    def _admit(self, count: int) -> None:
        admitted, self._waiting = self._waiting[:count], self._waiting[count:]
        self.attempts += [self._attempt(point) for point in admitted]
        self._most = max(self._most, len(self.attempts))

    def _attempt(self, point: Point, retries: tuple[str, ...] = ()) -> Attempt:
        is_traced, number = point.key in self._course.traced, self._next_attempt()
        return Attempt(self._bench, point, number, retries, self._course.number, is_traced=is_traced)

    def hear(self, said: Heard) -> None:
        for attempt in self.attempts:
            if attempt.attempt == said.attempt:
                match said:
                    case Report():
                        attempt.hear(said)
                    case Reserved(slot=slot, ports=ports):
                        attempt.reserved(slot, ports)
                    case Paused():
                        attempt.paused(said)

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
        return [attempt.state for attempt in self.attempts if not self._is_crowded_out(attempt)]

    @property
    def left(self) -> list[Point]:
        """The points that GPUs had no room for. Another epoch measures them, of half as many points if any point
        ran out of memory."""
        crowded = [attempt.state.point for attempt in self.attempts if self._is_crowded_out(attempt)]
        if crowded and self.gpus:
            self.gpus = replace(self.gpus, fits=self._most // 2)
        return [*crowded, *self._waiting]

    def _is_crowded_out(self, attempt: Attempt) -> bool:
        """Whether a point ran out of memory beside other points on GPUs."""
        failure = attempt.state.failure
        return self.gpus is not None and self._most > 1 and failure is not None and failure.cause == "oom"

    def lose(self, silent: Collection[int], why: str) -> None:
        """Fail all points in which one of these silent launch ranks takes part."""
        for attempt in self.attempts:
            attempt.lose(silent, why)

    def release(self, reason: str, *, grace_s: float) -> None:
        for attempt in self.attempts:
            attempt.release(reason, grace_s=grace_s)

    # ------------------------------------------------------------ course

    @property
    def _running(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if not attempt.fails]

    @property
    def _is_shared(self) -> bool:
        return self._course.number is not None

    def _run(self) -> Iterator[None]:
        yield from self._start()
        if self.attempts[0].state.point.regime:
            yield from self._train(self.attempts[0])
            return
        if self._course.at_once:
            yield from self._at_once()
        else:
            yield from self._in_turn()
        yield from self._account()
        yield from self._soak()
        for attempt in self._running:
            yield from self._inspect(attempt)
        yield from self._end()

    def _at_once(self) -> Iterator[None]:
        ways = [
            chain(self._warm_up(attempt), self._measure(self._turns([attempt], 0))) for attempt in self._running
        ]
        while ways := [way for way in ways if next(way, "over") is None]:
            yield

    def _in_turn(self) -> Iterator[None]:
        yield from self._warm_up_all()
        if self._course.blocks is None and self._running:
            self._blocks = blocks_that_fit(attempt.state for attempt in self._running)
            for attempt in self._running:
                attempt.expect(self._blocks)
        yield from self._measure(chain.from_iterable(map(self._shuffled, range(self._blocks))))

    def _shuffled(self, block: int) -> Iterator[Turn]:
        order = self._running
        random.Random(f"{self._course.seed}/{block}").shuffle(order)
        return self._turns(order, block)

    def _account(self) -> Iterator[None]:
        for attempt in self._running:
            attempt.account()
        for attempt in self._running:
            while not attempt.is_accounted and not attempt.fails:
                yield
            if not attempt.fails:
                self._keep(attempt.so_far)

    def _soak(self) -> Iterator[None]:
        self._soak_begun_s = self._bench.clock()
        for (attempt, rank), run in soak_commands(self._running, self._course):
            self.active = attempt
            if not attempt.fails:
                attempt.run_on(run, rank)
                yield from self._answer(attempt)
                yield from self._leave_off(attempt)
        self._soaked_s, self._soak_begun_s = self.soaked_s, None

    def _end(self) -> Iterator[None]:
        for attempt in self._running:
            attempt.finish()
        while not all(attempt.over for attempt in self.attempts):
            yield

    def _train(self, attempt: Attempt) -> Iterator[None]:
        self.active = attempt
        while not attempt.fails and attempt.train():
            yield from self._answer(attempt)
        yield from self._end()

    def _start(self) -> Iterator[None]:
        """Wait until all points are ready. A failure that may be chance is retried once."""
        stopped = self._stopped
        while True:
            for index, attempt in enumerate(self.attempts):
                if attempt.over and attempt.fails and (retries := retries_of(attempt.state)):
                    self._note(f"{attempt.state.point.label}: {retries[0]}; trying once more")
                    self.attempts[index] = self.active = self._attempt(attempt.state.point, retries)
                elif attempt.attempt not in stopped and attempt.waits and self._stops(attempt):
                    stopped.add(attempt.attempt)
                    attempt.pause()
            if all((attempt.waits and not attempt.moves) or attempt.over for attempt in self.attempts):
                return
            yield

    def _stops(self, attempt: Attempt) -> bool:
        """Whether it must stand still: others have turns, its ranks run one by one, or its cores are probed."""
        return self._is_shared or self._course.canary or attempt.state.point.kind == "each"

    def _warm_up_all(self) -> Iterator[None]:
        warm: list[Attempt] = []
        while cold := [attempt for attempt in self._running if attempt not in warm]:
            yield from self._warm_up(cold[0])
            warm.append(cold[0])
            if self.gpus and self.gpus.fits is None and not cold[0].fails:
                yield from self._make_room(self.gpus, cold[0])
        if self.gpus and self._running:
            widest = max(self._running, key=lambda attempt: memory_order(attempt.state.point))
            yield from self._warm_up(widest, warms_gpus=True)

    def _make_room(self, gpus: Sharing, first: Attempt) -> Iterator[None]:
        """Keep as many points as fit by the memory of the first one that has computed, or start more."""
        memory_bytes = self._bench.plan.gpu_memory_bytes
        running = self._running
        fits = fitting(first.state, first.stood, len(running), memory_bytes) or len(running)
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
        course = self._course
        pace = pace_of(
            attempt.state.point,
            course.window_s,
            takes_turns=self._is_shared,
            warm_up_s=course.warm_up_s,
            warms_gpus=warms_gpus,
        )
        while not attempt.fails and attempt.warm_up(pace):
            yield from self._answer(attempt)
        yield from self._leave_off(attempt)

    def _answer(self, attempt: Attempt) -> Iterator[None]:
        while not attempt.waits and not attempt.fails:
            yield

    def _inspect(self, attempt: Attempt) -> Iterator[None]:
        self.active = attempt
        for rank in range(len(attempt.state.ranks)) if attempt.state.point.kind == "each" else (None,):
            if not attempt.fails and attempt.inspect(rank):
                yield from self._answer(attempt)
                yield from self._stop(attempt)

    # ------------------------------------------------------------ measuring

    def _turns(self, order: Sequence[Attempt], block: int) -> Iterator[Turn]:
        first = block * self._course.windows
        return (Turn(attempt, rank, first) for attempt in order for rank in self._seats(attempt, block))

    def _measure(self, turns: Iterable[Turn]) -> Iterator[None]:
        for turn in self._quiet.before(turns):
            if turn is None:
                yield
            else:
                yield from self._turn(turn)
                self._quiet.after(turn)

    def _probe(self, turn: Turn) -> Iterator[None]:
        self.active = turn.attempt
        turn.attempt.probe(turn.launch_ranks)
        yield from self._stand(turn.attempt)

    def _seats(self, attempt: Attempt, block: int) -> Sequence[int | None]:
        """Ranks that run alone, one after the other; None is all ranks at once."""
        point = attempt.state.point
        if point.kind != "each" or (self.gpus and not self._seats_apart(attempt, block)):
            return (None,)
        # Each round begins with other seats, because its first block is colder.
        return seats(len(attempt.state.ranks), block + point.round, self._blocks)

    def _seats_apart(self, attempt: Attempt, block: int) -> bool:
        """Whether seats on GPUs run one after the other. The first round tries both ways."""
        assert self.gpus is not None
        if self.gpus.slowed is None and block > AT_ONCE and (found := slowed(attempt.state.ranks)) is not None:
            self.gpus = replace(self.gpus, slowed=found)
            if self.gpus.seats_apart:
                for number, rank in enumerate(attempt.state.ranks):
                    attempt.keep(number, *set_aside(rank, [AT_ONCE]))
                self._note(
                    f"{attempt.state.point.label}: steps are {100 * found:.1f} % slower when all GPUs compute: "
                    "they share power, PCIe or cores, so each GPU is measured alone"
                )
        return self.gpus.seats_apart or (self.gpus.slowed is None and block == ALONE)

    def _turn(self, turn: Turn) -> Iterator[None]:
        self.active = attempt = turn.attempt
        if not attempt.fails:
            windows, canary = self._course.windows, self._course.canary
            attempt.measure(windows, first=turn.first, rank=turn.rank, canary=canary)
            yield from self._answer(attempt)
            yield from self._leave_off(attempt, lingers=attempt.lingers)

    def _leave_off(self, attempt: Attempt, *, lingers: bool = False) -> Iterator[None]:
        # Points on GPUs give back memory that they do not use.
        if self._stops(attempt) and (lingers or self.gpus) and not attempt.fails:
            attempt.rest()
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
