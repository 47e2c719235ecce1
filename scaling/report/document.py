"""The content of a report, before any layout: how to read it, comparisons, baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from scaling import frameworks
from scaling.analysis.table import catalogue
from scaling.analysis.table import rows as analysed
from scaling.analysis.table.catalogue import explanations
from scaling.analysis.table.rows import Analysis, Column, Report, Resolution, Row, Table
from scaling.records.point import Unit, Workload, shown_name
from scaling.report import labels, quantities
from scaling.report.headline import mean_rate
from scaling.report.labels import Context
from scaling.report.notes import Notes
from scaling.report.parts import Detail, Entry, Line, Phrase, Quantity, Section, Value

# ---------------------------------------------------------------- how to read


def how_to_read(report: Report) -> tuple[Entry, ...]:
    """Return an entry for each kind of figure and mark that the report has."""
    rows = report.rows
    rivals = " of its framework" if len({row.framework for row in rows}) > 1 else ""
    unreadable = (row.machine_energy.unreadable for row in rows if row.machine_energy)
    found = {
        "rates": labels.rates(rows),
        "efficiency": _efficiency(report.analysis),
        "causes": _breakdown(rows),
        "rivals": f"those of the fastest exchange{rivals}",
        "unranked": _unranked(rows),
        "unreadable": next(filter(None, unreadable), ""),
    }
    said = [(label, text.format(**found)) for label, text in explanations(report)]
    own = {label: text for row in rows for label, text in frameworks.named(row.strategy).explained.items()}
    return tuple(Entry(label=label, phrase=(text,)) for label, text in (*said, *own.items()))


def _unranked(rows: Sequence[Row]) -> str:
    said = ""
    if not all(row.synchronous for row in rows):
        said = (
            " Asynchronous strategies are never ranked against synchronous ones: "
            f"{labels.one_sample(rows)} trained on old parameters teaches less."
        )
    wrong = " and ".join(sorted({one for row in rows for one in row.flags if catalogue.mark_named(one).is_wrong}))
    return said + (f" {wrong} rows are not ranked: they are not what their names say." if wrong else "")


def _efficiency(analysis: Analysis) -> str:
    names = list(dict.fromkeys(baseline.strategy for baseline in analysis.baselines))
    known = sorted({row.efficiency.df for row in analysis.rows if row.efficiency and row.efficiency.df})
    freedom = ""
    if known:
        df = " to ".join(dict.fromkeys((f"{known[0]}", f"{known[-1]}")))
        degrees = f"degree{'s' if known[-1] > 1 else ''} of freedom"
        freedom = f" (t with {df} {degrees}, pooled over the cells of one work)"
    end = f"± is half the 95 % interval over rounds{freedom}."
    if len(names) < 2:
        return f"speedup / N, against {shown_name(names[0]) if names else 'the plain loop'} on one device; {end}"
    return (
        f"speedup / N, against the plain loop of the same framework on one device ({', '.join(names)}); {end} "
        f"These baselines differ: compare frameworks by {labels.rates(analysis.rows)}, since a slow plain loop "
        "makes efficiency look good."
    )


_NODE_BATCH = "small batch, a device's part of a node's batch costs more than its part of the time"


def _breakdown(rows: Iterable[Row]) -> str:
    lost = [row for row in rows if row.breakdown is not None]
    causes = catalogue.causes(lost)
    texts = {cause.key: cause.explanation for cause in causes}
    late = {row.strategy.partition(":")[0] for row in lost if _lacks_steps(row)}
    if "straggling" in texts and late:
        why = "of windows, a lower bound, because single steps are not timed"
        texts["straggling"] += f" ({', '.join(sorted(late))}: {why})"
    if "small_batch" in texts and any(row.workload.batch_rule == "node" for row in lost):
        texts["small_batch"] = _NODE_BATCH
    shown = (quantities.cell(cause, row) for cause in causes for row in lost)
    noise = any(isinstance(cell, Quantity) and cell.is_noise for cell in shown)
    return "; ".join(texts.values()) + (" In parentheses: not significantly different from zero." if noise else "")


def _lacks_steps(row: Row) -> bool:
    """Whether single steps of an exchange's plain loop cannot be timed."""
    on = row.hardware.device
    is_late = on == "emulated" or on in frameworks.named(row.strategy).returns_early
    return is_late and row.synchronous and row.world_size > 1


