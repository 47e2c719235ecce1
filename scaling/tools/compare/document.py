"""What a comparison says to people, before any layout: the parts of a report. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.report import quantities
from scaling.report.parts import Column, Document, Entry, Line, Phrase, Quantity, Section
from scaling.text import counted, decimals
from scaling.tools.compare.found import Cell, Change, Found, Value
from scaling.tools.compare.metrics import METRICS, Metric

TITLE = "Comparison of runs"
NAME = Column(key="name", title="cell", is_text=True)
VERDICT = Column(key="verdict", title="verdict", is_text=True)


def document(found: Found, *, verdict_first: bool = False) -> Document:
    """Say all that was found; `verdict_first` puts what a program may look for at the beginning of a line."""
    metric = METRICS[found.metric]
    columns = (VERDICT, NAME) if verdict_first else (NAME, VERDICT)
    table = Section(
        title=f"{metric.title}, new against base",
        columns=(*columns, *_numbers(found, metric)),
        lines=tuple(_line(cell, metric) for cell in found.cells),
    )
    return Document(
        title=TITLE,
        facts=tuple(_facts(found, metric)),
        notices=found.notices,
        comparisons=(),
        sections=(table,),
        baselines=(),
        footnotes=(),
        how_to_read=tuple(_reading(found, metric)),
    )


def headline(found: Found) -> str:
    """`1 slower, 4 same, 1 cannot tell`."""
    return ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items())


def _numbers(found: Found, metric: Metric) -> tuple[Column, ...]:
    units = {cell.unit for cell in found.cells}
    unit = units.pop() if len(units) == 1 else ""
    return (
        Column(key="base", title="base", unit=unit),
        Column(key="new", title="new", unit=unit),
        Column(key="change", title="change", unit=_change_unit(metric), unit_in_cells=True),
    )


def _line(cell: Cell, metric: Metric) -> Line:
    name = cell.name
    remark: Phrase = (cell.reason,) if cell.reason else ()
    return Line(
        cells={
            NAME.key: name,
            VERDICT.key: cell.verdict,
            "base": _value(cell.base, cell.unit),
            "new": _value(cell.new, cell.unit),
            "change": None if cell.change is None else change(cell.change, metric),
        },
        flags=tuple(flag for flag in cell.flags if flag != "FAILED"),
        remark=remark,
    )


def _value(value: Value | None, unit: str) -> Quantity | None:
    if value is None:
        return None
    scale = 100.0 if unit == quantities.PERCENT else 1.0
    digits = 1 if scale > 1 else decimals(abs(value.mean))
    low, high = (None if end is None else scale * end for end in (value.low, value.high))
    return Quantity(value=scale * value.mean, low=low, high=high, digits=digits, unit=unit)


def change(of: Change, metric: Metric) -> Quantity:
    """`-5.1 %` with its interval; of fractions that may be zero, points."""
    low, high = (None if end is None else 100 * end for end in (of.low, of.high))
    return Quantity(value=100 * of.mean, low=low, high=high, digits=1, unit=_change_unit(metric))


def _change_unit(metric: Metric) -> str:
    return quantities.PERCENT if metric.is_ratio else "points"


def _facts(found: Found, metric: Metric) -> Iterator[Entry]:
    loss = quantities.fraction(found.fail_above)
    yield Entry(label="verdict", phrase=(headline(found),))
    yield Entry(label="base", phrase=(", ".join(found.base),))
    yield Entry(label="new", phrase=(", ".join(found.new),))
    yield Entry(label="compared", phrase=(f"{metric.title}; a loss counts above ", loss))
    yield Entry(label="unit", phrase=(_unit(found),))
    for mean in found.means:
        by = quantities.fraction(mean.change)
        phrase: Phrase = (f"{mean.model}: ", by, f" over {counted(mean.cells, 'cell')}")
        yield Entry(label="geometric mean", phrase=phrase)


def _unit(found: Found) -> str:
    if found.unit == "runs":
        return f"runs: {len(found.base)} against {len(found.new)}"
    return "rounds: those of each side are of one launch" if len(found.base + found.new) == 2 else "rounds"


def _assumed(found: Found) -> str:
    return "" if found.unit == "runs" else ", if launches do not differ by themselves"


def _reading(found: Found, metric: Metric) -> Iterator[Entry]:
    loss, win = metric.verdicts
    verdicts = (
        f"{loss}, {win}: the interval of the change leaves zero and its mean is beyond the loss that counts; "
        "same: the whole interval is within it; cannot tell: neither. The intervals are those at which Holm's "
        f"procedure tests each cell: of 100 comparisons of equal sides at most 5 call any cell {loss} or {win}"
        f"{_assumed(found)}"
    )
    yield Entry(label="verdict", phrase=(verdicts,))
    sides = "half the 95 % interval of the side's own " + found.unit
    yield Entry(label="base, new", phrase=(f"mean ± {sides}",))
