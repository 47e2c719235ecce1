"""The live state of a running point, folded from the reports of its children: `fold(state, report)`; the forecast.

Times are in the events or arguments. Ranks are counted as they report, but each report copies the tuple of ranks:
some 10 us at 1,000 ranks (tests/bench/collector.py).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec.structs import replace

from scaling.records.events import (
    Announce,
    Ended,
    Error,
    Evaluated,
    Event,
    Exit,
    Failed,
    Hello,
    Inspected,
    Ready,
    Rested,
    Result,
    Window,
)
from scaling.records.messages import Report
from scaling.records.point import Pattern, Point, Record
from scaling.records.task import Command, Evaluate, Finish, Inspect, Rest, Run, Task, Train
from scaling.sweep.ended import UNSEEN, Ending, Evidence, how_it_ended

# `waiting`: for idle cores, before disturbed windows are repeated.
Phase = Literal[
    "starting", "warming", "measuring", "waiting", "soaking", "evaluating", "inspecting", "finishing", "ended"
]


class RankState(Record, frozen=True, kw_only=True):
    """One worker, by its events. `in_chunk` counts its windows of the running command."""

    task: Task
    pid: int = 0
    in_chunk: int = 0
    warmup: tuple[Window, ...] = ()
    windows: tuple[Window, ...] = ()
    disturbed: tuple[Window, ...] = ()
    later: tuple[Window, ...] = ()
    ready: Ready | None = None
    inspected: Inspected | None = None
    evaluations: tuple[Evaluated, ...] = ()
    result: Result | None = None
    error: Error | None = None
    ended: Ended | None = None
    ending: Ending = UNSEEN

    def evidence(self, seen: Exit | None = None) -> Evidence:
        host, is_done = self.task.hosts[self.task.rank], self.result is not None
        return Evidence(task=self.task, host=host, error=self.error, is_done=is_done, exit=seen)


class HelperState(Record, frozen=True, kw_only=True):
    """One helper, by its events. `announced` is None until it can be reached. If it is `awaited`, workers start
    only then; otherwise they wait for it themselves."""

    task: Task
    awaited: bool = True
    pid: int = 0
    announced: dict[str, str] | None = None
    ended: Ended | None = None
    ending: Ending = UNSEEN

    def evidence(self, *, error: Error | None = None, seen: Exit | None = None) -> Evidence:
        is_done = self.announced is not None
        return Evidence(task=self.task, host=self.host, error=error, is_done=is_done, exit=seen)

    @property
    def host(self) -> str:
        beside = (server.host for server in self.task.servers if server.launch_rank == self.task.launch_rank)
        return next(beside, self.task.hosts[self.task.rank])


class PointState(Record, frozen=True, kw_only=True):
    """One running point. Times are CLOCK_MONOTONIC of rank 0.

    `expected`: measured windows that each rank will report.
    `ready`, `inspected`, `ended`: numbers of ranks.
    `told`, `chunk_done`: numbers of ranks with the running command, and of those that are done with it.
    `failure`: the first failure, which is the cause; its consequences are recorded as cancelled.
    `epoch`: number shared by points that live side by side; None for a point alone.
    """

    point: Point
    ranks: tuple[RankState, ...]
    expected: int
    started_s: float
    started_unix_s: float
    phase: Phase = "starting"
    helpers: tuple[HelperState, ...] = ()
    synchronous: bool = True
    pattern: Pattern = ""
    updates_all: bool = False
    announced: dict[str, str] = {}
    command: Command | None = None
    ready: int = 0
    told: int = 0
    chunk_done: int = 0
    inspected: int = 0
    ended: int = 0
    ready_at_s: float = 0.0
    settled: bool = True
    crowding: str = ""
    gpus: tuple[str, ...] = ()
    failure: Failed | None = None
    retries: tuple[str, ...] = ()
    epoch: int | None = None

    @property
    def oversubscribed(self) -> bool:
        """Whether its ranks have fewer CPUs than intended, as `crowding` explains: nothing is claimed."""
        return bool(self.crowding)

    @property
    def waits_for_helpers(self) -> bool:
        """Whether workers must not start yet: an `awaited` helper cannot be reached."""
        return any(helper.awaited and helper.announced is None for helper in self.helpers)

    @property
    def all_ready(self) -> bool:
        """Whether every worker is ready and every helper can be reached."""
        return self.ready == len(self.ranks) and all(helper.announced is not None for helper in self.helpers)

    @property
    def chunk_complete(self) -> bool:
        """Whether every rank with the running command is done with it, or rests."""
        return isinstance(self.command, Run | Rest | Train | Evaluate) and self.chunk_done == self.told


def commanded(state: PointState, command: Command, told: int | None = None) -> PointState:
    """Return the state after `command` was sent to `told` ranks, or to all."""
    if isinstance(command, Finish):
        return replace(state, command=command, phase="finishing")
    if isinstance(command, Inspect):
        count = len(state.ranks) if told is None else told
        return replace(state, command=command, phase="inspecting", told=state.inspected + count)
    if isinstance(command, Rest):
        return replace(state, command=command, told=len(state.ranks), chunk_done=0)
    if isinstance(command, Evaluate):
        return replace(state, command=command, phase="evaluating", told=len(state.ranks), chunk_done=0)
    ranks = tuple(replace(rank, in_chunk=0) for rank in state.ranks)
    phase: Phase = "measuring" if isinstance(command, Train) or command.measured else _unmeasured(state)
    count = len(ranks) if told is None else told
    return replace(state, command=command, phase=phase, ranks=ranks, told=count, chunk_done=0)


def _unmeasured(state: PointState) -> Phase:
    return "soaking" if any(rank.windows for rank in state.ranks) else "warming"


def fold(state: PointState, report: Report) -> PointState:
    """Return the state after one report. Reports of ended children change nothing."""
    event = report.event
    if report.role != "worker":
        return _fold_helper(state, report, event)
    rank = state.ranks[report.rank]
    if rank.ended is not None:
        return state
    match event:
        case Window():
            return _fold_window(state, report.rank, rank, event)
        case Hello():
            return with_rank(state, report.rank, replace(rank, pid=event.pid))
        case Ready():
            return replace(with_rank(state, report.rank, replace(rank, ready=event)), ready=state.ready + 1)
        case Rested():
            return replace(state, chunk_done=state.chunk_done + 1)
        case Inspected():
            moved = with_rank(state, report.rank, replace(rank, inspected=event))
            return replace(moved, inspected=state.inspected + 1)
        case Evaluated():
            moved = with_rank(state, report.rank, replace(rank, evaluations=(*rank.evaluations, event)))
            return replace(moved, chunk_done=state.chunk_done + 1)
        case Result():
            return with_rank(state, report.rank, replace(rank, result=event))
        case Error():
            rank = replace(rank, error=event)
            return failing(with_rank(state, report.rank, rank), how_it_ended(rank.evidence()).failure)
        case Ended():
            return _fold_ended(state, report.rank, rank, event)
        case _:
            return state


def with_rank(state: PointState, index: int, rank: RankState) -> PointState:
    ranks = state.ranks
    return replace(state, ranks=(*ranks[:index], rank, *ranks[index + 1 :]))


def failing(state: PointState, failed: Failed | None) -> PointState:
    """Note a failure, if there is one. Only the first is the cause."""
    return state if state.failure is not None else replace(state, failure=failed)


def _fold_window(state: PointState, index: int, rank: RankState, window: Window) -> PointState:
    done = state.command.windows if isinstance(state.command, Run) else 1
    count = rank.in_chunk + 1
    if window.measured:
        moved = replace(rank, in_chunk=count, windows=(*rank.windows, window))
    elif state.phase == "soaking":
        moved = replace(rank, in_chunk=count, later=(*rank.later, window))
    else:
        moved = replace(rank, in_chunk=count, warmup=(*rank.warmup, window))
    state = with_rank(state, index, moved)
    return replace(state, chunk_done=state.chunk_done + 1) if count == done else state


def _fold_ended(state: PointState, index: int, rank: RankState, ended: Ended) -> PointState:
    ending = how_it_ended(rank.evidence(ended.exit))
    if ending.failure is not None:
        state = _with_tail(failing(state, ending.failure), ending.failure)
    ended_count = state.ended + 1
    phase: Phase = "ended" if ended_count == len(state.ranks) else state.phase
    moved = replace(rank, ended=ended, ending=ending)
    return replace(with_rank(state, index, moved), ended=ended_count, phase=phase)


def _with_tail(state: PointState, outcome: Failed) -> PointState:
    """Add the log tail to the point's failure: it arrives with the end of the rank that failed."""
    failure = state.failure
    if failure is None or failure.rank != outcome.rank or failure.log_tail:
        return state
    return replace(state, failure=replace(failure, log_tail=outcome.log_tail))


