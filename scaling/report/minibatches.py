"""What a larger batch gains, and what passes take: a table per strategy. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import catalogue
from scaling.analysis.table.entries import PERCENT, Column
from scaling.analysis.table.rows import Minibatch
from scaling.report import labels, quantities
from scaling.report.labels import Context
from scaling.report.parts import Cell, Line, Notes, Phrase, Quantity, Section

TITLE = "Minibatches"
STEP = Column(key="step_ms", title="ms", unit="ms")
EFFICIENCY = Column(key="minibatch_efficiency", title="minibatch efficiency", unit=PERCENT, unit_in_cells=True)
OVER_SMALLER = Column(key="over_smaller", title="x the smaller's time")


def sections(found: Sequence[Minibatch], context: Context, notes: Notes) -> tuple[Section, ...]:
    """A table for each strategy and device; in it its passes and its world sizes, each from batch to batch."""
    by_title: dict[str, list[Minibatch]] = {}
    for one in found:
        by_title.setdefault(_title(one, found, context), []).append(one)
    return tuple(_section(title, of, notes) for title, of in by_title.items())


def _title(one: Minibatch, found: Sequence[Minibatch], context: Context) -> str:
    """What it is, and what is not the same for all."""
    said = [_conditions(each) for each in found]
    varying = (here for here, *others in zip(_conditions(one), *said, strict=True) if len(set(others)) > 1)
    who = one.contender
    name = f"{who.strategy}, one device alone" if one.alone else labels.exchange(who, context.shared)
    placements = {each.placement for each in found if not each.alone}
    placed = (one.placement,) if len(placements) > 1 and not one.alone else ()
    return f"{TITLE}: {', '.join((name, *varying, *placed))}"


def _conditions(one: Minibatch) -> tuple[str, ...]:
    work = one.workload
    compiled = "compiled" if work.compile else "eager"
    return (*labels.what(work), one.hardware.label, work.precision, work.memory_format, compiled)


def _section(title: str, sweep: Sequence[Minibatch], notes: Notes) -> Section:
    sized = len({one.workload.batch_size for one in sweep}) > 1
    unit = sweep[0].workload.unit
    return Section(
        title=title,
        columns=(
            catalogue.BATCH_SIZE,
            STEP,
            catalogue.RATE.of_unit(unit),
            *((EFFICIENCY, OVER_SMALLER) if sized else ()),
        ),
        lines=tuple(_lines(sweep, notes)),
    )


def _lines(sweep: Sequence[Minibatch], notes: Notes) -> Iterator[Line]:
    before = ""
    for one in sweep:
        above = _above(one, sweep)
        yield _line(one, above if above != before else "", notes.marks(one.footnotes))
        before = above


def _above(one: Minibatch, sweep: Sequence[Minibatch]) -> str:
    """The pass, where any is a part of a step, and the world size, where there are several."""
    passes = labels.PASSES[one.workload.pass_] if any(not each.workload.trains for each in sweep) else ""
    size = f"N = {one.world_size}" if any(each.world_size > 1 for each in sweep) else ""
    return ", ".join(filter(None, (passes, size)))


def _line(one: Minibatch, above: str, marks: tuple[int, ...]) -> Line:
    found: dict[str, Cell] = {catalogue.BATCH_SIZE.key: quantities.integer(one.workload.batch_size)}
    if one.failed is not None:
        return Line(cells=found, says=quantities.outcome(one.failed), flags=("FAILED",), above=above, marks=marks)
    found |= _measured(one)
    return Line(cells=found, says=_withheld(one), flags=_flags(one), remark=_remark(one), above=above, marks=marks)


def _measured(one: Minibatch) -> dict[str, Cell]:
    found: dict[str, Cell] = {
        STEP.key: None if one.step_s is None else quantities.milliseconds_of(one.step_s),
        catalogue.RATE.key: quantities.rate(one.samples_per_s, one.workload),
    }
    if not _withheld(one):
        found |= {EFFICIENCY.key: quantities.percent(one.efficiency), OVER_SMALLER.key: _times(one.over_smaller)}
    return found


def _withheld(one: Minibatch) -> str:
    """The flag for which it is compared with no other batch, in the place of what that would tell."""
    return next(iter(one.flags), "")


def _times(ratio: Estimate | None) -> Quantity | None:
    return None if ratio is None else Quantity(value=ratio.mean, low=ratio.low, high=ratio.high, digits=2)


def _flags(one: Minibatch) -> tuple[str, ...]:
    return (*(("EMULATED",) if one.hardware.profile else ()), *one.flags)


def _remark(one: Minibatch) -> Phrase:
    """`more than 2 x as long as 64`: so many smaller batches are faster."""
    if not one.is_worse or one.linear is None:
        return ()
    return (f"more than {one.linear:.3g} x as long as {one.smaller_batch_size}",)