# ---------------------------------------------------------------- comparison


COMPARISON_TITLE = "Comparison at each world size"
FRAMEWORKS = "Frameworks at each world size, by their fastest exchange"
APART = "asynchronous: ranked among themselves"


def comparisons(analysis: Analysis, context: Context, planned: int, notes: Notes) -> Iterator[Section]:
    """Yield tables of exchanges, then of frameworks, for each group of comparable rows. World sizes at which rows
    have no rival are left out. `planned`: rounds of a complete row."""
    groups: dict[int, dict[int, list[Row]]] = {}
    for row in analysis.rows:
        groups.setdefault(row.group, {}).setdefault(row.world_size, []).append(row)
    for group, sizes in groups.items():
        contests = [rivals for _, rivals in sorted(sizes.items()) if len(rivals) > 1]
        rows = [row for rivals in contests for row in rivals]
        details = _resolutions(one for one in analysis.resolutions if one.group == group)
        alone = all(map(_are_alone, contests))
        ranked = (
            () if alone else tuple(line for of in contests for line in _exchanges(of, context, planned, notes))
        )
        fastest = tuple(line for rivals in contests for line in _frameworks(rivals, context))
        tables: tuple[tuple[str, Table, tuple[Line, ...], tuple[Detail, ...]], ...] = (
            (COMPARISON_TITLE, "comparison", ranked, details),
            (FRAMEWORKS, "frameworks", fastest, details if alone else ()),
        )
        for title, table, lines, below in tables:
            if lines:
                name = ", ".join((title, *labels.varying(rows[0], context)))
                columns = catalogue.columns(table, rows)
                yield Section(title=name, columns=columns, lines=lines, details=below, group=group)


def _are_alone(rivals: Sequence[Row]) -> bool:
    """Whether rivals are plain loops, each of another framework."""
    return all(row.is_plain for row in rivals) and len({row.framework for row in rivals}) == len(rivals)


def _exchanges(rivals: Sequence[Row], context: Context, planned: int, notes: Notes) -> Iterator[Line]:
    losses = [row.loss_at for row in rivals if row.synchronous and row.loss_at is not None]
    for row, above in _ranked(rivals, lambda row: (not catalogue.is_wrong(row), mean_rate(row))):
        marks = notes.causes(quantities.notes_of(row, planned))
        line = quantities.line(row, labels.name(row, context), above=above, marks=marks)
        yield replace(line, remark=() if row.synchronous else _remark(row, losses))


def _frameworks(rivals: Sequence[Row], context: Context) -> Iterator[Line]:
    for row, above in _ranked([row for row in rivals if row.framework_standing], mean_rate):
        line = quantities.line(row, labels.name(row, context), above=above, marks=())
        yield replace(line, says="", flags=())


def _ranked(rows: Sequence[Row], key: Callable[[Row], Any]) -> Iterator[tuple[Row, str]]:
    """Yield rows by framework, the fastest first and asynchronous ones apart, with the text of the rule above."""
    for synchronous, apart in ((True, ""), (False, f", {APART}")):
        found = sorted((row for row in rows if row.synchronous == synchronous), key=key, reverse=True)
        place = {name: index for index, name in enumerate(dict.fromkeys(row.framework for row in found))}
        found.sort(key=lambda row: place[row.framework])
        yield from ((row, "" if index else f"N = {row.world_size}{apart}") for index, row in enumerate(found))


