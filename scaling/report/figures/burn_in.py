"""The figure of a run over time: rate and step times of the headline exchange, throttling and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from scaling.analysis.table.burn_in import OverTime, StepTimes
from scaling.analysis.table.catalogue import serious
from scaling.report import words
from scaling.report.burn_in import behind, headline_of, name_of
from scaling.report.figures.parts import Figure, Reading, Strip, Strips, Table
from scaling.report.material import Material
from scaling.text import HOUR_S, MINUTE_S, decimals, duration

# Runs from here on have hours on the axis.
LONG_S = 2 * HOUR_S

Value = Callable[[StepTimes], float | None]


def burn_in(material: Material) -> Iterator[Figure]:
    """Make strips over time for the headline exchange; none for a run of few rounds."""
    one = headline_of(material.over_time)
    if one is None or not one.steps:
        return
    plain = behind(one, material.over_time)
    scale_s, across = (HOUR_S, "hours") if one.whole.end_s >= LONG_S else (MINUTE_S, "minutes")
    strips = tuple(strip for strip in _strips(one, plain, scale_s) if strip.readings)
    name = f"{name_of(one, material.context)} N={one.world_size}"
    yield Figure(
        name="burn-in",
        title=f"Over time: {name}",
        says=f"{name} over {duration(one.whole.end_s)}, {len(one.stretches)} stretches",
        body=Strips(across=across, strips=strips),
        table=Table(("quantity", "lowest", "mean", "highest"), tuple(map(_line, strips))),
        stamps=serious(("EMULATED",) if one.hardware.profile else ()),
    )


def _strips(one: OverTime, plain: OverTime | None, scale_s: float) -> Iterator[Strip]:
    unit, per_sample = one.workload.unit, one.workload.units_per_sample

    def rate(of: StepTimes) -> float | None:
        return None if of.samples_per_s is None else of.samples_per_s * per_sample

    yield _strip(f"{unit}/s", one.stretches, scale_s, rate)
    if plain:
        yield _strip(f"one device alone, {unit}/s", plain.stretches, scale_s, rate)
    yield _steps(one, scale_s)
    yield _strip("longest step, ms", one.stretches, scale_s, lambda of: _ms(of.worst_s), from_zero=True)
    for title, value in _FAULTS:
        if any(value(of) for of in one.stretches):
            yield _strip(title, one.stretches, scale_s, value, from_zero=True)


def _steps(one: OverTime, scale_s: float) -> Strip:
    readings = (
        Reading(of.end_s / scale_s, 1e3 * of.p50_s, 1e3 * of.p95_s, 1e3 * of.p99_s)
        for of in one.stretches
        if of.p50_s is not None and of.p95_s is not None and of.p99_s is not None
    )
    what = "step, means of windows" if one.of_windows else "step"
    return Strip(title=f"{what}, ms: p50, p95 (line), p99", readings=tuple(readings), from_zero=False)


def _strip(
    title: str, stretches: Sequence[StepTimes], scale_s: float, value: Value, *, from_zero: bool = False
) -> Strip:
    known = ((of.end_s / scale_s, found) for of in stretches if (found := value(of)) is not None)
    readings = tuple(Reading(at, found, found, found) for at, found in known)
    return Strip(title=title, readings=readings, from_zero=from_zero)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


_FAULTS: tuple[tuple[str, Value], ...] = (
    ("throttled, % of readings", lambda of: None if of.throttled is None else 100 * of.throttled),
    ("windows repeated", lambda of: float(of.repeated)),
    ("link errors", lambda of: float(of.link_errors)),
    ("failed rounds", lambda of: float(of.failures)),
)


def _line(strip: Strip) -> tuple[str, ...]:
    values = (
        min(one.low for one in strip.readings),
        sum(one.mean for one in strip.readings) / len(strip.readings),
        max(one.high for one in strip.readings),
    )
    return strip.title, *(words.number(value, decimals(value), grouped=True) for value in values)
