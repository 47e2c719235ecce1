"""The record of an ended point: its outcome, its ranks, its warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from scaling.analysis.measured import device_use
from scaling.analysis.table.footnotes import describe
from scaling.quiet import notes as quiet
from scaling.records.events import Ended, Failed, Finished, Inspected
from scaling.records.run import HelperRecord, PointRecord, PointWarning, RankRecord, WarningKind
from scaling.records.task import Command, Finish, Inspect, Rest, Run
from scaling.sweep.ended import WELL, most_certain
from scaling.sweep.state import ChildState, PointState
from scaling.sweep.warmup import drift_per_s

# Above this load an emulated step also depends on CPU time, not only on its sleeps and its bytes.
MOST_BUSY_PERCENT = 80
RETRIED = ("port-taken",)
LATE_PHASES: dict[type[Command] | type[None], str] = {Inspect: "digest or uncounted steps", Finish: "digest"}
NOT_COMPARED = "the parameters of the ranks were not compared"
UNCHECKED = PointWarning(kind="other", text=f"the run was ended after the measured windows: {NOT_COMPARED}")


def retries_of(state: PointState) -> tuple[str, ...]:
    """Return why a point is retried; empty if it was already retried, or if that would not help."""
    failure = cause_of(state)
    if failure is None or state.retries or failure.cause not in RETRIED:
        return ()
    return (f"{failure.cause}: {failure.message}",)


def record_of(state: PointState, *, ended_s: float) -> PointRecord:
    """Make the record of an ended point. A synchronous exchange fails if the parameters of its ranks differ."""
    ranks = tuple(map(_rank_record, state.ranks))
    crowding = state.crowding or _moved_together(state)
    return PointRecord(
        point=state.point,
        outcome=cause_of(state) or (_different_digests(state) if _must_agree(state) else None) or Finished(),
        ranks=ranks,
        started_unix_s=state.started_unix_s,
        wall_s=ended_s - state.started_s,
        startup_s=max(0.0, state.ready_at_s - state.started_s) if state.ready_at_s else 0.0,
        measured_s=max((rank.measured_s for rank in ranks), default=0.0),
        settled=state.settled,
        oversubscribed=bool(crowding),
        gpus=state.gpus,
        crowding=crowding,
        retries=state.retries,
        warnings=tuple(PointWarning(kind=kind, text=text) for kind, text in _warnings(state)),
        helpers=tuple(_helper_record(one, well=state.failure is None) for one in state.helpers),
        hosts=state.ranks[0].task.hosts,
        synchronous=state.synchronous,
        pattern=state.pattern,
        updates_all=state.updates_all,
        epoch=state.epoch,
    )


def spared(state: PointState, failure: Failed) -> PointState:
    """Return the state of a point that failed after its measured windows, without the failure and without the part
    of its soak or uncounted steps that it had."""
    ranks = tuple(replace(rank, ending=WELL) for rank in state.ranks)
    if not isinstance(state.command, Finish):
        ranks = tuple(replace(rank, inspected=None) for rank in ranks)
    if isinstance(state.command, Run | Rest):
        ranks = tuple(replace(rank, later=()) for rank in ranks)
    helpers = tuple(replace(helper, ending=WELL) for helper in state.helpers)
    return replace(state, ranks=ranks, helpers=helpers, failure=None, spared=failure)


def record_so_far(state: PointState, *, now_s: float) -> PointRecord:
    """Make the record of a point whose measured windows are in; the record of its end replaces it."""
    record = record_of(state, ended_s=now_s)
    unchecked = (UNCHECKED,) if _must_agree(state) and len(record.ranks) > 1 else ()
    return replace(record, ended=False, warnings=(*record.warnings, *unchecked))


def cause_of(state: PointState) -> Failed | None:
    """Return the most certain failure of a point, the first of equally certain ones; None if there is none."""
    if state.failure is None:
        return None
    endings = (one.ending for one in (*state.ranks, *state.helpers))
    # A helper that left with code 0 is a cause only if it failed the point first.
    ends = (one.failure for one in endings if one.failure and isinstance(one.outcome, Failed))
    return most_certain((state.failure, *ends))


def _must_agree(state: PointState) -> bool:
    return state.synchronous and state.point.kind in ("exchange", "train") and not state.spared


def _different_digests(state: PointState) -> Failed | None:
    digests = [rank.result.digest if rank.result else None for rank in state.ranks]
    for rank, digest in zip(state.ranks, digests, strict=True):
        if digest != digests[0]:
            number = rank.task.rank
            message = f"parameters differ: rank 0 has {digests[0]}, rank {number} has {digest}"
            return Failed(cause="digest", message=message, rank=number, host=rank.host, log=rank.task.log)
    return None


def _helper_record(helper: ChildState, *, well: bool) -> HelperRecord:
    task, ended, outcome = helper.task, helper.ended or Ended(), helper.ending.outcome
    if well and isinstance(outcome, Failed) and outcome.cause == "cancelled":
        outcome = Finished()  # servers run until they are ended
    return HelperRecord(
        name=task.role, launch_rank=task.launch_rank, host=helper.host, place=task.place, outcome=outcome,
        announced=helper.announced or {}, environ=ended.environ, telemetry=ended.telemetry,
    )  # fmt: skip


def _rank_record(rank: ChildState) -> RankRecord:
    task, ended, seen = rank.task, rank.ended or Ended(), rank.inspected or Inspected()
    return RankRecord(
        rank=task.rank, launch_rank=task.launch_rank, host=rank.host, place=task.place, cpus=task.cpus,
        threads=task.threads, device_index=task.device_index, shown_gpu=task.shown_gpu,
        ready=rank.ready, warmup=rank.warmup, disturbed=rank.disturbed, later=rank.later,
        windows=tuple(sorted(rank.windows, key=lambda window: window.index)),
        unsynced=seen.unsynced, beside=seen.beside, traced=seen.traced, traces=seen.traces, gpu=seen.gpu,
        evaluations=rank.evaluations, result=rank.result, outcome=rank.ending.outcome,
        environ=ended.environ, telemetry=ended.telemetry, nccl=ended.nccl,
    )  # fmt: skip


# ---------------------------------------------------------------- warnings

Warnings = Iterator[tuple[WarningKind, str]]


def _warnings(state: PointState) -> Warnings:
    if state.spared:
        phase = LATE_PHASES.get(type(state.command), "soak")
        unchecked = "" if len(state.ranks) == 1 else f"; {NOT_COMPARED}"
        yield "other", f"{phase} failed after the measured windows: {describe(state.spared)}{unchecked}"
    if not state.settled:
        seconds = sum(window.seconds for window in state.ranks[0].warmup)
        change = f"a step's time changed by {100 * drift_per_s(state):+.2f} % per second"
        yield "unsettled", f"did not settle in {seconds:.0f} s of warm-up: at its end {change}"
    yield from _too_busy(state)
    used = ((rank.host, rank.ended.telemetry.foreign) for rank in state.ranks if rank.ended)
    for one in quiet.warnings(used, again=sum(len(rank.disturbed) for rank in state.ranks)):
        yield one.kind, one.text
    task = state.ranks[0].task
    if state.point.server_hosts == "dedicated" and any(one.host in task.hosts for one in task.servers):
        yield "shared-servers", "no node was left for dedicated servers: they shared the training nodes"
    for rank in state.ranks:
        yield from _of_child(rank)
        yield from _of_rank(rank)
    for helper in state.helpers:
        yield from _of_child(helper)


def _of_child(child: ChildState) -> Warnings:
    task, ended = child.task, child.ended or Ended()
    where = f"rank {task.rank} on {task.hosts[task.rank]}"
    if reasons := device_use.throttled(ended.telemetry.samples):
        yield "throttled", f"{where} was throttled: {', '.join(reasons)}"
    if dropped := ended.log_dropped_bytes:
        yield "other", f"{task.role} of {where} flooded its log: {dropped / 1e6:.0f} MB of it were dropped"


def _of_rank(rank: ChildState) -> Warnings:
    own, where = rank.task.cpus, f"rank {rank.task.rank} on {rank.host}"
    for note in rank.inspected.notes if rank.inspected else ():
        yield "other", f"rank {rank.task.rank}: {note}"
    if rank.result is not None and rank.result.unsaved:
        yield "other", f"the weights are not saved: {rank.result.unsaved}"
    if rank.ending.after_result:
        yield "other", f"{where}, once its result was in: {rank.ending.after_result}"
    got = rank.ended.telemetry.affinity_cpus if rank.ended else None
    if got is not None and own and got < len(own):
        yield "lost-cpus", f"{where} had {got} CPUs instead of the promised {len(own)}"
    elif moved := _moved(rank):
        text = f"{where} ran on CPU {_listed(moved)}, and was promised CPU {_listed(own)}"
        yield "lost-cpus", f"{text}; keep taskset, cpusets and OMP_PLACES off its processes"


def _moved_together(state: PointState) -> str:
    """Which ranks ran on the same CPUs, because one was moved; "" if none did."""
    beside = state.ranks if state.point.kind != "each" else ()
    for rank in beside:
        moved = _moved(rank)
        for other in beside if moved else ():
            shared = moved & (set(other.task.cpus) | _moved(other))
            if other is not rank and other.host == rank.host and shared:
                numbers = f"{rank.task.rank} and {other.task.rank}"
                return f"ranks {numbers} on {rank.host} both ran on CPU {_listed(shared)}"
    return ""


def _moved(rank: ChildState) -> set[int]:
    """The CPUs of others on which threads of a rank ran, if those threads were kept off some of its own."""
    own = set(rank.task.cpus)
    if not own or rank.ended is None or rank.task.point.hardware.device != "cpu":
        return set()
    return {cpu for mask in rank.ended.telemetry.masks if not own <= set(mask) for cpu in mask} - own


def _listed(cpus: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(cpus)))


def _too_busy(state: PointState) -> Warnings:
    """Warn that an emulating machine is busy: its ranks wait for cores that real devices would not share."""
    load = ((rank.host, rank.ended.telemetry.machine_cpu_percent) for rank in state.ranks if rank.ended)
    if busy := dict.fromkeys(host for host, percent in load if (percent or 0.0) > MOST_BUSY_PERCENT):
        of = f" of {', '.join(busy)}" if len(busy) < len({rank.host for rank in state.ranks}) else ""
        yield (
            "busy-cpus",
            f"CPUs{of} were over {MOST_BUSY_PERCENT} % busy while they emulated: times are too long; "
            "keep other programs off them, or raise --dilate",
        )
