"""The live state of a running point, folded from the reports of its children: `fold(state, report)`; the forecast.

Times are in the events or arguments. Ranks are counted as they report, but each report copies the tuple of ranks:
some 10 us at 1,000 ranks (tests/bench/collector.py).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from scaling.records.events import (
    Announce,
    Ended,
    Error,
    Evaluated,
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


class ChildState(Record, frozen=True, kw_only=True):
    """One worker or helper, by its events.

    `in_chunk`: windows of a worker's running command.
    `announced`: how a helper can be reached, None until then. If it is `awaited`, workers start only then;
    otherwise they wait for it themselves.
    """

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
    awaited: bool = True
    announced: dict[str, str] | None = None
    error: Error | None = None
    ended: Ended | None = None
    ending: Ending = UNSEEN

    @property
    def host(self) -> str:
        beside = (server.host for server in self.task.servers if server.launch_rank == self.task.launch_rank)
        return next(beside, self.task.hosts[self.task.rank])

    def evidence(self, seen: Exit | None = None, *, error: Error | None = None) -> Evidence:
        is_done, error = self.result is not None or self.announced is not None, error or self.error
        return Evidence(task=self.task, host=self.host, error=error, is_done=is_done, exit=seen)


class PointState(Record, frozen=True, kw_only=True):
    """One running point. Times are CLOCK_MONOTONIC of rank 0.

    `expected`: measured windows that each rank will report.
    `ready`, `inspected`, `ended`: numbers of ranks.
    `told`, `chunk_done`: numbers of ranks with the running command, and of those that are done with it.
    `crowding`: why its ranks have fewer CPUs than intended, so that nothing is claimed.
    `failure`: the first failure, which is the cause; its consequences are recorded as cancelled.
    `spared`: a failure after the measured windows, which does not fail the point.
    `epoch`: number shared by points that live side by side; None for a point alone.
    """

    point: Point
    ranks: tuple[ChildState, ...]
    expected: int
    started_s: float
    started_unix_s: float
    phase: Phase = "starting"
    helpers: tuple[ChildState, ...] = ()
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
    spared: Failed | None = None
    retries: tuple[str, ...] = ()
    epoch: int | None = None

    @property
    def waits_for_helpers(self) -> bool:
        """Whether workers must not start yet: an `awaited` helper cannot be reached."""
        return any(helper.awaited and helper.announced is None for helper in self.helpers)

    @property
    def all_ready(self) -> bool:
        return self.ready == len(self.ranks) and all(helper.announced is not None for helper in self.helpers)

    @property
    def chunk_complete(self) -> bool:
        """Whether every rank with the running command is done with it, or rests."""
        return isinstance(self.command, Run | Rest | Train | Evaluate) and self.chunk_done == self.told

    def with_child(
        self, kind: Literal["ranks", "helpers"], index: int, own: dict[str, Any], **others: Any
    ) -> PointState:
        """Return the state with `own` fields of one worker or helper, and other fields of its own."""
        every = getattr(self, kind)
        return replace(
            self, **{kind: (*every[:index], replace(every[index], **own), *every[index + 1 :])}, **others
        )


def commanded(state: PointState, command: Command, told: int | None = None) -> PointState:
    """Return the state after `command` was sent to `told` ranks, or to all."""
    count = len(state.ranks) if told is None else told
    match command:
        case Finish():
            return replace(state, command=command, phase="finishing")
        case Inspect():
            return replace(state, command=command, phase="inspecting", told=state.inspected + count)
        case Rest():
            return replace(state, command=command, told=count, chunk_done=0)
        case Evaluate():
            return replace(state, command=command, told=count, chunk_done=0, phase="evaluating")
        case Train() | Run(measured=True):
            phase: Phase = "measuring"
        case Run():
            phase = "soaking" if any(rank.windows for rank in state.ranks) else "warming"
    ranks = tuple(replace(rank, in_chunk=0) for rank in state.ranks)
    return replace(state, command=command, told=count, chunk_done=0, phase=phase, ranks=ranks)


def fold(state: PointState, report: Report) -> PointState:
    """Return the state after one report. Reports of ended children change nothing."""
    event, is_worker = report.event, report.role == "worker"
    kind: Literal["ranks", "helpers"] = "ranks" if is_worker else "helpers"
    every = state.ranks if is_worker else state.helpers
    roles = (number for number, one in enumerate(every) if one.task.role == report.role)
    index = report.rank if is_worker else next(roles, -1)
    if index < 0 or every[index].ended is not None:
        return state
    told, child = partial(state.with_child, kind, index), every[index]
    match event:
        case Window():
            phase = "windows" if event.measured else "later" if state.phase == "soaking" else "warmup"
            count, wanted = child.in_chunk + 1, state.command.windows if isinstance(state.command, Run) else 1
            own = {"in_chunk": count, phase: (*getattr(child, phase), event)}
            return told(own, chunk_done=state.chunk_done + (count == wanted))
        case Hello():
            return told({"pid": event.pid})
        case Announce(values=values):
            return told({"announced": values}, announced={**state.announced, **values})
        case Ready():
            return told({"ready": event}, ready=state.ready + 1)
        case Rested():
            return replace(state, chunk_done=state.chunk_done + 1)
        case Inspected():
            return told({"inspected": event}, inspected=state.inspected + 1)
        case Evaluated():
            return told({"evaluations": (*child.evaluations, event)}, chunk_done=state.chunk_done + 1)
        case Result():
            return told({"result": event})
        case Error():
            # The end of a helper is judged without its error.
            return failing(
                told({"error": event if is_worker else None}), how_it_ended(child.evidence(error=event)).failure
            )
        case Ended():
            ending = how_it_ended(child.evidence(event.exit))
            state = told({"ended": event, "ending": ending})
            if is_worker:
                return _with_ended(state, ending)
            return state if state.phase in ("finishing", "ended") else failing(state, ending.failure)
    return state


def _with_ended(state: PointState, ending: Ending) -> PointState:
    state, own, ended = failing(state, ending.failure), ending.failure, state.ended + 1
    first, phase = state.failure, "ended" if ended == len(state.ranks) else state.phase
    if first and own and first.rank == own.rank and not first.log_tail:
        # The tail of the log arrives with the end of the rank that failed.
        first = replace(first, log_tail=own.log_tail)
    return replace(state, failure=first, ended=ended, phase=phase)


def failing(state: PointState, failed: Failed | None) -> PointState:
    """Note a failure, if there is one. Only the first is the cause."""
    return state if state.failure is not None else replace(state, failure=failed)


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


def ahead(
    done: float, total: int, measured: float, measured_s: float, *, planned_s: float, soaked_s: float = 0.0,
    soak_s: float = 0.0,
) -> Ahead:  # fmt: skip
    """Return what is ahead of a sweep of `total` points.

    `done`: all that are measured, also by earlier runs (--resume), with parts of running ones.
    `measured`: those of this run, in `measured_s` seconds without soak.
    `planned_s`: estimated seconds of a point, 0 if unknown.
    `soaked_s`: seconds of soak so far, of the `soak_s` seconds up to the end of this epoch.
    """
    weight = max(1.0, ESTIMATE_WEIGHS_S / planned_s) if planned_s else 0.0
    if not measured + weight:
        return Ahead(done / total, None)
    each_s = (measured_s + weight * planned_s) / (measured + weight)
    done_s, all_s = done * each_s + soaked_s, total * each_s + max(soak_s, soaked_s)
    return Ahead(done_s / all_s if all_s else 1.0, max(all_s - done_s, 0.0))


def part(state: PointState) -> float:
    """Return how much of a point is measured, 0 to 1, by the windows of its first rank."""
    if state.failure is not None or state.phase in ("soaking", "inspecting", "finishing", "ended"):
        return 1.0
    windows = len(state.ranks[0].windows)
    steps_before = STEPS_BEFORE if windows else {"starting": 0, "warming": 1}.get(state.phase, STEPS_BEFORE)
    return min(1.0, (steps_before + windows) / (STEPS_BEFORE + state.expected))
