"""The tables of a run over time: step times of all rounds, and the headline exchange by stretches of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from scaling import frameworks
from scaling.analysis.table import catalogue
from scaling.analysis.table.burn_in import OverTime, StepTimes
from scaling.analysis.table.rows import PERCENT, Column
from scaling.report import labels, quantities
from scaling.report.labels import Context
from scaling.report.notes import Notes
from scaling.report.parts import Cell, Line, Phrase, Quantity, Section
from scaling.text import counted, duration

STEP = "a step"
ROUNDS = Column(key="rounds", title="rounds")
TIMES: tuple[Column, ...] = tuple(
    Column(key=f"{name}_s", title=title, unit="ms", group=STEP)
    for name, title in (("p50", "p50"), ("p95", "p95"), ("p99", "p99"), ("worst", "worst"))
)
DRIFT = Column(
    key="drift", title="rate's change", short=("rate's", "change, %"), unit=PERCENT, brackets_noise=True
)
THROTTLED = Column(key="throttled", title="throttled", short=("throt-", "tled, %"), unit=PERCENT)
UNTIL = Column(key="until", title="until", is_text=True)
ALONE = Column(key="alone", title="a device alone", short=("a device", "alone"))
REPEATED = Column(key="repeated", title="windows repeated", short=("windows", "repeated"))
LINK_ERRORS = Column(key="link_errors", title="link errors", short=("link", "errors"))
FAILED = Column(key="failures", title="failed")


def sections(found: Sequence[OverTime], context: Context, notes: Notes) -> tuple[Section, ...]:
    """Return the tables of a run over time; none without times."""
    if not found:
        return ()
    lasted_s = max(one.whole.end_s for one in found)
    columns = (
        catalogue.NAME,
        catalogue.WORLD_SIZE,
        ROUNDS,
        *TIMES,
        DRIFT,
        *_known(THROTTLED, [one.whole for one in found]),
    )
    whole = Section(
        title=f"Step times over {duration(lasted_s)}, all rounds",
        columns=columns,
        lines=tuple(_line(one, context, notes) for one in found),
    )
    headline = headline_of(found)
    return (whole, *(_by_time(headline, behind(headline, found), context) if headline else ()))


def is_over_time(section: Section) -> bool:
    """Return whether a table is one of these."""
    return TIMES[0] in section.columns


def headline_of(found: Sequence[OverTime]) -> OverTime | None:
    """Return the first exchange of the largest world size; None without an exchange."""
    exchanges = [one for one in found if one.kind == "exchange"]
    return max(exchanges, key=lambda one: one.world_size, default=None)


def behind(exchange: OverTime, found: Sequence[OverTime]) -> OverTime | None:
    """Return the plain loop of an exchange's efficiency; None if it was not measured."""
    plain = frameworks.load(exchange.contender.strategy).baseline
    batch_size = exchange.workload.reference(exchange.world_size).batch_size
    loops = (
        one
        for one in found
        if one.alone
        and (one.contender.strategy, one.workload.batch_size) == (plain, batch_size)
        and one.hardware == exchange.hardware
    )
    return max(loops, key=lambda one: one.world_size, default=None)


def name_of(one: OverTime, context: Context) -> str:
    """Return `torch:gloo`, or `torch:plain, one device alone`."""
    name = labels.exchange(one.contender, context.shared)
    return f"{name}, one device alone" if one.alone else name if one.kind == "exchange" else f"{name} ({one.kind})"


# ---------------------------------------------------------------- the whole run


def _line(one: OverTime, context: Context, notes: Notes) -> Line:
    name = name_of(one, context)
    return Line(
        cells={
            catalogue.NAME.key: name,
            catalogue.WORLD_SIZE.key: quantities.integer(one.world_size),
            ROUNDS.key: quantities.integer(one.whole.rounds),
            **_times(one.whole),
            DRIFT.key: quantities.percent(one.drift),
            **_faults(one.whole),
        },
        flags=(*(("DRIFTING",) if one.drifts else ()), *(("THROTTLED",) if one.throttle_reasons else ())),
        remark=_place(one),
        marks=notes.marks(_notes(one, f"{name} N={one.world_size}")),
    )


def _place(one: OverTime) -> Phrase:
    means = "means of windows; " if one.of_windows else ""
    if not one.steps:
        return ()
    return (f"{means}longest: rank {one.worst_rank} on {one.worst_host}, round {one.worst_round + 1}",)


def _notes(one: OverTime, name: str) -> Iterator[str]:
    for error in one.link_errors:
        yield f"{name}: link errors on {error.host}: {error.card} {error.counter} rose by {error.count}"
    if one.throttle_reasons:
        yield f"{name}: throttled: {', '.join(one.throttle_reasons)}"
    if one.failures:
        causes = ", ".join(f"{cause} ({count})" for cause, count in sorted(one.failures.items()))
        yield f"{name}: {counted(one.whole.failures, 'round')} failed: {causes}"


def _times(of: StepTimes) -> dict[str, Cell]:
    known = {column.key: getattr(of, column.key) for column in TIMES}
    return {key: None if value is None else quantities.milliseconds(value) for key, value in known.items()}


def _faults(of: StepTimes) -> dict[str, Cell]:
    return {
        THROTTLED.key: None if of.throttled is None else quantities.fraction(of.throttled),
        REPEATED.key: quantities.integer(of.repeated),
        LINK_ERRORS.key: quantities.integer(of.link_errors),
        FAILED.key: quantities.integer(of.failures),
    }


def _known(column: Column, found: Sequence[StepTimes]) -> tuple[Column, ...]:
    return (column,) if any(getattr(one, column.key) for one in found) else ()


# ---------------------------------------------------------------- over time


def _by_time(one: OverTime, plain: OverTime | None, context: Context) -> tuple[Section, ...]:
    alone = {of.first_round: of.samples_per_s for of in plain.outline} if plain else {}
    rate = catalogue.RATE.of_unit(one.workload.unit)
    faults = (
        column for each in (THROTTLED, REPEATED, LINK_ERRORS, FAILED) for column in _known(each, one.outline)
    )
    return (
        Section(
            title=f"Over time: {name_of(one, context)} N={one.world_size}",
            columns=(UNTIL, ROUNDS, rate, *((ALONE,) if alone else ()), *TIMES, *faults),
            lines=tuple(_stretch(of, one, alone) for of in one.outline),
        ),
    )


def _stretch(of: StepTimes, one: OverTime, alone: Mapping[int, float | None]) -> Line:
    return Line(
        cells={
            UNTIL.key: duration(of.end_s),
            ROUNDS.key: quantities.integer(of.rounds),
            catalogue.RATE.key: _rate(of.samples_per_s, one),
            ALONE.key: _rate(alone.get(of.first_round), one),
            **_times(of),
            **_faults(of),
        }
    )


def _rate(samples_per_s: float | None, one: OverTime) -> Quantity | None:
    return quantities.rate_of(samples_per_s, one.workload)
