"""The content of a report, before any layout: how to read it, comparisons, baselines, the document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from scaling import frameworks
from scaling.analysis.measured.cell import cells
from scaling.analysis.table import catalogue
from scaling.analysis.table import rows as analysed
from scaling.analysis.table.analyse import analyse, kept
from scaling.analysis.table.burn_in import OverTime
from scaling.analysis.table.catalogue import explanations
from scaling.analysis.table.cost import Pricing
from scaling.analysis.table.rows import Analysis, Minibatch, Report, Resolution, Row
from scaling.quiet import notes as quiet
from scaling.records.point import Hardware, Unit, Workload, shown_name
from scaling.records.run import Certificate, Header, PointRecord, Prediction
from scaling.report import burn_in, imported, labels, quantities, sections, verdict
from scaling.report.curves import by_curve, curve
from scaling.report.facts import facts
from scaling.report.headline import last_line, mean_rate
from scaling.report.labels import Context
from scaling.report.notes import Notes
from scaling.report.parts import (
    Baseline,
    Baselines,
    Detail,
    Document,
    Entry,
    Line,
    Phrase,
    Quantity,
    Section,
    Value,
)
from scaling.text import counted

# ---------------------------------------------------------------- how to read


def how_to_read(
    analysis: Analysis, *, compares: bool, predicts: bool = False, has_times: bool = False
) -> tuple[Entry, ...]:
    """Return an entry for each kind of figure and mark that the report has."""
    rows = analysis.rows
    found = {
        "rates": labels.rates(rows),
        "efficiency": _efficiency(analysis),
        "causes": _breakdown(rows),
        "rivals": _rivals(rows),
        "unranked": f"{_ranked_apart(rows)}{_not_ranked(rows)}",
        "unreadable": next((text for row in rows if (text := _unreadable(row))), ""),
    }
    said = (
        (label, text.format(**found))
        for label, text in explanations(Report(analysis, compares, predicts, has_times))
    )
    return tuple(Entry(label=label, phrase=(text,)) for label, text in (*said, *_of_frameworks(rows).items()))


def _unreadable(row: Row) -> str:
    return row.machine_energy.unreadable if row.machine_energy else ""


def _of_frameworks(rows: Iterable[Row]) -> dict[str, str]:
    return {label: text for row in rows for label, text in frameworks.named(row.strategy).explained.items()}


def _rivals(rows: Iterable[Row]) -> str:
    several = len({row.framework for row in rows}) > 1
    return f"those of the fastest exchange{' of its framework' if several else ''}"


def _ranked_apart(rows: Sequence[Row]) -> str:
    if all(row.synchronous for row in rows):
        return ""
    return (
        " Asynchronous strategies are never ranked against synchronous ones: "
        f"{labels.one_sample(rows)} trained on old parameters teaches less."
    )


def _not_ranked(rows: Iterable[Row]) -> str:
    found = sorted({name for row in rows for name in row.flags if catalogue.mark_named(name).is_wrong})
    named = " and ".join(found)
    return f" {named} rows are not ranked: they are not what their names say." if found else ""


def _freedom(rows: Iterable[Row]) -> str:
    """Return ` (t with 8 degrees of freedom, pooled over the cells of one work)`."""
    known = sorted({row.efficiency.df for row in rows if row.efficiency and row.efficiency.df})
    if not known:
        return ""
    low, high = known[0], known[-1]
    df = f"{high}" if low == high else f"{low} to {high}"
    return f" (t with {df} degree{'s' if high > 1 else ''} of freedom, pooled over the cells of one work)"


def _efficiency(analysis: Analysis) -> str:
    rows = analysis.rows
    names = list(dict.fromkeys(baseline.strategy for baseline in analysis.baselines))
    end = f"± is half the 95 % interval over rounds{_freedom(rows)}."
    if len(names) < 2:
        return f"speedup / N, against {shown_name(names[0]) if names else 'the plain loop'} on one device; {end}"
    return (
        "speedup / N, against the plain loop of the same framework on one device "
        f"({', '.join(names)}); {end} These baselines differ: compare frameworks by {labels.rates(rows)}, since a "
        "slow plain loop makes efficiency look good."
    )


def _has_node_rule(rows: Iterable[Row]) -> bool:
    return any(row.workload.batch_rule == "node" for row in rows)


_NODE_BATCH = "small batch, a device's part of a node's batch costs more than its part of the time"


def _of_windows(rows: Iterable[Row]) -> str:
    several = (row for row in rows if row.synchronous and row.world_size > 1)
    late = {row.strategy.partition(":")[0] for row in several if _returns_early(row)}
    why = "of windows, a lower bound, because single steps are not timed"
    return f" ({', '.join(sorted(late))}: {why})" if late else ""


def _returns_early(row: Row) -> bool:
    """Whether single steps of its plain loop cannot be timed."""
    on = row.hardware.device
    return on == "emulated" or on in frameworks.named(row.strategy).returns_early


def _breakdown(rows: Iterable[Row]) -> str:
    lost = [row for row in rows if row.breakdown is not None]
    causes = catalogue.causes(lost)
    texts = {cause.key: cause.explanation for cause in causes}
    if "straggling" in texts:
        texts["straggling"] += _of_windows(lost)
    if "small_batch" in texts and _has_node_rule(lost):
        texts["small_batch"] = _NODE_BATCH
    shown = (quantities.cell(cause, row) for cause in causes for row in lost)
    noise = any(isinstance(cell, Quantity) and cell.is_noise for cell in shown)
    return (
        f"{'; '.join(texts.values())}{' In parentheses: not significantly different from zero.' if noise else ''}"
    )


# ---------------------------------------------------------------- comparison


COMPARISON_TITLE = "Comparison at each world size"
FRAMEWORKS = "Frameworks at each world size, by their fastest exchange"
APART = "asynchronous: ranked among themselves"


class Comparisons:
    """The tables that compare rows of one report, for each group of comparable rows."""

    def __init__(
        self, rows: Sequence[Row], resolutions: Iterable[Resolution], context: Context, planned: int, notes: Notes
    ) -> None:
        self._resolutions = list(resolutions)
        self._context = context
        self._planned = planned
        self._notes = notes
        self._groups: dict[int, dict[int, list[Row]]] = {}
        for row in rows:
            self._groups.setdefault(row.group, {}).setdefault(row.world_size, []).append(row)

    def sections(self) -> tuple[Section, ...]:
        """Return tables of exchanges, then of frameworks, without world sizes at which rows have no rival."""
        with_rivals = (
            [rivals for _, rivals in sorted(sizes.items()) if len(rivals) > 1] for sizes in self._groups.values()
        )
        return tuple(section for by_size in with_rivals if by_size for section in self._of_group(by_size))

    def _of_group(self, by_size: Sequence[Sequence[Row]]) -> Iterator[Section]:
        first = by_size[0][0]
        rows = [row for rivals in by_size for row in rivals]
        details = self._details(first.group)
        alone = _are_alone(by_size)
        if not alone:
            yield Section(
                title=", ".join((COMPARISON_TITLE, *labels.varying(first, self._context))),
                columns=catalogue.columns("comparison", rows),
                lines=tuple(line for rivals in by_size for line in self._exchanges(rivals)),
                details=details,
                group=first.group,
            )
        if lines := tuple(line for rivals in by_size for line in self._frameworks(rivals)):
            yield Section(
                title=", ".join((FRAMEWORKS, *labels.varying(first, self._context))),
                columns=catalogue.columns("frameworks", rows),
                lines=lines,
                details=details if alone else (),
                group=first.group,
            )

    # ------------------------------------------------------------ lines

    def _exchanges(self, rivals: Sequence[Row]) -> Iterator[Line]:
        waiting = [row for row in rivals if row.synchronous]
        for synchronous in (True, False):
            found = sorted((row for row in rivals if row.synchronous == synchronous), key=_place, reverse=True)
            place = {name: index for index, name in enumerate(dict.fromkeys(row.framework for row in found))}
            found.sort(key=lambda row: place[row.framework])
            for row, above in zip(found, _above(found), strict=True):
                marks = self._notes.causes(quantities.notes_of(row, self._planned))
                line = quantities.line(row, labels.name(row, self._context), above=above, marks=marks)
                yield replace(line, remark=_remark(row, waiting))

    def _frameworks(self, rivals: Sequence[Row]) -> Iterator[Line]:
        for synchronous in (True, False):
            of_kind = (row for row in rivals if row.framework_standing and row.synchronous == synchronous)
            found = sorted(of_kind, key=mean_rate, reverse=True)
            for row, above in zip(found, _above(found), strict=True):
                line = quantities.line(row, labels.name(row, self._context), above=above, marks=())
                yield replace(line, says="", flags=())

    def _details(self, group: int) -> tuple[Detail, ...]:
        """Return `3 rounds detect  N=2 6.1 % (--rounds 8: 3.0 %)`: the smallest difference that is detected."""
        values: dict[str, list[Value]] = {}
        for one in self._resolutions:
            if one.group == group:
                label = f"{one.rounds} rounds detect{'' if one.synchronous else ', asynchronous'}"
                values.setdefault(label, []).append(_told(one))
        return tuple(Detail(label=label, values=tuple(of)) for label, of in values.items())


def _are_alone(by_size: Iterable[Sequence[Row]]) -> bool:
    return all(
        all(row.is_plain for row in rivals) and len({row.framework for row in rivals}) == len(rivals)
        for rivals in by_size
    )


def _told(resolution: Resolution) -> Value:
    now = quantities.fraction(resolution.smallest_difference)
    then = quantities.fraction(resolution.smallest_difference_then)
    phrase = (now, f" (--rounds {resolution.more_rounds}: ", then, ")")
    return Value(world_size=resolution.world_size, phrase=phrase)


def _above(rows: Sequence[Row]) -> Iterator[str]:
    for index, row in enumerate(rows):
        apart = "" if row.synchronous else f", {APART}"
        yield "" if index else f"N = {row.world_size}{apart}"


def _place(row: Row) -> tuple[bool, float]:
    return not catalogue.is_wrong(row), mean_rate(row)


def _remark(row: Row, synchronous: Sequence[Row]) -> Phrase:
    if row.synchronous:
        return ()
    staleness: Phrase = () if row.staleness is None else ("staleness ", quantities.steps(row.staleness))
    if row.loss_at is None or row.loss_at_samples is None:
        return staleness
    return (
        *staleness,
        ", loss " if staleness else "loss ",
        quantities.training_loss(row.loss_at),
        " after ",
        quantities.samples(row.loss_at_samples, row.workload),
        *_beside([other.loss_at for other in synchronous if other.loss_at is not None]),
    )


def _beside(losses: Sequence[float]) -> Phrase:
    if not losses:
        return ()
    low, high = quantities.training_loss(min(losses)), quantities.training_loss(max(losses))
    return " (synchronous: ", *quantities.low_to_high(low, high), ")"


# ---------------------------------------------------------------- baselines


Work = tuple[Workload, Hardware]


def baselines(analysis: Analysis, context: Context, notes: Notes, *, compares: bool) -> tuple[Baselines, ...]:
    """Return a table per unit of samples: plain loops, and single ranks of strategies. A comparison already has
    the single ranks at N = 1."""
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
            says="" if measured.failed is None else quantities.outcome(measured.failed),
            efficiency=f"= 100 %{of}" if is_whole else "",
            flags=_flags(measured),
            marks=notes.causes(measured.footnotes),
        )


def _reference(row: Row) -> Work:
    return _alone(row.workload.reference(row.world_size)), row.hardware


def _work(measured: analysed.Baseline) -> Work:
    return _alone(measured.workload), measured.hardware


def _alone(work: Workload) -> Workload:
    return work.alone(work.batch_size)


def _names(measured: Sequence[analysed.Baseline]) -> Iterator[str]:
    conditions = [labels.conditions(one) for one in measured]
    varying = [index for index, values in enumerate(zip(*conditions, strict=True)) if len(set(values)) > 1]
    for one, values in zip(measured, conditions, strict=True):
        yield ", ".join((shown_name(one.strategy), *(values[index] for index in varying)))


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


# ---------------------------------------------------------------- document


def document(
    header: Header,
    records: Sequence[PointRecord],
    joined: Sequence[str] = (),
    pricing: Pricing | None = None,
    predictions: Sequence[Prediction] = (),
    analysis: Analysis | None = None,
    certificate: Certificate | None = None,
    over_time: Sequence[OverTime] = (),
) -> Document:
    """Make the document of a run. `joined`: lines about runs in one table. With `pricing`, it has costs.
    `predictions`: of a run of an older version. `analysis`: of these records, if it is known. `certificate`: the
    verdict on them. `over_time`: cells over the time of a burn-in."""
    analysis = analysis or analyse(records)
    notes = Notes(quiet.briefs(cell.load for cell in cells(kept(records))))
    rows = analysis.rows
    context = labels.context(rows)
    planned = max((row.rounds_tried for row in rows), default=0)
    compared = Comparisons(rows, analysis.resolutions, context, planned, notes).sections()
    return Document(
        facts=(*_verdict(certificate), *facts(header, kept(records), rows, context)),
        notices=(
            *imported.notices(header),
            *_emulated(rows),
            *_apart(records),
            *_predicted(predictions),
            *joined,
            *(() if analysis.trainings or (header.is_import and not rows) else _too_little(rows)),
        ),
        comparisons=compared,
        sections=(
            *_measured(analysis, context, planned, notes),
            *burn_in.sections(over_time, context, notes),
            *(sections.costs(rows, header, context, pricing, notes) if pricing else ()),
            *imported.sections(header, notes),
        ),
        baselines=baselines(analysis, context, notes, compares=bool(compared)),
        footnotes=notes.texts(),
        how_to_read=how_to_read(
            analysis, compares=bool(compared), predicts=bool(predictions), has_times=bool(over_time)
        ),
        last_line=(not rows and imported.last_line(header)) or last_line(rows, analysis.trainings, certificate),
    )


def _measured(analysis: Analysis, context: Context, planned: int, notes: Notes) -> Iterator[Section]:
    yield from sections.over_cpu(analysis.over_cpu, context, notes)
    yield from sections.minibatches(analysis.minibatches, context, notes)
    yield from sections.trainings(analysis.trainings, context, notes)
    stale = frozenset((row.group, row.world_size) for row in analysis.rows if not row.synchronous and row.rounds)
    yield from (curve(of, context, planned, notes, stale) for of in by_curve(curved(analysis)))


def _verdict(found: Certificate | None) -> Iterator[Entry]:
    if found is not None:
        yield Entry(label="verdict", phrase=(found.result,))
        yield from (Entry(label=label, phrase=(text,)) for label, text in verdict.lines(found))


def curved(analysis: Analysis) -> list[Row]:
    """Return the rows of curves: all but plain loops that are listed among the minibatches."""
    return [row for row in analysis.rows if not (row.is_plain and _is_swept(row, analysis.minibatches))]


def _is_swept(row: Row, found: Iterable[Minibatch]) -> bool:
    return any(
        (one.contender.strategy, one.contender.options, one.workload, one.hardware)
        == (row.strategy, row.options, row.workload, row.hardware)
        for one in found
    )


def _too_little(rows: Sequence[Row]) -> Iterable[str]:
    if not rows:
        yield "no exchange of this run has ended: the table is empty"


def _apart(records: Sequence[PointRecord]) -> Iterable[str]:
    if count := sum(bool(record.point.hosts) for record in records):
        yield f"{counted(count, 'point')} of scaling bisect on some of the nodes: in no table"


def _predicted(predictions: Sequence[Prediction]) -> Iterable[str]:
    if predictions:
        count = counted(len(predictions), "point")
        yield f"PREDICTED: {count} of an older version's predictions; they are in the run's file alone"


def _emulated(rows: Sequence[Row]) -> Iterable[str]:
    emulated = [row for row in rows if row.hardware.profile]
    if emulated:
        which = "; ".join(dict.fromkeys(row.hardware.label for row in emulated))
        yield (
            f"EMULATED: no device computed anything; times and {labels.rates(emulated)} are those of the "
            f"emulated cluster: {which}"
        )
