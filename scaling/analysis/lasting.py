"""Whether an efficiency lasts: what it becomes while the same processes train on. Pure.

Windows that were measured in a process's first seconds say nothing of a warm-up that takes longer. Where an
exchange and the plain loop behind it go on taking turns (sweep/soak.py), the logarithm of their ratio, block by
block from the first measured one on, is tested for a trend by rank (Mann, "Nonparametric tests against trend",
Econometrica 13, 1945; Kendall's tau): what the machine does hits both of a block, what one start is apart from
others is in all of them, and a stall is one rank among many. How large the change is, is the mean of the last
blocks less that of the measured ones, trimmed (Yuen & Dixon, "The approximate behaviour and performance of the
two-sample trimmed t", Biometrika 60, 1973). Blocks are the units, since it is one start: the answer is of this run
alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import expm1, isfinite, sqrt
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis.stats import Estimate, quantile, trimmed_df, trimmed_mean, trimmed_variance
from scaling.analysis.step_time import Blocks, step_time
from scaling.records import canary
from scaling.records.events import Window
from scaling.records.point import Record
from scaling.records.run import PointRecord, RankRecord

# Of an efficiency: less is not worth a stamp, and one in a hundred works may have one by chance.
LEAST, ERROR = 0.01, 0.01
LEAST_BLOCKS = 3
# Of what they trained on: the blocks after it tell what has become of the efficiency.
LATE = 2 / 3


class Lasting(Record, frozen=True, kw_only=True):
    """By which part of itself an efficiency had changed once its processes had trained for `after_s` seconds more,
    with its 95 % interval; `p` is how often noise alone would make as much of a trend, of one of `among` exchanges
    of its work that went on."""

    change: Estimate
    after_s: float
    p: float
    among: int = 1

    @property
    def is_told(self) -> bool:
        """Whether it is no noise, which has as many chances as exchanges went on (Bonferroni), and large enough to
        matter."""
        return self.p < ERROR / self.among and abs(self.change.mean) > LEAST


def lasting(exchanges: Iterable[PointRecord], plain_loops: Sequence[PointRecord]) -> Lasting | None:
    """Of an exchange that trained on beside its plain loop; None where none did, or one of them failed."""
    for exchange in exchanges:
        for plain in plain_loops:
            same = (plain.point.round, plain.epoch) == (exchange.point.round, exchange.epoch)
            if same and (found := _compared(exchange, plain)):
                return found
    return None


class _Ratios(NamedTuple):
    """Of the plain loop's step time over the exchange's, logarithms block by block: of the measured windows, of
    all that followed, and of the last of these."""

    measured: Sequence[float]
    later: Sequence[float]
    late: Sequence[float]


def _compared(exchange: PointRecord, plain: PointRecord) -> Lasting | None:
    late_s = _late_s(exchange.ranks[0].later)
    ratios = _ratios(exchange, plain, late_s)
    if ratios is None or min(len(ratios.measured), len(ratios.late)) < LEAST_BLOCKS:
        return None
    change, p = _change(ratios.measured, ratios.late), _trend_p((*ratios.measured, *ratios.later))
    return Lasting(change=change, after_s=min(late_s.values()), p=p)


def _ratios(exchange: PointRecord, plain: PointRecord, late: Collection[int]) -> _Ratios | None:
    """On the seat of the plain loop that went on."""
    later = step_time(_later(exchange)), step_time(_later(plain))
    before = step_time(exchange), step_time(plain)
    if not (later[0] and later[1] and before[0] and before[1]):
        return None
    seat = min(later[1].seats)
    if seat not in before[1].seats:
        return None
    measured = _ratio(before[0].blocks, before[1].seats[seat].blocks)
    followed = _ratio(later[0].blocks, later[1].blocks)
    last = [ratio for index, ratio in followed.items() if index in late]
    return _Ratios(list(measured.values()), list(followed.values()), last)


def _ratio(exchange: Blocks, plain: Blocks) -> dict[int, float]:
    return {index: plain[index] - exchange[index] for index in sorted(exchange.keys() & plain.keys())}


def _trend_p(values: Sequence[float]) -> float:
    """How often values in random order would rise or fall as steadily."""
    from scipy.stats import kendalltau  # type: ignore[import-untyped]

    p = float(kendalltau(range(len(values)), values).pvalue)
    return p if isfinite(p) else 1.0


# ---------------------------------------------------------------- of one point


def _later(record: PointRecord) -> PointRecord:
    """The same point as it was later; ranks that ended with their windows have none."""
    return replace(record, ranks=tuple(replace(rank, windows=_undisturbed(rank)) for rank in record.ranks))


def _undisturbed(rank: RankRecord) -> tuple[Window, ...]:
    """Those of its later windows before whose turn its core was as quick as it mostly is."""
    windows = (*rank.windows, *rank.soaked)
    known_s = [window.canary_s for window in windows if window.canary_s is not None]
    if not known_s:
        return rank.soaked
    limit_s, found, is_slow = canary.slow_above_s(known_s), list[Window](), False
    for window in rank.soaked:
        is_slow = is_slow if window.canary_s is None else window.canary_s > limit_s
        found += [] if is_slow else [window]
    return tuple(found)


def _late_s(later: Iterable[Window]) -> dict[int, float]:
    """The last of these windows by their index: how long it had trained on before each."""
    ages_s, age_s = {}, 0.0
    for window in later:
        age_s += window.seconds * window.uncounted_samples / window.samples if window.samples else 0.0
        ages_s[window.index] = age_s
        age_s += window.seconds
    return {index: before_s for index, before_s in ages_s.items() if before_s >= LATE * age_s}


# ---------------------------------------------------------------- how large the change is


def _change(measured: Sequence[float], late: Sequence[float]) -> Estimate:
    """Of equally noisy blocks, by Yuen & Dixon: the winsorized squares of both are pooled, since the measured ones
    are few."""
    kept = [trimmed_df(len(values)) + 1 for values in (measured, late)]
    df = sum(kept) - 2
    variance = (_squares(measured) + _squares(late)) / df * sum(1 / count for count in kept)
    mean, half = trimmed_mean(late) - trimmed_mean(measured), quantile(df) * sqrt(variance)
    low, high = expm1(mean - half), expm1(mean + half)
    return Estimate(mean=expm1(mean), low=low, high=high, n=min(len(measured), len(late)), df=df)


def _squares(values: Sequence[float]) -> float:
    """The sum of squares of the winsorized values about their mean."""
    count, kept = len(values), trimmed_df(len(values)) + 1
    return (trimmed_variance(values) or 0.0) * kept**2 * (count - 1) / count
