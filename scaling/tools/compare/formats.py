"""The formats of a comparison: table and Markdown, JSON, JUnit, github-action-benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from scaling.analysis.table.rows import PERCENT, Column
from scaling.report import quantities
from scaling.report.formats.junit import Case, suite
from scaling.report.parts import Document, Entry, Line, Quantity, Section
from scaling.text import as_json, counted, decimals, is_skewed, one_line, rounded
from scaling.tools.compare.found import METRICS, Cell, Change, Found, Metric, Value

# ---------------------------------------------------------------- JUnit, a test case per cell


def junit(found: Found, *, require_proof: bool) -> str:
    """Return the document. An undecided cell is skipped, or fails with `require_proof`."""
    properties = [
        ("metric", found.metric),
        ("unit", found.unit),
        ("base", ", ".join(found.base)),
        ("new", ", ".join(found.new)),
        *(("power", said) for said in _power(found)),
        *(("notice", notice) for notice in found.notices),
    ]
    cases = [_case(cell, METRICS[found.metric], require_proof=require_proof) for cell in found.cells]
    return suite("scaling compare", cases, properties, headline(found))


def _case(cell: Cell, metric: Metric, *, require_proof: bool) -> Case:
    """Make a case; it says `slower: efficiency -5.1 % ± 0.9: VERIFIED`."""
    by = f"{metric.title} {change(cell.change, metric)}" if cell.change else ""
    stamps = " ".join(flag for flag in cell.flags if flag != "FAILED")
    said = ": ".join(filter(None, (cell.verdict, by, cell.reason, stamps)))
    is_failure = cell.is_lost or (require_proof and cell.is_untold)
    is_skipped = not is_failure and (cell.is_untold or cell.change is None)
    failure, skipped = (said if holds else "" for holds in (is_failure, is_skipped))
    return Case(_name(cell), failure, skipped, said, cell.verdict, cell.workload.model)


def _name(cell: Cell) -> str:
    return " ".join((cell.name, *(flag for flag in cell.flags if flag == "EMULATED")))


# ---------------------------------------------------------------- JSON


def json(found: Found, exit_code: int) -> str:
    return as_json({**rounded(msgspec.to_builtins(found)), "counts": found.counts, "exit_code": exit_code})


# ---------------------------------------------------------------- github-action-benchmark
# `customBiggerIsBetter`, or `customSmallerIsBetter` if less is better (README of
# benchmark-action/github-action-benchmark).


def benchmark(found: Found) -> str:
    """Return the new side's value of every cell; fractions in percent."""
    return as_json([_entry(cell, cell.new) for cell in found.cells if cell.new is not None])


def _entry(cell: Cell, new: Value) -> dict[str, object]:
    scale = 100.0 if cell.unit == PERCENT else 1.0
    entry: dict[str, object] = {
        "name": one_line(_name(cell)),
        "unit": cell.unit or "x",
        "value": rounded(scale * new.mean),
        "extra": one_line(" ".join(filter(None, (cell.verdict, cell.reason, *cell.flags)))),
    }
    if new.low is not None and new.high is not None:
        low, high = scale * new.low, scale * new.high
        skewed = is_skewed(scale * new.mean, low, high)
        entry["range"] = f"{low:.4g} to {high:.4g}" if skewed else f"± {(high - low) / 2:.4g}"
    return entry


# ---------------------------------------------------------------- table and Markdown


def document(found: Found, *, verdict_first: bool = False) -> Document:
    """Build the document. `verdict_first` makes the verdict the first column."""
    metric = METRICS[found.metric]
    units = {cell.unit for cell in found.cells}
    unit = units.pop() if len(units) == 1 else ""
    named = Column(key="name", title="cell", is_text=True), Column(key="verdict", title="verdict", is_text=True)
    columns = (
        *(reversed(named) if verdict_first else named),
        Column(key="base", title="base", unit=unit),
        Column(key="new", title="new", unit=unit),
        Column(key="change", title="change", unit=metric.change_unit, unit_in_cells=True),
    )
    lines = tuple(_line(cell, metric) for cell in found.cells)
    return Document(
        title="Comparison of runs",
        facts=tuple(_facts(found, metric)),
        notices=found.notices,
        sections=(Section(title=f"{metric.title}, new against base", columns=columns, lines=lines),),
        how_to_read=tuple(_reading(found, metric)),
    )


def headline(found: Found) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items())


def _line(cell: Cell, metric: Metric) -> Line:
    return Line(
        cells={
            "name": cell.name,
            "verdict": cell.verdict,
            "base": _value(cell.base, cell.unit),
            "new": _value(cell.new, cell.unit),
            "change": None if cell.change is None else change(cell.change, metric),
        },
        flags=tuple(flag for flag in cell.flags if flag != "FAILED"),
        remark=cell.reason,
    )


def _value(value: Value | None, unit: str) -> Quantity | None:
    if value is None:
        return None
    scale = 100.0 if unit == PERCENT else 1.0
    digits = 1 if scale > 1 else decimals(abs(value.mean))
    low, high = (None if end is None else scale * end for end in (value.low, value.high))
    return Quantity(value=scale * value.mean, low=low, high=high, digits=digits, unit=unit)


def change(of: Change, metric: Metric) -> Quantity:
    """Express a change in percent, or in points if the metric is not a ratio."""
    low, high = (None if end is None else 100 * end for end in (of.low, of.high))
    return Quantity(value=100 * of.mean, low=low, high=high, digits=1, unit=metric.change_unit)


def _facts(found: Found, metric: Metric) -> Iterator[Entry]:
    unit = "rounds, and an assumption of how launches differ"
    if found.unit == "runs":
        unit = f"runs: {len(found.base)} against {len(found.new)}"
    elif sds := found.launch_sds(assumed=False):
        unit = f"rounds, and launches that differ by {_span(sds)} %, learnt from {found.learnt_from} runs"
    yield "verdict", headline(found)
    yield "base", ", ".join(found.base)
    yield "new", ", ".join(found.new)
    yield "compared", f"{metric.title}; a loss counts above {quantities.fraction(found.fail_above)}"
    yield "unit", unit
    yield from (("power", said) for said in _power(found))
    for mean in found.means:
        by = quantities.fraction(mean.change)
        yield "geometric mean", f"{mean.model}: {by} over {counted(mean.cells, 'cell')}"


def _power(found: Found) -> Iterator[str]:
    """Yield the loss that would be found; nothing without a tested cell."""
    losses = {100 * cell.detects: cell.name for cell in reversed(found.cells) if cell.detects}
    if losses:
        size = _span([*losses])
        most = f" (the largest: {losses[max(losses)]})" if " to " in size else ""
        unit = METRICS[found.metric].change_unit
        yield f"a loss of {size} {unit} in a cell is found in 80 % of cases{most}"


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"


def _reading(found: Found, metric: Metric) -> Iterator[Entry]:
    loss, win = metric.verdicts
    sds = found.launch_sds(assumed=True)
    premise = f", if launches differ by {min(sds):.1f} % or less" if sds else ""
    verdicts = (
        f"{loss}, {win}: the interval of the change excludes zero and its mean is beyond the loss that counts. "
        "same: the whole interval is within that loss. cannot tell: neither. Intervals are at the levels of "
        f"Holm's procedure: of 100 comparisons of equal sides, at most 5 call any cell {loss} or {win}"
        f"{premise}"
    )
    yield "verdict", verdicts
    sides = "half the 95 % interval of the side's own " + found.unit
    yield "base, new", f"mean ± {sides}"
