"""Cells that share a work: drift of their windows, and whether an efficiency lasts.

A pool is the exchanges of one framework's work on one kind of device at all world sizes, and the plain loops
behind them. `comm` is not in it, because it does another work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import expm1, sqrt
from statistics import fmean
from typing import NamedTuple

from scaling.analysis.measured.cell import Cell
from scaling.analysis.measured.controls import Controls, Key
from scaling.analysis.measured.step_time import Blocks, step_time
from scaling.analysis.statistics.intervals import (
    Drift,
    Estimate,
    Lasting,
    differences,
    quantile,
    satterthwaite,
    trimmed_df,
    trimmed_mean,
    trimmed_variance,
    variance,
)
from scaling.quiet import notes as quiet
from scaling.records.events import Window
from scaling.records.point import Kind, Point
from scaling.records.run import PointRecord

# ---------------------------------------------------------------- drift
#
# The mean slope of many points of a kind is tested by Student's t, because one point's slope is mostly noise.
# A unit is a point measured alone or an epoch: the machine's drift hits all points of an epoch equally.
# The kinds of one work are tested at ERROR in all (Bonferroni).

ERROR = 0.01
LEAST_UNITS = 3
# Least change over the measured windows worth a stamp, as a fraction of a step.
LEAST = 0.005


def drifts(by_kind: Mapping[Kind, Iterable[Sequence[Blocks]]]) -> tuple[Drift, ...]:
    """Return the kinds of points with a significant drift; each unit is a sequence of points."""
    found = []
    for kind, units in sorted(by_kind.items()):
        slopes = [[(one, len(of)) for of in points if (one := slope(of)) is not None] for points in units]
        if len(known := list(filter(None, slopes))) >= LEAST_UNITS:
            found.append(_drift(kind, known))
    level = 1 - ERROR / max(1, len(found))
    return tuple(one for one in found if abs(one.t) > quantile(one.units - 1, level) and abs(one.whole) > LEAST)


def slope(windows: Blocks) -> float | None:
    """Return the least-squares slope of log step times per window; None for fewer than three windows."""
    if len(windows) < 3:
        return None
    middle, level = fmean(windows), fmean(windows.values())
    squares = sum((index - middle) ** 2 for index in windows)
    return sum((index - middle) * (value - level) for index, value in windows.items()) / squares


def _drift(kind: Kind, units: Sequence[Sequence[tuple[float, int]]]) -> Drift:
    """Each point of a unit has its slope and the number of its windows."""
    slopes = [fmean(per_window for per_window, _ in unit) for unit in units]
    error, mean = sqrt(variance(slopes) / len(slopes)), fmean(slopes)
    points = list(chain.from_iterable(units))
    return Drift(
        kind=kind,
        per_window=mean,
        windows=round(fmean(windows for _, windows in points)),
        points=len(points),
        units=len(units),
        t=mean / error if error else 0.0,
    )


# ---------------------------------------------------------------- pools


def pool_of(point: Point, controls: Controls) -> Key:
    """Return the key of a point's pool."""
    return (controls.plain(point.strategy), point.reference, point.hardware)


class Shared(NamedTuple):
    """Facts of one pool: drifts, number of soaked exchanges."""

    drifts: tuple[Drift, ...]
    soaked: int


def of_pool(cells: Iterable[Cell], controls: Controls) -> Shared:
    """Return the facts of one pool of exchanges, each of which claims an efficiency."""
    kinds: dict[Kind, dict[str, Cell]] = {}
    soaked = 0
    for cell in cells:
        if cell.times:
            soaked += bool(cell.soaked)
            for one in (cell, *controls.cells_behind(cell.point)):
                kinds.setdefault(one.point.kind, {})[one.name] = one
    by_kind = {kind: _side_by_side(one for _, one in sorted(found.items())) for kind, found in kinds.items()}
    return Shared(drifts(by_kind), soaked)


def _side_by_side(cells: Iterable[Cell]) -> list[list[Blocks]]:
    """Windows of the points of one epoch and round together, of other points alone.

    First tries only: repeated windows would make the first blocks of a round look faster than the last.
    """
    found: dict[tuple[int, int | str], list[Blocks]] = {}
    for cell in cells:
        for number, time in cell.at_first:
            found.setdefault((number, cell.name if time.epoch is None else time.epoch), []).append(time.blocks)
    return list(found.values())


