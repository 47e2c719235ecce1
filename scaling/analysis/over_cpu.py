"""GPUs against the CPU beside them: how many times as fast each trains, as studies of CPUs and GPUs have it. Pure.

The CPU has all cores of a host, and computes in fp32; a GPU computes as its sweep does. Both have the batch of one
GPU and the same framework. Ratios are formed inside rounds, with Student's interval of their logarithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from scaling.analysis.alone import Alone
from scaling.analysis.cell import Cell
from scaling.analysis.cell_rows import baseline
from scaling.analysis.controls import Controls
from scaling.analysis.rows import Baseline, Contender, OverCpu, Row
from scaling.analysis.stats import Estimate, geometric
from scaling.records.point import Point, Workload

Rates = Mapping[int, float]


def over_cpu(cells: Sequence[Cell], rows: Sequence[Row], controls: Controls) -> Iterator[OverCpu]:
    """Of each CPU that stands beside GPUs, the plain loop of one GPU, then the exchanges."""
    for alone in controls.baselines():
        if alone.whole.point.hardware.cores:
            cpu = baseline(alone)
            yield from _of_plain_loops(alone, cpu, controls)
            yield from _of_exchanges(alone, cpu, cells, rows, controls)


def _of_plain_loops(alone: Alone, cpu: Baseline, controls: Controls) -> Iterator[OverCpu]:
    for other in controls.baselines():
        point = other.whole.point
        if point.hardware.device == "cuda" and _is_same(point.strategy, point.workload, cpu):
            made = baseline(other)
            yield OverCpu(
                contender=Contender(strategy=made.strategy, interconnect="auto", options={}),
                alone=True,
                workload=made.workload,
                hardware=made.hardware,
                world_size=1,
                samples_per_s=made.samples_per_s,
                ratio=_ratio(_alone(other), _alone(alone)),
                cpu=cpu,
                failed=made.failed,
                footnotes=made.footnotes,
            )


def _of_exchanges(
    alone: Alone, cpu: Baseline, cells: Sequence[Cell], rows: Sequence[Row], controls: Controls
) -> Iterator[OverCpu]:
    for cell, row in zip(cells, rows, strict=True):
        point = cell.point
        if point.hardware.device == "cuda" and _is_same(controls.plain(point.strategy), point.reference, cpu):
            yield OverCpu(
                contender=Contender(**{name: getattr(row, name) for name in Contender.__struct_fields__}),
                alone=False,
                workload=row.workload,
                hardware=row.hardware,
                world_size=row.world_size,
                samples_per_s=row.samples_per_s,
                ratio=_ratio(_own(cell, point), _alone(alone)),
                cpu=cpu,
                failed=row.failed,
                footnotes=row.footnotes,
            )


def _is_same(plain: str, work: Workload, cpu: Baseline) -> bool:
    """Whether it is the same work in the same framework, however numbers are kept in memory."""
    return plain == cpu.strategy and _work(work) == _work(cpu.workload)


def _work(work: Workload) -> Workload:
    return replace(work.alone(work.batch_size), precision="fp32", memory_format="contiguous")


def _own(cell: Cell, point: Point) -> Rates:
    return {number: point.global_batch_size / time.step_s for number, time in cell.times.items()}


def _alone(alone: Alone) -> Rates:
    batch_size = alone.whole.point.workload.batch_size
    return {number: batch_size / time.harmonic_s for number, time in alone.times(alone.seats(0), 0).items()}


def _ratio(gpu: Rates, cpu: Rates) -> Estimate | None:
    ratios = [gpu[number] / cpu[number] for number in sorted(gpu.keys() & cpu.keys())]
    return geometric(ratios) if ratios else None
