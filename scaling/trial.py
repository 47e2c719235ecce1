"""One attempt at one point, seen from rank 0: ports, helpers, workers, warm-up, windows, end.

It never waits: it hears reports and answers them with orders.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from scaling import collector, pace, seats, strategies
from scaling.collector import PointState, RankState
from scaling.desk import Desk
from scaling.messages import Assign, Release, Report, Reserve, Tell
from scaling.plan import Plan
from scaling.records import (
    Ended,
    Failed,
    Point,
    Ready,
    Record,
)
from scaling.tasks import Clocks, Command, Task


class Bench(Record, frozen=True):
    """What all trials of a sweep share. `logs` is the folder of their logs."""

    plan: Plan
    desk: Desk
    logs: str
    clock: Callable[[], float]
    unix_clock: Callable[[], float]

    @property
    def pace(self) -> pace.Pace:
        """Windows and their length."""
        return pace.Pace(windows=self.plan.config.windows, window_s=self.plan.config.window_s)

    @property
    def clocks(self) -> Clocks:
        """The limits of every child."""
        config = self.plan.config
        return Clocks(
            startup_s=config.startup_timeout_s,
            stall_s=config.stall_timeout_s,
            deadline_s=config.point_timeout_s,
        )


class Trial:
    """One attempt at a point: ports, helpers, workers, warm-up, windows, end."""

    def __init__(self, bench: Bench, point: Point, attempt: int, retries: tuple[str, ...]) -> None:
        self.attempt = attempt
        self._bench = bench
        self._seats = seats.place(point, bench.plan.seats)
        self._agents = tuple(one.launch_rank for one in self._seats)
        self._module = strategies.load(point.strategy)
        self._alive: set[tuple[int, str]] = set()
        self._released = False
        self._started = False
        tasks = self._tasks(point, (), len(retries))
        self.state = PointState(
            point=point,
            ranks=tuple(RankState(task=task) for task in tasks),
            expected=bench.plan.config.windows,
            started_s=bench.clock(),
            started_unix_s=bench.unix_clock(),
            oversubscribed=seats.oversubscribed(point, self._seats),
            retries=retries,
        )
        reserve = Reserve(attempt=attempt, count=self._module.PORTS, address=tasks[0].address)
        bench.desk.order(self._agents[:1], reserve)

    def _tasks(self, point: Point, ports: tuple[int, ...], retry: int) -> tuple[Task, ...]:
        return seats.tasks(
            point,
            self._seats,
            self._bench.plan.places,
            attempt=self.attempt,
            retry=retry,
            ports=ports,
            seed=self._bench.plan.config.seed,
            clocks=self._bench.clocks,
            logs=self._bench.logs,
        )

    @property
    def over(self) -> bool:
        """Nothing of it runs any more."""
        return self._started and not self._alive

    def reserved(self, ports: tuple[int, ...]) -> None:
        """The ports are held: start the helpers, or the workers where there are none."""
        state = self.state
        if len(ports) < self._module.PORTS:
            task = state.ranks[0].task
            message = f"{task.hosts[0]} cannot bind a port on {task.address}"
            self.state = collector.failing(state, Failed(cause="error", message=message, host=task.hosts[0]))
            self._started = True
            return
        tasks = self._tasks(state.point, ports, len(state.retries))
        self.state = replace(
            state, ranks=tuple(replace(r, task=t) for r, t in zip(state.ranks, tasks, strict=True))
        )
        helpers = self._module.helpers(tasks[0]) if state.point.kind in ("exchange", "comm") else []
        self.state = replace(self.state, helpers_waited=len(helpers))
        for helper in helpers:
            task = replace(tasks[helper.rank], role=helper.name, log=f"{tasks[helper.rank].log}.{helper.name}")
            self._start(task)
        if not helpers:
            self._start_workers()

    def _start(self, task: Task) -> None:
        self._started = True
        self._alive.add((task.rank, task.role))
        self._bench.desk.order(self._agents[task.rank : task.rank + 1], Assign(task=task))

    def _start_workers(self) -> None:
        announced = self.state.announced
        ranks = tuple(replace(r, task=replace(r.task, announced=announced)) for r in self.state.ranks)
        self.state = replace(self.state, ranks=ranks)
        for rank in ranks:
            self._start(rank.task)

    def hear(self, report: Report) -> None:
        """Fold one report and do what follows from it."""
        before, self.state = self.state, collector.fold(self.state, report)
        if isinstance(report.event, Ended):
            self._alive.discard((report.rank, report.role))
        if self.state.failure is not None:
            self.release("another rank failed first")
        elif before.helpers_waited and not self.state.helpers_waited:
            self._start_workers()
        elif self._everybody_waits(report):
            self._advance()
        elif self.state.ended == len(self.state.ranks):
            self.release("the point is over")

    def _everybody_waits(self, report: Report) -> bool:
        state = self.state
        if state.phase == "starting":
            return isinstance(report.event, Ready) and state.ready == len(state.ranks)
        return state.phase in ("warming", "measuring") and state.chunk_complete

    def _advance(self) -> None:
        decision = pace.decide(self.state, self._bench.pace)
        if self.state.phase == "starting":
            self.state = replace(self.state, ready_at_s=self._bench.clock())
        self._command(decision.command)
        if self.state.phase == "measuring":
            self.state = replace(self.state, settled=decision.settled)

    def _command(self, command: Command) -> None:
        self.state = collector.commanded(self.state, command)
        self._bench.desk.order(self._agents, Tell(attempt=self.attempt, command=command))

    def release(self, reason: str, *, grace_s: float = 2.0) -> None:
        """Have every agent of the point end what still runs of it; once."""
        if not self._released:
            self._released = True
            self._bench.desk.order(self._agents, Release(attempt=self.attempt, reason=reason, grace_s=grace_s))