# ---------------------------------------------------------------- soak
#
# Whether an efficiency lasts while the same processes train on (soak).
#
# The ratio of plain loop and exchange, which take turns (sweep/epoch.py), is tested block by block for a trend by
# rank (Mann, "Nonparametric tests against trend", Econometrica 13, 1945; Kendall's tau). The change is the trimmed
# mean of the last blocks less that of the measured ones of all rounds, with Welch's degrees of freedom (Yuen &
# Dixon, "The approximate behaviour and performance of the two-sample trimmed t", Biometrika 60, 1973).


LEAST_BLOCKS = 3
# Blocks after this part of the extra time show the changed efficiency.
LATE = 2 / 3


def lasting(exchanges: Sequence[PointRecord], plain_loops: Sequence[PointRecord]) -> Lasting | None:
    """Return the change of an exchange in the round that was soaked with its plain loop; None without one."""
    pairs = [
        (exchange, plain)
        for exchange in exchanges
        for plain in plain_loops
        if (plain.point.round, plain.epoch) == (exchange.point.round, exchange.epoch)
    ]
    found = (_compared(*pair, pairs) for pair in pairs if all(any(r.soaked for r in one.ranks) for one in pair))
    return next((one for one in found if one), None)


def _compared(
    exchange: PointRecord, plain: PointRecord, pairs: Iterable[tuple[PointRecord, PointRecord]]
) -> Lasting | None:
    """Uses the seat of the soaked plain loop; `pairs` are of all rounds."""
    after = step_time(quiet.later(plain))
    if after is None:
        return None
    seat, late_s, own = min(after.seats), _late_s(exchange.ranks[0].later), step_time(quiet.later(exchange))
    measured, later = _measured(exchange, plain, seat), differences(after.blocks, own.blocks) if own else {}
    late = [ratio for index, ratio in later.items() if index in late_s]
    if min(len(measured), len(late)) < LEAST_BLOCKS:
        return None
    by_round = [trimmed_mean(found) for pair in pairs if (found := _measured(*pair, seat))]
    change = _change(by_round if len(by_round) > 1 else measured, late)
    p = _trend_p((*measured, *later.values()), change.mean)
    return Lasting(change=change, after_s=min(late_s.values()), p=p)


def _measured(exchange: PointRecord, plain: PointRecord, seat: int) -> Sequence[float]:
    """Logarithms of plain loop over exchange, block by block; empty if one failed."""
    both = step_time(exchange), step_time(plain)
    if not (both[0] and both[1]) or seat not in both[1].seats:
        return ()
    return list(differences(both[1].seats[seat].blocks, both[0].blocks).values())


def _trend_p(values: Sequence[float], change: float) -> float:
    """p-value of Kendall's tau; 1 if the trend is against the change."""
    from scipy.stats import kendalltau  # type: ignore[import-untyped]

    found = kendalltau(range(len(values)), values)
    return float(found.pvalue) if found.statistic * change > 0 else 1.0


def _late_s(later: Iterable[Window]) -> dict[int, float]:
    """Window index -> seconds of training before it, for the last third of the extra time."""
    ages_s, age_s = {}, 0.0
    for window in later:
        age_s += window.seconds * window.uncounted_samples / window.samples if window.samples else 0.0
        ages_s[window.index] = age_s
        age_s += window.seconds
    return {index: before_s for index, before_s in ages_s.items() if before_s >= LATE * age_s}


def _change(before: Sequence[float], late: Sequence[float]) -> Estimate:
    """Welch's difference of trimmed means."""
    mean, n = trimmed_mean(late) - trimmed_mean(before), min(len(before), len(late))
    parts = [((trimmed_variance(values) or 0.0), trimmed_df(len(values))) for values in (before, late)]
    variance = sum(part for part, _ in parts)
    df = max(1, int(satterthwaite(parts))) if variance else n - 1
    half = quantile(df) * sqrt(variance)
    return Estimate(mean=expm1(mean), low=expm1(mean - half), high=expm1(mean + half), n=n, df=df)
