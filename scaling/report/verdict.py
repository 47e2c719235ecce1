"""The verdict of `scaling certify`: computed from a run's records whenever it is shown, and said in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis.measured.cell import Cell
from scaling.analysis.measured.controls import Controls
from scaling.analysis.measured.rounds import logs, rounds
from scaling.analysis.statistics.intervals import PERSISTENCE, STALL, judged
from scaling.analysis.table.catalogue import mark_named, unclaimed
from scaling.analysis.table.comparisons import exchanges
from scaling.analysis.table.footnotes import describe
from scaling.analysis.table.rows import Row
from scaling.records.events import Failed
from scaling.records.run import FAIL, NO_VERDICT, PASS, Certificate, CertificateResult, Criterion, PointRecord
from scaling.report.labels import headline
from scaling.report.parts import Entry, labelled
from scaling.text import counted, decimals

# ---------------------------------------------------------------- from the records


class Judged(NamedTuple):
    """A result with its reason, and the criteria with their looks."""

    result: CertificateResult
    why: str
    criteria: tuple[Criterion, ...]


def judge(records: Sequence[PointRecord], rows: Sequence[Row], criteria: Sequence[Criterion]) -> Judged:
    """Judge records, which have these rows, by criteria: their names, units, lines and references."""
    row = headline(rows)
    if row is None:
        return Judged(NO_VERDICT, "no exchange was measured", tuple(criteria))
    if row.failed is not None:
        return Judged(FAIL, f"the exchange failed: {describe(row.failed)}", tuple(criteria))
    cell, controls = exchanges(records)[rows.index(row)], Controls(records)
    found = tuple(judged(one, *_series(one, row, cell, controls), len(criteria)) for one in criteria)
    if wrong := next((mark for mark in ("MISLABELLED", "UNSENT") if mark in row.flags), ""):
        return Judged(FAIL, f"{wrong}: {mark_named(wrong).about or mark_named(wrong).claimless}", found)
    result = result_of(found)
    if result != FAIL and (doubt := _doubt(row, cell)):
        return Judged(NO_VERDICT, doubt, found)
    whys = [reason(one) for one in found if one.result == result != PASS]
    return Judged(result, "; ".join((*whys, *_left_out(found, cell, records))), found)


def result_of(criteria: Sequence[Criterion]) -> CertificateResult:
    """Return FAIL if any criterion fails, PASS if all pass."""
    found = {one.result for one in criteria}
    if FAIL in found:
        return FAIL
    return PASS if found == {PASS} else NO_VERDICT


def _series(one: Criterion, row: Row, cell: Cell, controls: Controls) -> tuple[list[float], list[float]]:
    """Return the logarithms of a criterion's quantity by round, and the variances that windows imply."""
    if not one.unit:
        found = rounds(cell, controls)
        return logs(found), [each.noise for each in found]
    plain, work = controls.plain(row.strategy), row.workload.reference(row.world_size)
    for alone in controls.baselines():
        point = alone.whole.point
        if point.strategy == plain and point.workload == work:
            scale = row.workload.units_per_sample * work.batch_size
            times = alone.of_all_seats
            return [log(scale / times[number].harmonic_s) for number in sorted(times)], [0.0] * len(times)
    return [], []


def _doubt(row: Row, cell: Cell) -> str:
    """Return why a row is no proof; "" if it is one."""
    if row.nodes > 1 and "VERIFIED" not in row.flags:
        why = (row.receipt.why if row.receipt else "") or "no counters were read"
        return f"UNVERIFIED: nothing proves that the bytes crossed {row.interconnect}: {why}"
    if why := unclaimed(row):
        return why
    crashed = [one.outcome for one in cell.records if isinstance(one.outcome, Failed)]
    often = f"{len(crashed)} of {counted(row.rounds_tried, 'round')}"
    return f"the exchange failed in {often}: {describe(crashed[0])}" if crashed else ""


