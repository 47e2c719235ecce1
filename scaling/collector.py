"""fold(state, event): what a point's children report -> its live state, and in the end its PointRecord.

Pure: no clock, no I/O; every time stands in the events or is given. The sweep decides on this state
and the view draws it. Counts of ranks are kept so that folding costs the same at any world size.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from scaling.messages import Report
from scaling.records import (
    Announce,
    Ended,
    Error,
    Event,
    Failed,
    Finished,
    Hello,
    Outcome,
    Point,
    PointRecord,
    RankRecord,
    Ready,
    Record,
    Result,
    Telemetry,
    Window,
)
from scaling.tasks import Command, Finish, Run, Task

# A survivor may tell of its peer's death before the peer's agent does.
PEER_GONE = ("connection", "peer", "broken pipe", "socket", "remote")
CONSEQUENCES = ("error", "cancelled", "interrupted", "hang")

Phase = Literal["starting", "warming", "measuring", "finishing", "ended"]


class RankState(Record, frozen=True):
    """One worker, as far as its events tell. `in_chunk` counts the windows of the running command."""

    task: Task
    pid: int = 0
    in_chunk: int = 0
    warmup: tuple[Window, ...] = ()
    windows: tuple[Window, ...] = ()
    ready: Ready | None = None
    result: Result | None = None
    error: Error | None = None
    ended: Ended | None = None


class PointState(Record, frozen=True):
    """One running point. `expected` is the number of measured windows that each rank will report.

    `failure` is the first failure: the cause; what follows from it is recorded as cancelled.
    Times are CLOCK_MONOTONIC of rank 0.
    """

    point: Point
    ranks: tuple[RankState, ...]
    expected: int
    started_s: float
    started_unix_s: float
    phase: Phase = "starting"
    helpers_waited: int = 0
    announced: dict[str, str] = {}
    command: Command | None = None
    ready: int = 0
    chunk_done: int = 0
    ended: int = 0
    ready_at_s: float = 0.0
    settled: bool = True
    oversubscribed: bool = False
    failure: Failed | None = None
    retries: tuple[str, ...] = ()

    @property
    def chunk_complete(self) -> bool:
        """Every rank has reported every window of the running command."""
        return isinstance(self.command, Run) and self.chunk_done == len(self.ranks)


def commanded(state: PointState, command: Command) -> PointState:
    """The state after `command` was sent to every rank."""
    if isinstance(command, Finish):
        return replace(state, command=command, phase="finishing")
    ranks = tuple(replace(rank, in_chunk=0) for rank in state.ranks)
    phase: Phase = "measuring" if command.measured else "warming"
    return replace(state, command=command, phase=phase, ranks=ranks, chunk_done=0)


def fold(state: PointState, report: Report) -> PointState:
    """Return the state after one report; reports of children that already ended change nothing."""
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
            return _put(state, report.rank, replace(rank, pid=event.pid))
        case Ready():
            return replace(_put(state, report.rank, replace(rank, ready=event)), ready=state.ready + 1)
        case Result():
            return _put(state, report.rank, replace(rank, result=event))
        case Error():
            failed = _failed(rank, event.cause, event.message)
            return failing(_put(state, report.rank, replace(rank, error=event)), failed)
        case Ended():
            return _fold_ended(state, report.rank, rank, event)
        case _:
            return state


def _put(state: PointState, index: int, rank: RankState) -> PointState:
    ranks = state.ranks
    return replace(state, ranks=(*ranks[:index], rank, *ranks[index + 1 :]))


def _failed(rank: RankState, cause: str, message: str, log_tail: str = "") -> Failed:
    task = rank.task
    host = task.hosts[task.rank]
    return Failed(cause=cause, message=message, rank=task.rank, host=host, log=task.log, log_tail=log_tail)


def failing(state: PointState, failed: Failed) -> PointState:
    """Note a failure; only the first one is the cause."""
    return state if state.failure is not None else replace(state, failure=failed)


def _fold_window(state: PointState, index: int, rank: RankState, window: Window) -> PointState:
    done = state.command.windows if isinstance(state.command, Run) else 0
    count = rank.in_chunk + 1
    if window.measured:
        moved = replace(rank, in_chunk=count, windows=(*rank.windows, window))
    else:
        moved = replace(rank, in_chunk=count, warmup=(*rank.warmup, window))
    state = _put(state, index, moved)
    return replace(state, chunk_done=state.chunk_done + 1) if count == done else state


def _fold_ended(state: PointState, index: int, rank: RankState, ended: Ended) -> PointState:
    outcome = ended.outcome
    if isinstance(outcome, Finished) and rank.result is None:
        outcome = _failed(rank, "no-result", "exited 0 without a result")
    if isinstance(outcome, Failed):
        outcome = _explained(rank, outcome)
        state = _with_tail(failing(state, outcome), outcome)
    moved = replace(rank, ended=replace(ended, outcome=outcome))
    ended_count = state.ended + 1
    phase: Phase = "ended" if ended_count == len(state.ranks) else state.phase
    return replace(_put(state, index, moved), ended=ended_count, phase=phase)


def _explained(rank: RankState, outcome: Failed) -> Failed:
    """What a worker said itself explains its end better than its exit code does."""
    said = rank.error or outcome
    return _failed(rank, said.cause, said.message, outcome.log_tail)


def _with_tail(state: PointState, outcome: Failed) -> PointState:
    """Give the point's failure the log tail that arrives with the end of the rank that caused it."""
    failure = state.failure
    if failure is None or failure.rank != outcome.rank or failure.log_tail:
        return state
    return replace(state, failure=replace(failure, log_tail=outcome.log_tail))


