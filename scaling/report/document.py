"""What a report says, before any layout: the same content for every format. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from scaling.analysis.analyse import Analysis, analyse, kept
from scaling.analysis.cost import Pricing
from scaling.analysis.predictions import judged
from scaling.analysis.rows import Minibatch, Row
from scaling.records.prediction import Prediction
from scaling.records.run import Header, PointRecord
from scaling.report import costs, imported, labels, minibatches, over_cpu, predicted, trainings
from scaling.report.baselines import baselines
from scaling.report.comparison import Comparisons
from scaling.report.curves import by_curve, curve
from scaling.report.facts import facts
from scaling.report.headline import last_line
from scaling.report.labels import Context
from scaling.report.parts import Document, Notes, Section
from scaling.report.reading import how_to_read


def document(
    header: Header,
    records: Sequence[PointRecord],
    joined: Sequence[str] = (),
    pricing: Pricing | None = None,
    predictions: Sequence[Prediction] = (),
) -> Document:
    """Say all that the records of a run say; `joined` are the lines about runs in one table. With `pricing`, what
    it costs, and with `predictions` these beside what was measured."""
    return said(header, records, analyse(records), joined, pricing, predictions)


def said(
    header: Header,
    records: Sequence[PointRecord],
    analysis: Analysis,
    joined: Sequence[str] = (),
    pricing: Pricing | None = None,
    predictions: Sequence[Prediction] = (),
) -> Document:
    """The same, given the analysis of these records."""
    notes = Notes()
    rows = analysis.rows
    context = labels.context(rows)
    planned = max((row.rounds_tried for row in rows), default=0)
    compared = Comparisons(rows, analysis.resolutions, context, planned, notes).sections()
    stale = frozenset((row.group, row.world_size) for row in rows if not row.synchronous and row.rounds)
    swept = (
        *over_cpu.sections(analysis.over_cpu, context, notes),
        *minibatches.sections(analysis.minibatches, context, notes),
        *trainings.sections(analysis.trainings, context, notes),
    )
    return Document(
        facts=facts(header, kept(records), rows, context),
        notices=(
            *imported.notices(header),
            *_emulated(rows),
            *joined,
            *(() if analysis.trainings or (header.is_import and not rows) else _too_little(rows)),
        ),
        comparisons=compared,
        sections=(
            *swept,
            *_curves(curved(analysis), context, planned, notes, stale),
            *predicted.sections(judged(predictions, rows), notes),
            *(costs.sections(rows, header, context, pricing, notes) if pricing else ()),
            *imported.sections(header, notes),
        ),
        baselines=baselines(analysis, context, notes, compares=bool(compared)),
        footnotes=notes.texts(),
        how_to_read=how_to_read(analysis, compares=bool(compared), predicts=bool(predictions)),
        last_line=(not rows and imported.last_line(header)) or last_line(rows, analysis.trainings),
    )


def curved(analysis: Analysis) -> list[Row]:
    """The rows of curves: a plain loop that stands among the minibatches is none."""
    return [row for row in analysis.rows if not (row.is_plain and _is_swept(row, analysis.minibatches))]


def _curves(
    rows: Sequence[Row], context: Context, planned: int, notes: Notes, stale: frozenset[tuple[int, int]]
) -> Iterator[Section]:
    for of_curve in by_curve(rows):
        yield curve(of_curve, context, planned, notes, stale)


def _is_swept(row: Row, found: Iterable[Minibatch]) -> bool:
    """Whether it stands among the minibatches."""
    return any(
        (one.contender.strategy, one.contender.options, one.workload, one.hardware)
        == (row.strategy, row.options, row.workload, row.hardware)
        for one in found
    )


def _too_little(rows: Sequence[Row]) -> Iterable[str]:
    if not rows:
        yield "no exchange of this run has ended: there is nothing to tabulate"
    elif max(row.rounds for row in rows) == 1:
        yield "one round: no interval, and nothing can be compared"


def _emulated(rows: Sequence[Row]) -> Iterable[str]:
    """First of all: whose figures these are not."""
    emulated = [row for row in rows if row.hardware.profile]
    if emulated:
        which = "; ".join(dict.fromkeys(row.hardware.label for row in emulated))
        yield (
            f"EMULATED: no device computed anything; times and {labels.rates(emulated)} are those of the cluster "
            f"that is emulated: {which}"
        )
