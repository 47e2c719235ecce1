"""Records of points that end with profiled steps, on GPUs that nobody has: times are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from scaling.records.run import PointRecord
from scaling.records.telemetry import Collective, GpuTime, Kernels
from tests.support.scripted_records import point, record, windows

STEPS_TRACED = 5


def gpu(
    *, compute_s: float, idle_s: float, runs: Iterable[tuple[float, float]] = (), kernels: Sequence[Kernels] = ()
) -> GpuTime:
    """So much per step; `runs` are each step's collectives: how long, and how much of that is exposed."""
    collectives = [
        Collective(name="ncclDevKernel_AllReduce", run_s=a, exposed_s=b) for a, b in runs
    ] * STEPS_TRACED
    exposed_s = sum(one.exposed_s for one in collectives)
    busy_s, quiet_s = STEPS_TRACED * compute_s, STEPS_TRACED * idle_s
    return GpuTime(
        steps=STEPS_TRACED, span_s=busy_s + quiet_s + exposed_s, compute_s=busy_s, idle_s=quiet_s,
        kernels=tuple(kernels), collectives=tuple(collectives),
    )  # fmt: skip


def runs(name: str, per_step: int, each_s: float) -> Kernels:
    count = STEPS_TRACED * per_step
    return Kernels(name=name, count=count, run_s=count * each_s)


def with_traces(made: PointRecord, step_s: float, gpus: Sequence[GpuTime] = ()) -> PointRecord:
    kind, size = made.point.kind, made.point.world_size
    ranks = tuple(
        replace(
            rank,
            traced=windows(step_s, 32)[:1],
            traces=(f"traces/0001-fake-a-{kind}-n{size}-r0.{rank.rank}.json.gz",),
            gpu=gpus[rank.rank] if gpus else None,
        )
        for rank in made.ranks
    )
    return replace(made, ranks=ranks)


def of_two_devices(step_s: float, gpus: Sequence[GpuTime], alone: Sequence[GpuTime]) -> list[PointRecord]:
    """Two rounds of solo, together and exchange on two devices; the first ends with profiled steps."""
    first = [
        record(point("solo"), 0.1),
        with_traces(record(point("together", 2), 0.1), 0.1, alone),
        with_traces(record(point("exchange", 2), 0.2), step_s, gpus),
    ]
    return [
        *first,
        *(replace(one, point=replace(one.point, round=1), ranks=record(one.point, 0.2).ranks) for one in first),
    ]
