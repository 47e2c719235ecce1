"""One attempt at one point, as rank 0 sees it: ports, helpers, workers, warm-up, windows, end.

It never waits: it receives reports and sends orders. `epoch.py` decides when each order is due.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec.structs import replace

from scaling import frameworks
from scaling.analysis.table import accuracy
from scaling.errors import SilentRanks, StrategyError
from scaling.plan import defaults, placement
from scaling.plan.plan import Plan
from scaling.plan.tasks import helper_task, rank_tasks, wanted_ports, with_ports, worker_tasks
from scaling.records.events import Ended, Failed, Finished, Measured, Window
from scaling.records.messages import (
    Account,
    Assign,
    Heard,
    Pause,
    Paused,
    Release,
    Report,
    Reserve,
    Reserved,
    Tell,
    ToAgent,
    ToSweep,
)
from scaling.records.point import BESIDE, EXCHANGING, Device, Kind, Point, Record
from scaling.records.run import PointRecord
from scaling.records.task import Clocks, Command, Evaluate, Inspect, Run, Task, Train
from scaling.sweep import warmup
from scaling.sweep.ended import WELL, Evidence, how_it_ended
from scaling.sweep.outcome import cause_of, spared
from scaling.sweep.state import ChildState, PointState, commanded, failing, fold
from scaling.transport.base import Mailbox
from scaling.workloads import schedule

# ---------------------------------------------------------------- uncounted steps after the measured windows
#
# * Steps without exchange: two windows of half length, for every exchange between real devices.
# * Exchanges during compute: as many, on GPUs, where CPU time does not split the loss.
# * Profiled steps: once per cell, with `--trace`.

UNSYNCED_WINDOWS = 2
TRACED_STEPS = 5
# Kinds that explain an exchange by comparison; `comm` computes nothing.
TRACED: tuple[Kind, ...] = ("exchange", "together", "solo", "each")
OVERLAPPED: tuple[Device, ...] = ("cuda",)


def traced_keys(points: Iterable[Point], records: Iterable[PointRecord]) -> frozenset[str]:
    """Return the keys of points that end with profiled steps: those of cells without a successful record."""
    had = {record.point.cell for record in records if isinstance(record.outcome, Finished)}
    return frozenset(point.key for point in points if point.kind in TRACED and point.cell not in had)


def inspection_command(state: PointState) -> Inspect | None:
    """Return the uncounted steps of all ranks after their measured windows; None if there are none."""
    point, device = state.point, state.point.hardware.device
    # Steps of an emulated device do not show what a wrapper costs.
    exchanges = point.kind == "exchange" and point.world_size > 1 and device != "emulated"
    windows = UNSYNCED_WINDOWS if exchanges else 0
    traced_steps = TRACED_STEPS if state.ranks[0].task.is_traced else 0
    if not windows and not traced_steps:
        return None
    steps = max(1, state.ranks[0].windows[-1].steps // UNSYNCED_WINDOWS)
    beside = windows if device in OVERLAPPED else 0
    return Inspect(windows=windows, steps=steps, traced_steps=traced_steps, beside_windows=beside)


# ---------------------------------------------------------------- training to an accuracy


def decide_training(state: PointState) -> Command | None:
    """Return the command after the one that every rank has done; None when the training is over."""
    point, regime, first = state.point, state.point.regime, state.ranks[0]
    assert regime is not None and first.ready is not None
    if isinstance(state.command, Train):
        return Evaluate(number=state.command.number)
    done, target = len(first.evaluations), regime.target_top1
    is_reached = done and target and accuracy.top1(rank.evaluations[-1] for rank in state.ranks) >= target
    if done == regime.epochs or is_reached:
        return None
    before, after = (
        schedule.steps_before(
            epoch,
            samples=first.ready.training_samples,
            world_size=point.world_size,
            batch_size=point.workload.batch_size,
        )
        for epoch in (done, done + 1)
    )
    return Train(number=done, steps=max(1, after - before))  # a batch may hold several epochs of few samples


# ---------------------------------------------------------------- attempt


class Bench(Record, frozen=True, kw_only=True):
    """Shared objects of all epochs and attempts. `logs` is the folder of their logs. `keep` is called with the
    state of each point whose measured windows are in."""

    plan: Plan
    mailbox: Mailbox[ToAgent, ToSweep]
    logs: str
    number: Callable[[], int]
    note: Callable[[str], None]
    keep: Callable[[PointState], None]
    clock: Callable[[], float]
    unix_clock: Callable[[], float]

    @property
    def clocks(self) -> Clocks:
        config = self.plan.config
        startup_s, deadline_s = config.startup_timeout_s, config.point_timeout_s
        assert startup_s is not None and deadline_s is not None
        return Clocks(startup_s=startup_s, stall_s=config.stall_timeout_s, deadline_s=deadline_s)


class Attempt:
    """A running attempt. `stood` has the answers to the last probe, by launch rank."""

    def __init__(
        self,
        bench: Bench,
        point: Point,
        retries: tuple[str, ...] = (),
        epoch: int | None = None,
        *,
        is_traced: bool = False,
    ) -> None:
        self.attempt, self._bench, self._steps = bench.number(), bench, 1
        self._strategy = frameworks.load(point.strategy)
        self._traits = self._strategy.traits(point.strategy)
        slots = placement.slots_of(point, bench.plan.slots)
        self._tasks = self._rank_tasks(point, slots, len(retries), is_traced=is_traced)
        self._wanted = wanted_ports(self._tasks, self._traits)
        self._held: dict[int, tuple[int, ...]] = {}
        self._alive: set[tuple[int, str]] = set()
        self._agents: set[int] = set()
        self._so_far: dict[tuple[int, str], Ended] = {}
        self._pausing: set[int] = set()
        self.stood: dict[int, Paused] = {}
        self._released = self._started = self._is_measured = False
        exchanges, windows = point.kind in EXCHANGING, bench.plan.config.windows or defaults.MOST_TURNS
        self.state = PointState(
            point=point,
            ranks=tuple(ChildState(task=task) for task in worker_tasks(self._tasks, self._traits)),
            expected=point.regime.epochs if point.regime else windows,
            started_s=bench.clock(),
            started_unix_s=bench.unix_clock(),
            synchronous=self._traits.synchronous or not exchanges,
            pattern=self._traits.pattern if exchanges else "",
            updates_all=exchanges and self._strategy.updates_all(point),
            crowding=placement.crowding(point, slots),
            gpus=placement.gpus_of(point, slots),
            retries=retries,
            epoch=epoch,
        )
        for index, wanted in enumerate(self._wanted):
            order = Reserve(attempt=self.attempt, slot=index, count=wanted.count, address=wanted.address)
            self._order([wanted.launch_rank], order)
        if not self._wanted:
            self._start_all()

    def _rank_tasks(
        self, point: Point, slots: Sequence[placement.Slot], retry: int, *, is_traced: bool
    ) -> tuple[Task, ...]:
        plan, config = self._bench.plan, self._bench.plan.config
        return rank_tasks(
            point,
            slots,
            placement.server_slots(point, slots, plan.slots),
            plan.network(point).places,
            attempt=self.attempt,
            retry=retry,
            seed=point.regime.seed if point.regime else config.seed,
            clocks=self._bench.clocks,
            logs=self._bench.logs,
            malloc=config.malloc,
            fresh=config.fresh_workers,
            data_dir=config.data_dir or "",
            is_traced=is_traced,
            save_weights=config.save_weights or "" if point.regime else "",
            times_steps=bool(plan.burn_in_s),
            keeps_log=not plan.burn_in_s or point.round == 0,
        )

    # ------------------------------------------------------------ orders

    def _order(self, launch_ranks: Collection[int], order: ToAgent) -> None:
        self._agents |= set(launch_ranks)
        self._bench.mailbox.order(sorted(launch_ranks), order)

    def _fail(self, failed: Failed) -> None:
        self.state = failing(self.state, failed)
        self._started = True

    def _start_all(self) -> None:
        """Start the helpers, or the workers if none is awaited. All ports are reserved."""
        self._tasks = with_ports(self._tasks, self._traits, self._held)
        ranks = tuple(ChildState(task=task) for task in worker_tasks(self._tasks, self._traits))
        self.state = replace(self.state, ranks=ranks)
        try:
            helpers = self._helpers() if self.state.point.kind in EXCHANGING else ()
        except StrategyError as error:
            self._fail(Failed(cause="error", message=str(error), log_tail=error.trace))
            return
        self.state = replace(self.state, helpers=helpers)
        for helper in helpers:
            self._start(helper.task)
        if not self.state.waits_for_helpers:
            self._start_workers()

    def _helpers(self) -> tuple[ChildState, ...]:
        wanted = self._strategy.helpers(self._tasks[0])
        try:
            return tuple(ChildState(task=helper_task(self._tasks, each), awaited=each.awaited) for each in wanted)
        except IndexError as error:
            what = "helpers() names a rank or server that the point does not have"
            raise StrategyError(self.state.point.strategy, what, error) from error

    def _start_workers(self) -> None:
        announced = self.state.announced
        ranks = tuple(replace(rank, task=replace(rank.task, announced=announced)) for rank in self.state.ranks)
        self.state = replace(self.state, ranks=ranks)
        for rank in ranks:
            self._start(rank.task)

    def _start(self, task: Task) -> None:
        self._started = True
        self._alive.add((task.rank, task.role))
        self._order([task.launch_rank], Assign(task=task))

    def tell(self, command: Command, rank: int | None = None) -> None:
        """Send a command to all ranks, or to one alone."""
        agents = self._agents if rank is None else {self.state.ranks[rank].task.launch_rank}
        self.state = commanded(self.state, command, None if rank is None else 1)
        self._order(agents, Tell(attempt=self.attempt, command=command))

    def warm_up(self, pace: warmup.Pace) -> bool:
        """Send the next command of the warm-up; return False when it is over."""
        next_one = warmup.decide(self.state, pace)
        if isinstance(next_one, Run):
            self.tell(next_one)
            return True
        self._steps = next_one.steps
        self.state = replace(self.state, settled=next_one.settled)
        return False

    def measure(self, windows: int, first: int, rank: int | None, *, canary: bool, soaks: bool = False) -> None:
        """Have all ranks, or one alone, run measured windows, or those of a soak, numbered from `first`."""
        run = Run(
            windows=windows, steps=self._steps, measured=not soaks, first=first, canary=canary,
            lead=warmup.lead_of(self.state.point), linger=self.lingers and not soaks,
        )  # fmt: skip
        self.tell(run, rank)

    def train(self) -> bool:
        """Send the next command of a training to an accuracy; return False when it is over. The training fails if
        ranks have different numbers of samples, because the data of their hosts differ."""
        if self.state.phase == "starting":
            counts = {rank.host: rank.ready.training_samples for rank in self.state.ranks if rank.ready}
            if len(set(counts.values())) > 1:
                had = ", ".join(f"{host} has {count:,}" for host, count in counts.items())
                message = f"hosts differ in samples to train on: {had}"
                self.state = failing(self.state, Failed(cause="error", message=message))
        if self.state.failure:
            self.release("the point is over")
        elif command := decide_training(self.state):
            self.tell(command)
            return True
        else:
            self._is_measured = True
        return False

    def inspect(self, rank: int | None) -> bool:
        """Have all ranks, or one alone, run uncounted steps; return False if there are none."""
        command = inspection_command(self.state)
        if command is not None:
            self.tell(command, rank)
        return command is not None

    def account(self) -> None:
        """Have agents report their readings of the measured windows, which are all in."""
        self._is_measured = True
        self._order(self._agents, Account(attempt=self.attempt))

    def pause(self) -> None:
        if not self._released:
            self._pausing = set(self._agents)
            self._order(self._agents, Pause(attempt=self.attempt))

    def probe(self, launch_ranks: Collection[int]) -> None:
        """Have the cores of these launch ranks probed while the attempt stands still."""
        if not self._released:
            self.state = replace(self.state, phase="waiting")
            self.stood, self._pausing = {}, set(launch_ranks)
            self._order(launch_ranks, Pause(attempt=self.attempt, canary=True))

    def release(self, reason: str, *, grace_s: float = 2.0) -> None:
        """Have every agent of the point end its children. A second call does nothing."""
        if not self._released:
            self._released = True
            self._order(self._agents, Release(attempt=self.attempt, reason=reason, grace_s=grace_s))

    # ------------------------------------------------------------ answers

    def hear(self, said: Heard) -> None:
        match said:
            case Reserved(slot=slot, ports=ports):
                self._reserved(slot, ports)
            case Paused(launch_rank=rank):
                self._pausing.discard(rank)
                self.stood[rank] = said
            case Report(event=Measured(ended=ended)):
                self._so_far[said.rank, said.role] = ended
            case Report():
                self._reported(said)

    def _reserved(self, slot: int, ports: tuple[int, ...]) -> None:
        self._held[slot] = ports
        if len(self._held) < len(self._wanted) or self._started:
            return
        lacking = (one for index, one in enumerate(self._wanted) if len(self._held[index]) < one.count)
        if one := next(lacking, None):
            message = f"{one.host} cannot bind a port on {one.address}"
            self._fail(Failed(cause="error", message=message, host=one.host))
        else:
            self._start_all()

    def _reported(self, report: Report) -> None:
        """Apply one report. Start the workers once no helper is awaited; release all at a failure."""
        before, self.state = self.state, fold(self.state, report)
        if self.state.all_ready and not before.all_ready:
            self.state = replace(self.state, ready_at_s=self._bench.clock())
        if isinstance(report.event, Ended):
            self._alive.discard((report.rank, report.role))
        if self.state.failure is not None:
            self.release("another rank failed first")
        elif before.waits_for_helpers and not self.state.waits_for_helpers:
            self._start_workers()
        elif self.state.ended == len(self.state.ranks):
            self.release("the point is over")

    def lose(self, silent: SilentRanks) -> None:
        """Fail if one of these launch ranks takes part."""
        lost = (task for task in self._tasks if task.launch_rank in silent.ranks)
        if task := next(lost, None):
            evidence = Evidence(task=task, host=task.hosts[task.rank], silence=str(silent), cause=silent.cause)
            self.state = failing(self.state, how_it_ended(evidence).failure)

    def keep(self, number: int, windows: tuple[Window, ...], disturbed: tuple[Window, ...]) -> None:
        """Set which tries of a rank's measured windows count; `disturbed` are the others."""
        self.state = self.state.with_child("ranks", number, {"windows": windows, "disturbed": disturbed})

    # ------------------------------------------------------------ where it is

    @property
    def over(self) -> bool:
        """Whether the attempt has started and none of its children runs."""
        return self._started and not self._alive

    @property
    def fails(self) -> bool:
        """Whether the attempt has failed or was released: it takes no more commands."""
        return self.state.failure is not None or self._released

    @property
    def waits(self) -> bool:
        """Whether all ranks with a command are done with it and wait for the next."""
        state = self.state
        if state.phase == "starting":
            return state.all_ready
        if state.phase == "inspecting":
            return state.inspected == state.told
        return state.phase not in ("finishing", "ended") and state.chunk_complete

    @property
    def moves(self) -> bool:
        """Whether an agent has yet to stop its children."""
        return bool(self._pausing)

    @property
    def lingers(self) -> bool:
        """Whether ranks go on after their windows; otherwise the last ones would run on an emptier machine."""
        return self.state.point.kind in BESIDE or not self.state.synchronous

    @property
    def is_accounted(self) -> bool:
        return self._alive <= self._so_far.keys()

    @property
    def so_far(self) -> PointState:
        """The state after the measured windows, with every child recorded as ended well."""

        def ended_well(child: ChildState) -> ChildState:
            ended = self._so_far.get((child.task.rank, child.task.role))
            return child if ended is None else replace(child, ended=ended, ending=WELL)

        ranks, helpers = tuple(map(ended_well, self.state.ranks)), tuple(map(ended_well, self.state.helpers))
        return replace(self.state, ranks=ranks, helpers=helpers)

    @property
    def final(self) -> PointState:
        """The state of an attempt that is over. A failure after the measured windows costs what it would have
        added, not the point."""
        failure = cause_of(self.state) if self._is_measured else None
        return spared(self.so_far, failure) if failure else self.state