def _fold_helper(state: PointState, report: Report, event: Event) -> PointState:
    roles = [helper.task.role for helper in state.helpers]
    index = roles.index(report.role) if report.role in roles else None
    if index is None or state.helpers[index].ended is not None:
        return state
    helper = state.helpers[index]
    match event:
        case Announce():
            merged = {**state.announced, **event.values}
            return replace(_put_helper(state, index, replace(helper, announced=event.values)), announced=merged)
        case Hello():
            return _put_helper(state, index, replace(helper, pid=event.pid))
        case Error():
            return failing(state, how_it_ended(helper.evidence(error=event)).failure)
        case Ended():
            ending = how_it_ended(helper.evidence(seen=event.exit))
            state = _put_helper(state, index, replace(helper, ended=event, ending=ending))
            return state if state.phase in ("finishing", "ended") else failing(state, ending.failure)
        case _:
            return state


def _put_helper(state: PointState, index: int, helper: HelperState) -> PointState:
    helpers = state.helpers
    return replace(state, helpers=(*helpers[:index], helper, *helpers[index + 1 :]))


# ---------------------------------------------------------------- forecast
# How much of a sweep is done, and how long the rest takes. Every point of a plan counts the same. The plan's
# estimate holds until measured times outweigh it.

# Before a point's windows: its start, its warm-up. Each counts like a window.
STEPS_BEFORE = 2
# The estimate weighs like so many measured seconds, and like one point at least.
ESTIMATE_WEIGHS_S = 10.0


