"""The record of an ended point: its outcome, its ranks, its warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from msgspec.structs import replace

from scaling.analysis.measured import device_use
from scaling.quiet import notes as quiet
from scaling.records.events import Failed, Finished, Inspected, Outcome
from scaling.records.run import HelperRecord, PointRecord, PointWarning, RankRecord
from scaling.records.telemetry import Telemetry
from scaling.sweep.ended import most_certain
from scaling.sweep.state import HelperState, PointState, RankState
from scaling.sweep.warmup import drift_per_s

# Above this load an emulated step also depends on CPU time, not only on its sleeps and its bytes.
MOST_BUSY_PERCENT = 80
RETRIED = ("port-taken",)
UNCHECKED = PointWarning(
    kind="other",
    text="the run was ended after the measured windows: the parameters of the ranks were not compared",
)


def retries_of(state: PointState) -> tuple[str, ...]:
    """Return why a point is retried; empty if it was already retried, or if that would not help."""
    failure = cause_of(state)
    if failure is None or state.retries or failure.cause not in RETRIED:
        return ()
    return (f"{failure.cause}: {failure.message}",)


def record_of(state: PointState, *, ended_s: float) -> PointRecord:
    """Make the record of an ended point. A synchronous exchange fails if the parameters of its ranks differ."""
    ranks = tuple(_rank_record(rank) for rank in state.ranks)
    outcome: Outcome = cause_of(state) or Finished()
    if isinstance(outcome, Finished) and _must_agree(state):
        outcome = _digests_agree(state)
    measured_s = max((rank.measured_s for rank in ranks), default=0.0)
    crowding = state.crowding or _moved_together(state)
    return PointRecord(
        point=state.point,
        outcome=outcome,
        ranks=ranks,
        started_unix_s=state.started_unix_s,
        wall_s=ended_s - state.started_s,
        startup_s=max(0.0, state.ready_at_s - state.started_s) if state.ready_at_s else 0.0,
        measured_s=measured_s,
        settled=state.settled,
        oversubscribed=bool(crowding),
        gpus=state.gpus,
        crowding=crowding,
        retries=state.retries,
        warnings=tuple(_warnings(state)),
        helpers=tuple(_helper_record(one, well=state.failure is None) for one in state.helpers),
        hosts=state.ranks[0].task.hosts,
        synchronous=state.synchronous,
        pattern=state.pattern,
        updates_all=state.updates_all,
        epoch=state.epoch,
    )


def record_so_far(state: PointState, *, now_s: float) -> PointRecord:
    """Make the record of a point whose measured windows are in; the record of its end replaces it."""
    record = replace(record_of(state, ended_s=now_s), ended=False)
    unchecked = (UNCHECKED,) if _must_agree(state) and len(record.ranks) > 1 else ()
    return replace(record, warnings=(*record.warnings, *unchecked))


def _must_agree(state: PointState) -> bool:
    return state.synchronous and state.point.kind in ("exchange", "train")


def cause_of(state: PointState) -> Failed | None:
    """Return the most certain failure of a point, the first of equally certain ones; None if there is none."""
    if state.failure is None:
        return None
    endings = chain((one.ending for one in state.ranks), (one.ending for one in state.helpers))
    # A helper that left with code 0 is a cause only if it failed the point first.
    ends = (one.failure for one in endings if one.failure and isinstance(one.outcome, Failed))
    return most_certain((state.failure, *ends))


def _helper_record(helper: HelperState, *, well: bool) -> HelperRecord:
    ended = helper.ended
    outcome = helper.ending.outcome
    if well and isinstance(outcome, Failed) and outcome.cause == "cancelled":
        outcome = Finished()  # servers run until they are ended
    return HelperRecord(
        name=helper.task.role,
        launch_rank=helper.task.launch_rank,
        host=helper.host,
        outcome=outcome,
        environ=ended.environ if ended else {},
        announced=helper.announced or {},
        place=helper.task.place,
        telemetry=ended.telemetry if ended else Telemetry(),
    )


def _rank_record(rank: RankState) -> RankRecord:
    task, ended, inspected = rank.task, rank.ended, rank.inspected or Inspected()
    return RankRecord(
        rank=task.rank,
        launch_rank=task.launch_rank,
        host=task.hosts[task.rank],
        outcome=rank.ending.outcome,
        cpus=task.cpus,
        threads=task.threads,
        device_index=task.device_index,
        shown_gpu=task.shown_gpu,
        place=task.place,
        environ=ended.environ if ended else {},
        ready=rank.ready,
        warmup=rank.warmup,
        windows=tuple(sorted(rank.windows, key=lambda window: window.index)),
        disturbed=rank.disturbed,
        later=rank.later,
        unsynced=inspected.unsynced,
        beside=inspected.beside,
        traced=inspected.traced,
        traces=inspected.traces,
        gpu=inspected.gpu,
        evaluations=rank.evaluations,
        result=rank.result,
        telemetry=ended.telemetry if ended else Telemetry(),
        nccl=ended.nccl if ended else None,
    )


def _digests_agree(state: PointState) -> Outcome:
    digests = [rank.result.digest if rank.result else None for rank in state.ranks]
    for rank, digest in zip(state.ranks, digests, strict=True):
        if digest != digests[0]:
            message = f"parameters differ: rank 0 has {digests[0]}, rank {rank.task.rank} has {digest}"
            task = rank.task
            host = task.hosts[task.rank]
            return Failed(cause="digest", message=message, rank=task.rank, host=host, log=task.log)
    return Finished()


def _unsettled(state: PointState) -> str:
    seconds = sum(window.seconds for window in state.ranks[0].warmup)
    change = f"a step's time changed by {100 * drift_per_s(state):+.2f} % per second"
    return f"did not settle in {seconds:.0f} s of warm-up: at its end {change}"


def _warnings(state: PointState) -> Iterator[PointWarning]:
    if not state.settled:
        yield PointWarning(kind="unsettled", text=_unsettled(state))
    yield from _too_busy(state)
    used = ((rank.task.hosts[rank.task.rank], rank.ended.telemetry.foreign) for rank in state.ranks if rank.ended)
    yield from quiet.warnings(used, again=sum(len(rank.disturbed) for rank in state.ranks))
    if _shared_after_all(state):
        text = "no node was left for dedicated servers: they shared the training nodes"
        yield PointWarning(kind="shared-servers", text=text)
    for rank in state.ranks:
        yield from _of_rank(rank)
    for helper in state.helpers:
        yield from _throttled(helper)
        yield from _flooding(helper)


def _of_rank(rank: RankState) -> Iterator[PointWarning]:
    yield from _throttled(rank)
    yield from _flooding(rank)
    for note in rank.inspected.notes if rank.inspected else ():
        yield PointWarning(kind="other", text=f"rank {rank.task.rank}: {note}")
    if rank.result is not None and rank.result.unsaved:
        yield PointWarning(kind="other", text=f"the weights are not saved: {rank.result.unsaved}")
    if rank.ending.after_result:
        where = f"rank {rank.task.rank} on {rank.task.hosts[rank.task.rank]}"
        yield PointWarning(kind="other", text=f"{where}, once its result was in: {rank.ending.after_result}")
    telemetry = rank.ended.telemetry if rank.ended else Telemetry()
    got, promised = telemetry.affinity_cpus, len(rank.task.cpus)
    if got is not None and promised and got < promised:
        where = f"rank {rank.task.rank} on {rank.task.hosts[rank.task.rank]}"
        yield PointWarning(kind="lost-cpus", text=f"{where} had {got} CPUs instead of the promised {promised}")
    elif moved := _moved(rank):
        where = f"rank {rank.task.rank} on {rank.task.hosts[rank.task.rank]}"
        text = f"{where} ran on CPU {_listed(moved)}, and was promised CPU {_listed(rank.task.cpus)}"
        yield PointWarning(
            kind="lost-cpus", text=f"{text}; keep taskset, cpusets and OMP_PLACES off its processes"
        )


def _moved_together(state: PointState) -> str:
    """Which ranks ran on the same CPUs, because one was moved; "" if none did."""
    beside = state.ranks if state.point.kind != "each" else ()
    for rank in beside:
        host, moved = rank.task.hosts[rank.task.rank], _moved(rank)
        for other in beside if moved else ():
            shared = moved & (set(other.task.cpus) | _moved(other))
            if other is not rank and other.task.hosts[other.task.rank] == host and shared:
                numbers = f"{rank.task.rank} and {other.task.rank}"
                return f"ranks {numbers} on {host} both ran on CPU {_listed(shared)}"
    return ""


def _moved(rank: RankState) -> set[int]:
    """The CPUs of others on which threads of a rank ran, if those threads were kept off some of its own."""
    own = set(rank.task.cpus)
    if not own or rank.ended is None or rank.task.point.hardware.device != "cpu":
        return set()
    return {cpu for mask in rank.ended.telemetry.masks if not own <= set(mask) for cpu in mask} - own


def _listed(cpus: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(cpus)))


def _flooding(child: RankState | HelperState) -> Iterator[PointWarning]:
    if child.ended is not None and child.ended.log_dropped_bytes:
        where = f"{child.task.role} of rank {child.task.rank} on {child.task.hosts[child.task.rank]}"
        text = f"{where} flooded its log: {child.ended.log_dropped_bytes / 1e6:.0f} MB of it were dropped"
        yield PointWarning(kind="other", text=text)


def _throttled(child: RankState | HelperState) -> Iterator[PointWarning]:
    samples = child.ended.telemetry.samples if child.ended else ()
    if reasons := device_use.throttled(samples):
        rank = child.task.rank
        text = f"rank {rank} on {child.task.hosts[rank]} was throttled: {', '.join(reasons)}"
        yield PointWarning(kind="throttled", text=text)


def _too_busy(state: PointState) -> Iterator[PointWarning]:
    """Warn that an emulating machine is busy: its ranks wait for cores that real devices would not share."""
    hosts = dict.fromkeys(rank.task.hosts[rank.task.rank] for rank in state.ranks)
    busy = dict.fromkeys(
        rank.task.hosts[rank.task.rank]
        for rank in state.ranks
        if rank.ended and (rank.ended.telemetry.machine_cpu_percent or 0.0) > MOST_BUSY_PERCENT
    )
    if busy:
        of = f" of {', '.join(busy)}" if len(busy) < len(hosts) else ""
        text = (
            f"CPUs{of} were over {MOST_BUSY_PERCENT} % busy while they emulated: times are too long; "
            "keep other programs off them, or raise --dilate"
        )
        yield PointWarning(kind="busy-cpus", text=text)


def _shared_after_all(state: PointState) -> bool:
    task = state.ranks[0].task
    return state.point.server_hosts == "dedicated" and any(one.host in task.hosts for one in task.servers)
