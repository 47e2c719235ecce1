"""GPUs beside the CPU of their host: a table per CPU and framework. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.analysis.table import catalogue
from scaling.analysis.table.entries import Column
from scaling.analysis.table.rows import Baseline, OverCpu
from scaling.report import labels, quantities
from scaling.report.labels import Context
from scaling.report.parts import Cell, Line, Notes, Quantity, Section

TITLE = "GPUs over the CPU"
PRECISION = Column(key="precision", title="precision", is_text=True)
RATIO = Column(key="over_cpu", title="x the CPU")


def sections(found: Sequence[OverCpu], context: Context, notes: Notes) -> tuple[Section, ...]:
    """The CPU first, then one GPU alone, then the exchanges by world size."""
    by_cpu: dict[str, list[OverCpu]] = {}
    for one in found:
        by_cpu.setdefault(_title(one.cpu, found), []).append(one)
    return tuple(_section(title, of, context, notes) for title, of in by_cpu.items())


def _title(cpu: Baseline, found: Sequence[OverCpu]) -> str:
    several = len({one.cpu.workload.batch_size for one in found}) > 1
    batch = f", batch {cpu.workload.batch_size}" if several else ""
    passes = "" if cpu.workload.trains else f", {labels.PASSES[cpu.workload.pass_]}"
    return f"{TITLE}: {cpu.strategy.partition(':')[0]}{passes}{batch}"


def _section(title: str, found: Sequence[OverCpu], context: Context, notes: Notes) -> Section:
    ordered = sorted(found, key=lambda one: (not one.alone, one.contender.strategy, one.world_size))
    unit = found[0].workload.unit
    return Section(
        title=title,
        columns=(catalogue.NAME, catalogue.WORLD_SIZE, PRECISION, catalogue.RATE.of_unit(unit), RATIO),
        lines=(_cpu(found[0].cpu, notes), *(_line(one, context, notes) for one in ordered)),
    )


def _cpu(cpu: Baseline, notes: Notes) -> Line:
    """The one that the others are over."""
    cells_: dict[str, Cell] = {
        catalogue.NAME.key: cpu.hardware.label,
        catalogue.WORLD_SIZE.key: None,
        PRECISION.key: cpu.workload.precision,
    }
    marks = notes.marks(cpu.footnotes)
    if cpu.failed is not None:
        return Line(cells=cells_, says=quantities.outcome(cpu.failed), flags=("FAILED",), marks=marks)
    rate = quantities.rate(cpu.samples_per_s, cpu.workload)
    return Line(cells={**cells_, catalogue.RATE.key: rate, RATIO.key: Quantity(value=1, digits=2)}, marks=marks)


def _line(one: OverCpu, context: Context, notes: Notes) -> Line:
    name = f"{one.contender.strategy}, alone" if one.alone else labels.exchange(one.contender, context.shared)
    cells_: dict[str, Cell] = {
        catalogue.NAME.key: name,
        catalogue.WORLD_SIZE.key: quantities.integer(one.world_size),
        PRECISION.key: one.workload.precision,
    }
    marks = notes.marks(one.footnotes)
    if one.failed is not None:
        return Line(cells=cells_, says=quantities.outcome(one.failed), flags=("FAILED",), marks=marks)
    rate = quantities.rate(one.samples_per_s, one.workload)
    ratio = None if one.ratio is None else quantities.speedup(one.ratio)
    return Line(cells={**cells_, catalogue.RATE.key: rate, RATIO.key: ratio}, marks=marks)
