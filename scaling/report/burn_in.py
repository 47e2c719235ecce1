"""The tables of a run over time: step times of all rounds, and the headline exchange by stretches of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling import frameworks
from scaling.analysis.table import catalogue
from scaling.analysis.table.burn_in import OverTime, StepTimes
from scaling.analysis.table.rows import PERCENT, Column
from scaling.report import labels, quantities
from scaling.report.labels import Context
from scaling.report.notes import Notes
from scaling.report.parts import Cell, Line, Phrase, Section
from scaling.text import counted, duration

STEP = "a step"
ROUNDS = Column(key="rounds", title="rounds")
TIMES: tuple[Column, ...] = tuple(
    Column(key=f"{name}_s", title=name, unit="ms", group=STEP) for name in ("p50", "p95", "p99", "worst")
)
DRIFT = Column(
    key="drift", title="rate's change", short=("rate's", "change, %"), unit=PERCENT, brackets_noise=True
)
THROTTLED = Column(key="throttled", title="throttled", short=("throt-", "tled, %"), unit=PERCENT)
UNTIL = Column(key="until", title="until", is_text=True)
ALONE = Column(key="alone", title="a device alone", short=("a device", "alone"))
FAULTS = (
    THROTTLED,
    Column(key="repeated", title="windows repeated", short=("windows", "repeated")),
    Column(key="link_errors", title="link errors", short=("link", "errors")),
    Column(key="failures", title="failed"),
)


def sections(found: Sequence[OverTime], context: Context, notes: Notes) -> Iterator[Section]:
    """Yield the tables of a run over time; none without times."""
    if not found:
        return
    faults = [THROTTLED] if any(one.whole.throttled for one in found) else []
    yield Section(
        title=f"Step times over {duration(max(one.whole.end_s for one in found))}, all rounds",
        columns=(catalogue.NAME, catalogue.WORLD_SIZE, ROUNDS, *TIMES, DRIFT, *faults),
        lines=tuple(_line(one, context, notes) for one in found),
    )
    if one := headline_of(found):
        plain = behind(one, found)
        alone = {of.first_round: of.samples_per_s for of in plain.outline} if plain else {}
        rate = catalogue.RATE.of_unit(one.workload.unit)
        faults = [column for column in FAULTS if any(getattr(of, column.key) for of in one.outline)]
        yield Section(
            title=f"Over time: {name_of(one, context)} N={one.world_size}",
            columns=(UNTIL, ROUNDS, rate, *((ALONE,) if alone else ()), *TIMES, *faults),
            lines=tuple(
                Line(
                    cells={
                        UNTIL.key: duration(of.end_s),
                        catalogue.RATE.key: quantities.rate_of(of.samples_per_s, one.workload),
                        ALONE.key: quantities.rate_of(alone.get(of.first_round), one.workload),
                        **_cells(of),
                    }
                )
                for of in one.outline
            ),
        )


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


def _line(one: OverTime, context: Context, notes: Notes) -> Line:
    name = name_of(one, context)
    longest: Phrase = ()
    if one.steps:
        means = "means of windows; " if one.of_windows else ""
        longest = (f"{means}longest: rank {one.worst_rank} on {one.worst_host}, round {one.worst_round + 1}",)
    return Line(
        cells={
            catalogue.NAME.key: name,
            catalogue.WORLD_SIZE.key: quantities.integer(one.world_size),
            DRIFT.key: quantities.percent(one.drift),
            **_cells(one.whole),
        },
        flags=(*(("DRIFTING",) if one.drifts else ()), *(("THROTTLED",) if one.throttle_reasons else ())),
        remark=longest,
        marks=notes.marks(f"{name} N={one.world_size}: {said}" for said in _notes(one)),
    )


def _notes(one: OverTime) -> Iterator[str]:
    for error in one.link_errors:
        yield f"link errors on {error.host}: {error.card} {error.counter} rose by {error.count}"
    if one.throttle_reasons:
        yield f"throttled: {', '.join(one.throttle_reasons)}"
    if one.failures:
        causes = ", ".join(f"{cause} ({count})" for cause, count in sorted(one.failures.items()))
        yield f"{counted(one.whole.failures, 'round')} failed: {causes}"


def _cells(of: StepTimes) -> dict[str, Cell]:
    known = {column.key: getattr(of, column.key) for column in TIMES}
    times = {key: None if value is None else quantities.milliseconds(value) for key, value in known.items()}
    counts = {
        key: quantities.integer(getattr(of, key)) for key in ("rounds", "repeated", "link_errors", "failures")
    }
    return {**times, **counts, "throttled": None if of.throttled is None else quantities.fraction(of.throttled)}
