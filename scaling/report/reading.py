"""How a report is to be read: the lines at its end, as far as it needs them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaling import frameworks
from scaling.analysis.table import catalogue
from scaling.analysis.table.analyse import Analysis
from scaling.analysis.table.catalogue import explanations
from scaling.analysis.table.entries import Report
from scaling.analysis.table.rows import Baseline, Row
from scaling.report import labels, quantities
from scaling.report.parts import Entry, Quantity


def how_to_read(analysis: Analysis, *, compares: bool, predicts: bool = False) -> tuple[Entry, ...]:
    """An entry for each kind of figure and mark that the report has."""
    rows = analysis.rows
    found = {
        "rates": labels.rates(rows),
        "efficiency": _efficiency(analysis.baselines, rows),
        "causes": _breakdown(rows),
        "rivals": _rivals(rows),
        "unranked": f"{_apart(rows)}{_not_ranked(rows)}",
        "unreadable": next((text for row in rows if (text := _unreadable(row))), ""),
    }
    said = ((label, text.format(**found)) for label, text in explanations(Report(analysis, compares, predicts)))
    return tuple(Entry(label=label, phrase=(text,)) for label, text in (*said, *_of_frameworks(rows).items()))


def _unreadable(row: Row) -> str:
    """The energy counter that could not be read."""
    return row.machine_energy.unreadable if row.machine_energy else ""


def _of_frameworks(rows: Iterable[Row]) -> dict[str, str]:
    """What the frameworks of these rows have a reader know."""
    return {label: text for row in rows for label, text in frameworks.named(row.strategy).explained.items()}


def _rivals(rows: Iterable[Row]) -> str:
    several = len({row.framework for row in rows}) > 1
    return f"those of the fastest exchange{' of its framework' if several else ''}"


def _apart(rows: Sequence[Row]) -> str:
    if all(row.synchronous for row in rows):
        return ""
    return (
        " Asynchronous contenders are never ranked against synchronous ones: "
        f"{labels.one_sample(rows)} trained on old parameters teaches less."
    )


def _not_ranked(rows: Iterable[Row]) -> str:
    found = sorted({name for row in rows for name in row.flags if catalogue.mark_named(name).is_wrong})
    named = " and ".join(found)
    return f" {named} contenders are not ranked: they are not what their names say." if found else ""


def _freedom(rows: Iterable[Row]) -> str:
    """`(Student's t, 8 degrees of freedom, pooled over the cells of a work)`."""
    known = sorted({row.efficiency.df for row in rows if row.efficiency and row.efficiency.df})
    if not known:
        return ""
    low, high = known[0], known[-1]
    df = f"{high}" if low == high else f"{low} to {high}"
    return f" (t with {df} degree{'s' if high > 1 else ''} of freedom, pooled over the cells of one work)"


def _efficiency(baselines: Sequence[Baseline], rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(baseline.strategy for baseline in baselines))
    end = f"± is half the 95 % interval over rounds{_freedom(rows)}."
    if len(names) < 2:
        return f"speedup / N, against {names[0] if names else 'the plain loop'} on one device; {end}"
    return (
        "speedup / N, against the plain loop of the same framework on one device "
        f"({', '.join(names)}); {end} These baselines differ: compare frameworks by {labels.rates(rows)}, since a "
        "slow plain loop makes efficiency look good."
    )


def _has_node_rule(rows: Iterable[Row]) -> bool:
    return any(row.workload.batch_rule == "node" for row in rows)


_NODE_BATCH = "small batch, a device's part of a node's batch costs more than its part of the time"


def _of_windows(rows: Iterable[Row]) -> str:
    """Of which frameworks straggling is told by the window."""
    several = (row for row in rows if row.synchronous and row.world_size > 1)
    late = {row.strategy.partition(":")[0] for row in several if _returns_early(row)}
    why = "of a window, a lower bound, since no step is timed by itself"
    return f" ({', '.join(sorted(late))}: {why})" if late else ""


def _returns_early(row: Row) -> bool:
    """Whether steps of its plain loop can be timed neither when they return nor by the device's own clock."""
    on = row.hardware.device
    return on == "emulated" or on in frameworks.named(row.strategy).returns_early


def _breakdown(rows: Iterable[Row]) -> str:
    """The causes that any row tells."""
    lost = [row for row in rows if row.breakdown is not None]
    causes = catalogue.causes(lost)
    texts = {cause.key: cause.explanation for cause in causes}
    if "straggling" in texts:
        texts["straggling"] += _of_windows(lost)
    if "small_batch" in texts and _has_node_rule(lost):
        texts["small_batch"] = _NODE_BATCH
    shown = (quantities.cell(cause, row) for cause in causes for row in lost)
    noise = any(isinstance(cell, Quantity) and cell.is_noise for cell in shown)
    return f"{'; '.join(texts.values())}{' In parentheses: what no interval tells from zero.' if noise else ''}"
