"""What a report says, before any layout: the same content for every format. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaling.analysis.analyse import Analysis, analyse, kept
from scaling.analysis.rows import Row
from scaling.records.run import Header, PointRecord
from scaling.report import labels
from scaling.report.baselines import baselines
from scaling.report.comparison import Comparisons
from scaling.report.curves import by_curve, curve
from scaling.report.facts import facts
from scaling.report.headline import last_line
from scaling.report.parts import Document, Notes
from scaling.report.reading import how_to_read


def document(header: Header, records: Sequence[PointRecord], joined: Sequence[str] = ()) -> Document:
    """Say all that the records of a run say; `joined` are the lines about runs in one table."""
    return said(header, records, analyse(records), joined)


def said(
    header: Header, records: Sequence[PointRecord], analysis: Analysis, joined: Sequence[str] = ()
) -> Document:
    """The same, given the analysis of these records."""
    notes = Notes()
    rows = analysis.rows
    context = labels.context(rows)
    planned = max((row.rounds_tried for row in rows), default=0)
    compared = Comparisons(rows, analysis.resolutions, context, planned, notes).sections()
    stale = frozenset((row.group, row.world_size) for row in rows if not row.synchronous and row.rounds)
    return Document(
        facts=facts(header, kept(records), rows, context),
        notices=(*_emulated(rows), *joined, *_too_little(rows)),
        comparisons=compared,
        sections=tuple(curve(of_curve, context, planned, notes, stale) for of_curve in by_curve(rows)),
        baselines=baselines(analysis, context, notes, compares=bool(compared)),
        footnotes=notes.texts(),
        how_to_read=how_to_read(analysis, compares=bool(compared)),
        last_line=last_line(rows),
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
