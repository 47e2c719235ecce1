"""What a report says, before any layout: the same content for the terminal and for markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaling.analysis.analyse import Analysis, analyse, kept
from scaling.analysis.rows import Baseline, Row
from scaling.records.run import Header, PointRecord
from scaling.report import labels, words
from scaling.report.comparison import comparisons
from scaling.report.curves import curve, groups
from scaling.report.facts import facts
from scaling.report.labels import Context
from scaling.report.parts import Document, Notes, mark_text
from scaling.report.reading import how_to_read


def document(header: Header, records: Sequence[PointRecord], joined: Sequence[str] = ()) -> Document:
    """Say all that the records of a run say; `joined` are the lines about runs in one table."""
    found, notes = analyse(records), Notes()
    known = labels.context(found.rows)
    planned = max((row.rounds_tried for row in found.rows), default=0)
    compared = comparisons(found.rows, known, planned, notes)
    stale = frozenset((row.group, row.world_size) for row in found.rows if not row.synchronous and row.rounds)
    curves = groups(found.rows)
    return Document(
        facts=facts(header, kept(records), found.rows, known),
        notices=(*_emulated(found.rows), *joined, *_notices(found)),
        comparisons=compared,
        sections=tuple(curve(group, known, planned, notes, stale) for group in curves),
        baselines=(*_plain(found, notes), *(() if compared else _single_ranks(found.rows, known))),
        footnotes=notes.texts(),
        how_to_read=tuple(how_to_read(found, compares=bool(compared))),
    )


def _notices(found: Analysis) -> Iterable[str]:
    if not found.rows:
        yield "no exchange of this run has ended: there is nothing to tabulate"
    elif max(row.rounds for row in found.rows) == 1:
        yield "one round: no interval, and nothing can be compared"


def _emulated(rows: Sequence[Row]) -> Iterable[str]:
    """First of all: whose figures these are not."""
    found = list(dict.fromkeys(row.hardware.label for row in rows if row.hardware.profile))
    if found:
        yield (
            "EMULATED: no device computed anything; times and images/s are those of the cluster that is emulated: "
            f"{'; '.join(found)}"
        )


# ---------------------------------------------------------------- baselines


def _plain(found: Analysis, notes: Notes) -> Iterable[tuple[str, ...]]:
    references = {
        row.workload.batch_size if row.workload.batch_rule == "weak" else row.global_batch_size
        for row in found.rows
    }
    conditions = zip(*(labels.conditions(one) for one in found.baselines), strict=True)
    varying = [index for index, values in enumerate(conditions) if len(set(values)) > 1]
    several = len({one.strategy for one in found.baselines}) > 1
    for one in found.baselines:
        name = ", ".join((one.strategy, *(labels.conditions(one)[index] for index in varying)))
        value = words.rate(one.samples_per_s) if one.samples_per_s else "failed"
        is_whole = one.workload.batch_size in references and one.samples_per_s is not None
        remark = f"= 100 %{_for(one) if several else ''}" if is_whole else ""
        marks = mark_text(notes.marks(one.footnotes))
        yield f"{name}, one device", f"batch {one.workload.batch_size}", value, _joined(remark, _stamp(one), marks)


def _for(one: Baseline) -> str:
    return f" for {one.strategy.partition(':')[0]}"


def _single_ranks(rows: Sequence[Row], known: Context) -> Iterable[tuple[str, ...]]:
    """The second baseline; a comparison has it at N = 1."""
    for row in rows:
        if row.world_size == 1 and row.samples_per_s is not None:
            efficiency = words.percent(row.efficiency) if row.efficiency else ""
            batch = f"batch {row.workload.batch_size}"
            said = _joined(efficiency, _stamp(row))
            yield f"{labels.title([row], known)}, one rank", batch, words.rate(row.samples_per_s), said


def _stamp(measured: Row | Baseline) -> str:
    return "EMULATED" if measured.hardware.profile else ""


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)
