"""Whether an efficiency lasts while the same processes train on (soak).

The ratio of plain loop and exchange, which take turns (sweep/epoch.py), is tested block by block for a trend by
rank (Mann, "Nonparametric tests against trend", Econometrica 13, 1945; Kendall's tau). The change is the trimmed
mean of the last blocks less that of the measured ones of all rounds, with Welch's degrees of freedom (Yuen &
Dixon, "The approximate behaviour and performance of the two-sample trimmed t", Biometrika 60, 1973).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import expm1, sqrt

from scaling.analysis.measured.step_time import Blocks, step_time
from scaling.analysis.statistics.intervals import (
    Estimate,
    quantile,
    satterthwaite,
    trimmed_df,
    trimmed_mean,
    trimmed_variance,
)
from scaling.quiet import notes as quiet
from scaling.records.events import Window
from scaling.records.point import Record
from scaling.records.run import PointRecord

# Least change worth a stamp, as a fraction; chance of a false stamp per work.
LEAST, ERROR = 0.01, 0.01
LEAST_BLOCKS = 3
# Blocks after this part of the extra time show the changed efficiency.
LATE = 2 / 3


class Lasting(Record, frozen=True, kw_only=True):
    """Relative change of an efficiency after `after_s` more seconds; p-value of its trend, of `among` tests."""

    change: Estimate
    after_s: float
    p: float
    among: int = 1

    @property
    def is_told(self) -> bool:
        """Whether the change is significant (Bonferroni over `among`) and large enough."""
        return self.p < ERROR / self.among and abs(self.change.mean) > LEAST


def lasting(exchanges: Sequence[PointRecord], plain_loops: Sequence[PointRecord]) -> Lasting | None:
    """Return the change of an exchange in the round that was soaked with its plain loop; None without one."""
    pairs = [(exchange, plain) for exchange in exchanges for plain in plain_loops if _is_beside(exchange, plain)]
    found = (_compared(*pair, pairs) for pair in pairs if all(any(r.soaked for r in one.ranks) for one in pair))
    return next((one for one in found if one), None)


def _is_beside(exchange: PointRecord, plain: PointRecord) -> bool:
    return (plain.point.round, plain.epoch) == (exchange.point.round, exchange.epoch)


def _compared(
    exchange: PointRecord, plain: PointRecord, pairs: Iterable[tuple[PointRecord, PointRecord]]
) -> Lasting | None:
    """Uses the seat of the soaked plain loop; `pairs` are of all rounds."""
    after = step_time(quiet.later(plain))
    if after is None:
        return None
    seat, late_s = min(after.seats), _late_s(exchange.ranks[0].later)
    measured, later = _measured(exchange, plain, seat), _followed(exchange, after.blocks)
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
    return list(_ratio(both[0].blocks, both[1].seats[seat].blocks).values())


def _followed(exchange: PointRecord, plain: Blocks) -> dict[int, float]:
    own = step_time(quiet.later(exchange))
    return _ratio(own.blocks, plain) if own else {}


def _ratio(exchange: Blocks, plain: Blocks) -> dict[int, float]:
    return {index: plain[index] - exchange[index] for index in sorted(exchange.keys() & plain.keys())}


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