def _fold_helper(state: PointState, report: Report, event: Event) -> PointState:
    match event:
        case Announce():
            merged = {**state.announced, **event.values}
            return replace(state, announced=merged, helpers_waited=state.helpers_waited - 1)
        case Error():
            return failing(state, _helper_failed(state, report, event.cause, event.message))
        case Ended(outcome=Finished()) if state.helpers_waited:
            message = "exited 0 before it announced itself"
            return failing(state, _helper_failed(state, report, "no-result", message))
        case Ended(outcome=Failed() as failed) if state.phase not in ("finishing", "ended"):
            return failing(state, _helper_failed(state, report, failed.cause, failed.message))
        case _:
            return state


def _helper_failed(state: PointState, report: Report, cause: str, message: str) -> Failed:
    return _failed(state.ranks[report.rank], cause, f"helper {report.role}: {message}")


# ---------------------------------------------------------------- the end: a PointRecord


def record(state: PointState, *, ended_s: float, synchronous: bool) -> PointRecord:
    """Make what is kept of an ended point. A synchronous exchange whose ranks' parameters differ is void."""
    ranks = tuple(_rank_record(rank) for rank in state.ranks)
    outcome: Outcome = _root_cause(state) or Finished()
    if isinstance(outcome, Finished) and synchronous and state.point.kind == "exchange":
        outcome = _digests_agree(state)
    measured_s = max((rank.measured_s for rank in ranks), default=0.0)
    return PointRecord(
        point=state.point,
        outcome=outcome,
        ranks=ranks,
        started_unix_s=state.started_unix_s,
        wall_s=ended_s - state.started_s,
        startup_s=max(0.0, state.ready_at_s - state.started_s) if state.ready_at_s else 0.0,
        measured_s=measured_s,
        settled=state.settled,
        oversubscribed=state.oversubscribed,
        retries=state.retries,
        warnings=_warnings(state),
    )


def _root_cause(state: PointState) -> Failed | None:
    """The first failure, unless it only tells that a peer was gone: then the peer's own end."""
    first = state.failure
    if first is None or first.cause != "error" or not any(w in first.message.lower() for w in PEER_GONE):
        return first
    ends = [rank.ended.outcome for rank in state.ranks if rank.ended is not None]
    deaths = [end for end in ends if isinstance(end, Failed) and end.cause not in CONSEQUENCES]
    return deaths[0] if deaths else first


def _rank_record(rank: RankState) -> RankRecord:
    task, ended = rank.task, rank.ended
    return RankRecord(
        rank=task.rank,
        launch_rank=task.launch_rank,
        host=task.hosts[task.rank],
        outcome=ended.outcome if ended else Failed(cause="no-result", message="never ended"),
        cpus=task.cpus,
        threads=task.threads,
        device_index=task.device_index,
        environ=ended.environ if ended else {},
        ready=rank.ready,
        warmup=rank.warmup,
        windows=rank.windows,
        result=rank.result,
        telemetry=ended.telemetry if ended else Telemetry(),
    )


def _digests_agree(state: PointState) -> Outcome:
    digests = [rank.result.digest if rank.result else None for rank in state.ranks]
    for rank, digest in zip(state.ranks, digests, strict=True):
        if digest != digests[0]:
            message = f"parameters differ: rank 0 has {digests[0]}, rank {rank.task.rank} has {digest}"
            return _failed(rank, "digest", message)
    return Finished()


def _warnings(state: PointState) -> tuple[str, ...]:
    """What a reader of the row must know."""
    found: list[str] = []
    if not state.settled:
        found.append("never settled: the warm-up hit its ceiling with windows still drifting")
    for rank in state.ranks:
        telemetry = rank.ended.telemetry if rank.ended else Telemetry()
        where = f"rank {rank.task.rank} on {rank.task.hosts[rank.task.rank]}"
        throttled = sorted({reason for sample in telemetry.samples for reason in sample.throttle})
        if throttled:
            found.append(f"{where} was throttled: {', '.join(throttled)}")
        got, promised = telemetry.affinity_cpus, len(rank.task.cpus)
        if got is not None and promised and got < promised:
            found.append(f"{where} had {got} CPUs instead of the promised {promised}")
    return tuple(found)