def _resolutions(found: Iterable[Resolution]) -> tuple[Detail, ...]:
    """Return `3 rounds detect  N=2 6.1 % (--rounds 8: 3.0 %)`: the smallest difference that is detected."""
    values: dict[str, list[Value]] = {}
    for one in found:
        now, then = map(quantities.fraction, (one.smallest_difference, one.smallest_difference_then))
        phrase = (now, f" (--rounds {one.more_rounds}: ", then, ")")
        label = f"{one.rounds} rounds detect{'' if one.synchronous else ', asynchronous'}"
        values.setdefault(label, []).append(Value(world_size=one.world_size, phrase=phrase))
    return tuple(Detail(label=label, values=tuple(of)) for label, of in values.items())


def _remark(row: Row, losses: Sequence[float]) -> Phrase:
    """Return `staleness 0.94, loss 1.20 after 3,840 images (synchronous: 1.1 to 1.2)`."""
    said: Phrase = () if row.staleness is None else ("staleness ", quantities.steps(row.staleness))
    if row.loss_at is not None and row.loss_at_samples is not None:
        loss, after = quantities.training_loss(row.loss_at), quantities.samples(row.loss_at_samples, row.workload)
        said += (", loss " if said else "loss ", loss, " after ", after)
        if losses:
            low, high = quantities.training_loss(min(losses)), quantities.training_loss(max(losses))
            said += (" (synchronous: ", *quantities.low_to_high(low, high), ")")
    return said


# ---------------------------------------------------------------- baselines


WHAT = Column(key="what", title="what", is_text=True)
BATCH = Column(key="batch", title="batch")
SHARE = Column(key="efficiency", title="efficiency", unit_in_cells=True)


def baselines(analysis: Analysis, context: Context, notes: Notes, *, compares: bool) -> tuple[Section, ...]:
    """Return a table per unit of samples: plain loops, and single ranks of strategies. A comparison already has
    the single ranks at N = 1."""
    by_unit: dict[Unit, list[Line]] = {}
    references = {(_alone(row.workload.reference(row.world_size)), row.hardware) for row in analysis.rows}
    several = len({measured.strategy for measured in analysis.baselines}) > 1
    for measured, name in zip(analysis.baselines, _names(analysis.baselines), strict=True):
        is_whole = (_alone(measured.workload), measured.hardware) in references and measured.samples_per_s
        of = f" for {measured.strategy.partition(':')[0]}" if several else ""
        share, marks = f"= 100 %{of}" if is_whole else "", notes.causes(measured.footnotes)
        line = _baseline(measured, f"{name}, one device", share, marks)
        by_unit.setdefault(measured.workload.unit, []).append(line)
    for row in () if compares else analysis.rows:
        if row.world_size == 1 and row.samples_per_s is not None and not row.is_plain:
            name = f"{labels.title([row], context)}, one rank"
            line = _baseline(row, name, quantities.percent(row.efficiency) or "")
            by_unit.setdefault(row.workload.unit, []).append(line)
    return tuple(
        Section(
            title=f"Baselines, {unit}/s",
            columns=(WHAT, BATCH, catalogue.RATE.of_unit(unit), SHARE),
            lines=tuple(lines),
            is_baselines=True,
        )
        for unit, lines in by_unit.items()
    )


def _alone(work: Workload) -> Workload:
    return work.alone(work.batch_size)


def _names(measured: Sequence[analysed.Baseline]) -> Iterator[str]:
    conditions = [labels.conditions(one) for one in measured]
    varying = [index for index, values in enumerate(zip(*conditions, strict=True)) if len(set(values)) > 1]
    for one, values in zip(measured, conditions, strict=True):
        yield ", ".join((shown_name(one.strategy), *(values[index] for index in varying)))


def _baseline(
    measured: Row | analysed.Baseline, name: str, share: Quantity | str, marks: tuple[int, ...] = ()
) -> Line:
    """Make a line; `share`: its efficiency, or a text if this is the 100 % of others."""
    failure = "failed" if measured.failed is None else quantities.outcome(measured.failed)
    return Line(
        cells={
            WHAT.key: name,
            BATCH.key: f"batch {measured.workload.batch_size}",
            catalogue.RATE.key: quantities.rate(measured.samples_per_s, measured.workload) or failure,
            SHARE.key: share,
        },
        flags=("EMULATED",) if measured.hardware.profile else (),
        marks=marks,
    )