class Ahead(NamedTuple):
    """`share` of the work is done, 0 to 1. The rest takes `left_s` seconds; None if nothing tells."""

    share: float
    left_s: float | None


class Work(NamedTuple):
    """Points of a sweep, with parts of running ones.

    `done`: all that are measured, also by earlier runs (--resume). `total`: all that are planned.
    `measured`: those of this run, in `measured_s` seconds without soak.
    """

    done: float
    total: int
    measured: float
    measured_s: float


def ahead(work: Work, *, planned_s: float, soaked_s: float = 0.0, soak_s: float = 0.0) -> Ahead:
    """Return what is ahead. `planned_s`: estimated seconds of a point, 0 if unknown. `soaked_s`: seconds of soak
    so far, of the `soak_s` seconds up to the end of this epoch."""
    weight = max(1.0, ESTIMATE_WEIGHS_S / planned_s) if planned_s else 0.0
    if not work.measured + weight:
        return Ahead(work.done / work.total, None)
    each_s = (work.measured_s + weight * planned_s) / (work.measured + weight)
    done_s, all_s = work.done * each_s + soaked_s, work.total * each_s + max(soak_s, soaked_s)
    return Ahead(done_s / all_s if all_s else 1.0, max(all_s - done_s, 0.0))


def part(state: PointState) -> float:
    """Return how much of a point is measured, 0 to 1, by the windows of its first rank."""
    if state.failure is not None or state.phase in ("soaking", "inspecting", "finishing", "ended"):
        return 1.0
    windows = len(state.ranks[0].windows)
    steps_before = STEPS_BEFORE if windows else {"starting": 0, "warming": 1}.get(state.phase, STEPS_BEFORE)
    return min(1.0, (steps_before + windows) / (STEPS_BEFORE + state.expected))