def _left_out(criteria: Sequence[Criterion], cell: Cell, records: Sequence[PointRecord]) -> Iterator[str]:
    """Report rounds that a criterion does not join, because a control run failed."""
    joined = min((one.looks[-1].rounds for one in criteria if one.looks), default=len(cell.records))
    failed = {one.point.kind for one in records if isinstance(one.outcome, Failed)} - {"exchange"}
    if failed and joined < len(cell.records):
        less = len(cell.records) - joined
        yield f"{less} of {len(cell.records)} rounds are not counted: {', '.join(sorted(failed))} failed"


def checked(stored: Certificate, records: Sequence[PointRecord], rows: Sequence[Row]) -> Certificate:
    """Return the verdict of the records. If the file says another one, `why` says so."""
    found = judge(records, rows, stored.criteria)
    if found.result == stored.result:
        return replace(stored, why=found.why, criteria=found.criteria)
    why = f"the file says {stored.result}: it was edited, or judged by another version"
    whole = "; ".join(filter(None, (why, found.why)))
    return replace(stored, result=found.result, why=whole, criteria=found.criteria, where=())


# ---------------------------------------------------------------- in words


def lines(found: Certificate) -> Iterator[Entry]:
    """Yield the lines below a verdict with their labels; further lines of a label have none."""
    if found.why:
        yield "why", found.why
    yield from (*labelled("where", found.where), *labelled("judged", map(said, found.criteria)))
    if found.reference:
        yield "against", f"reference {found.reference}"
    yield "errors", f"a false FAIL and a false PASS: {100 * found.error:g} % each; budget {found.minutes:g} min"
    rare = f"a PASS holds if rounds that are too rare to be seen are {100 * STALL:g} % slower"
    yield "assumed", f"rounds are correlated by at most {PERSISTENCE:g}; {rare}; other launches are not covered"


def said(one: Criterion) -> str:
    """Return `efficiency at N=4: 97.1 % (96.2 to 98.0 %), at least 95.0 %, in 8 rounds, 3 looks`."""
    if not one.looks:
        return f"{one.name}: not measured; at least {_value(one, one.line)}"
    last = one.looks[-1]
    digits = _digits(one, last.low, last.high)
    between = f"({_number(one, last.low, digits)} to {_value(one, last.high, digits)})"
    after = f"in {counted(last.rounds, 'round')}, {counted(len(one.looks), 'look')}"
    return f"{one.name}: {_value(one, last.mean, digits)} {between}, {_line(one)}, {after}"


def reason(one: Criterion) -> str:
    """Return why a criterion failed, or why it is undecided."""
    if one.doubt:
        return f"{one.name}: {one.doubt}"
    if not one.looks:
        return f"{one.name} was not measured"
    last = one.looks[-1]
    digits = _digits(one, last.low, last.high)
    if one.result == FAIL:
        return f"{one.name} is at most {_value(one, last.high, digits)}; {_line(one)} is needed"
    return (
        f"{one.name} is between {_number(one, last.low, digits)} and {_value(one, last.high, digits)}, on both "
        f"sides of {_value(one, one.line)}"
    )


def _line(one: Criterion) -> str:
    of = "" if one.reference is None else f" (reference {_value(one, one.reference)})"
    return f"at least {_value(one, one.line)}{of}"


def _value(one: Criterion, value: float, digits: int = 0) -> str:
    return f"{_number(one, value, digits)} {one.unit or '%'}"


def _number(one: Criterion, value: float, digits: int = 0) -> str:
    return f"{value:,.{max(digits, decimals(value))}f}" if one.unit else f"{100 * value:.{max(digits, 1)}f}"


def _digits(one: Criterion, *bounds: float) -> int:
    """Return the digits at which no bound looks like the line."""
    line = _number(one, one.line)
    for digits in range(1, 7):
        if all(bound == one.line or _number(one, bound, digits) != line for bound in bounds):
            return digits
        line = _number(one, one.line, digits + 1)
    return 7
