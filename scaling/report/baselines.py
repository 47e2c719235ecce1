"""The baselines of a report: what one device does. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis import rows as analysed
from scaling.analysis.analyse import Analysis
from scaling.analysis.rows import Row
from scaling.records.point import Hardware, Unit, Workload
from scaling.report import cells, labels, quantities
from scaling.report.labels import Context
from scaling.report.parts import Baseline, Baselines, Notes

Work = tuple[Workload, Hardware]


def baselines(analysis: Analysis, context: Context, notes: Notes, *, compares: bool) -> tuple[Baselines, ...]:
    """A table per unit of samples: the plain loops, and the single ranks of strategies, which a comparison has
    at N = 1 already."""
    by_unit: dict[Unit, list[Baseline]] = {}
    for measured, line in zip(analysis.baselines, _plain_loops(analysis, notes), strict=True):
        by_unit.setdefault(measured.workload.unit, []).append(line)
    for row in () if compares else analysis.rows:
        if row.world_size == 1 and row.samples_per_s is not None and not row.is_plain:
            by_unit.setdefault(row.workload.unit, []).append(_single_rank(row, context))
    return tuple(Baselines(rate_unit=f"{unit}/s", lines=tuple(lines)) for unit, lines in by_unit.items())


def _plain_loops(analysis: Analysis, notes: Notes) -> Iterator[Baseline]:
    references = {_reference(row) for row in analysis.rows}
    several = len({measured.strategy for measured in analysis.baselines}) > 1
    for measured, name in zip(analysis.baselines, _names(analysis.baselines), strict=True):
        is_whole = _work(measured) in references and measured.samples_per_s is not None
        of = f" for {measured.strategy.partition(':')[0]}" if several else ""
        yield Baseline(
            name=f"{name}, one device",
            batch_size=measured.workload.batch_size,
            rate=quantities.rate(measured.samples_per_s, measured.workload),
            says="" if measured.failed is None else cells.outcome(measured.failed),
            efficiency=f"= 100 %{of}" if is_whole else "",
            flags=_flags(measured),
            marks=notes.marks(measured.footnotes),
        )


def _reference(row: Row) -> Work:
    """The work of the one device behind the row's efficiency."""
    return _alone(row.workload.reference(row.world_size)), row.hardware


def _work(measured: analysed.Baseline) -> Work:
    return _alone(measured.workload), measured.hardware


def _alone(work: Workload) -> Workload:
    return work.alone(work.batch_size)


def _names(measured: Sequence[analysed.Baseline]) -> Iterator[str]:
    """The strategy, and of the conditions those that are not the same for all."""
    conditions = [labels.conditions(one) for one in measured]
    varying = [index for index, values in enumerate(zip(*conditions, strict=True)) if len(set(values)) > 1]
    for one, values in zip(measured, conditions, strict=True):
        yield ", ".join((one.strategy, *(values[index] for index in varying)))


def _single_rank(row: Row, context: Context) -> Baseline:
    return Baseline(
        name=f"{labels.title([row], context)}, one rank",
        batch_size=row.workload.batch_size,
        rate=quantities.rate(row.samples_per_s, row.workload),
        efficiency=quantities.percent(row.efficiency) or "",
        flags=_flags(row),
    )


def _flags(measured: Row | analysed.Baseline) -> tuple[str, ...]:
    return ("EMULATED",) if measured.hardware.profile else ()
