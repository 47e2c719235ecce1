"""Whether an efficiency lasts: what it was when the same processes had trained on for a while. Pure.

Windows that were measured in a process's first seconds say nothing of a warm-up that takes longer. Where an
exchange and the plain loop behind it went on and took turns again (sweep/soak.py), the logarithm of their ratio,
block by block, is compared with that of the measured windows of the same processes: what the machine does hits
both of a block, and what one start is apart from others is in both. Trimmed means are compared by Student's t with
their degrees of freedom (Yuen, "The two-sample trimmed t for unequal population variances", Biometrika 61, 1974).
Blocks are the units, since it is one start: the answer is of this run alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import expm1
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis.stats import Estimate, trimmed_df, trimmed_mean, trimmed_variance
from scaling.analysis.step_time import Blocks, step_time
from scaling.analysis.welch import Difference, Side, welch
from scaling.records.point import Record
from scaling.records.run import PointRecord

# Of an efficiency: less is not worth a stamp, and one in a hundred runs may have one by chance.
LEAST, ERROR, LEVEL = 0.01, 0.01, 0.05
LEAST_BLOCKS = 3


class Lasting(Record, frozen=True, kw_only=True):
    """By which part of itself an efficiency had changed once its processes had trained for `after_s` seconds more,
    with its 95 % interval; `p` is how often noise alone would do as much."""

    change: Estimate
    after_s: float
    p: float

    @property
    def is_told(self) -> bool:
        """Whether it is no noise, and large enough to matter."""
        return self.p < ERROR and abs(self.change.mean) > LEAST


def lasting(exchanges: Iterable[PointRecord], plain_loops: Sequence[PointRecord]) -> Lasting | None:
    """Of an exchange that trained on beside its plain loop; None where none did, or one of them failed."""
    for exchange in exchanges:
        for plain in plain_loops:
            same = (plain.point.round, plain.epoch) == (exchange.point.round, exchange.epoch)
            if same and (found := _compared(exchange, plain)):
                return found
    return None


class _Ratios(NamedTuple):
    """Of the plain loop's step time over the exchange's, logarithms block by block: then and later."""

    measured: Sequence[float]
    later: Sequence[float]


def _compared(exchange: PointRecord, plain: PointRecord) -> Lasting | None:
    ratios = _ratios(exchange, plain)
    if ratios is None or min(map(len, ratios)) < LEAST_BLOCKS:
        return None
    found = welch(_side(ratios.measured), _side(ratios.later))
    return Lasting(change=_estimate(found), after_s=_between_s(exchange), p=found.p)


def _ratios(exchange: PointRecord, plain: PointRecord) -> _Ratios | None:
    """On the seat of the plain loop that went on."""
    later = step_time(_later(exchange)), step_time(_later(plain))
    before = step_time(exchange), step_time(plain)
    if not (later[0] and later[1] and before[0] and before[1]):
        return None
    seat = min(later[1].seats)
    if seat not in before[1].seats:
        return None
    measured = _ratio(before[0].blocks, before[1].seats[seat].blocks)
    return _Ratios(measured, _ratio(later[0].blocks, later[1].blocks))


def _ratio(exchange: Blocks, plain: Blocks) -> list[float]:
    return [plain[index] - exchange[index] for index in sorted(exchange.keys() & plain.keys())]


def _later(record: PointRecord) -> PointRecord:
    """The same point as it was later; ranks that ended with their windows have none."""
    return replace(record, ranks=tuple(replace(rank, windows=rank.soaked) for rank in record.ranks))


def _side(values: Sequence[float]) -> Side:
    return Side(trimmed_mean(values), trimmed_variance(values), trimmed_df(len(values)), len(values))


def _estimate(found: Difference) -> Estimate:
    half = found.half(LEVEL) or 0.0
    ends = expm1(found.mean - half), expm1(found.mean + half)
    return Estimate(mean=expm1(found.mean), low=ends[0], high=ends[1], n=found.n, df=int(found.df))


def _between_s(record: PointRecord) -> float:
    """Seconds of its own training from the measured windows to those that are compared with them."""
    rank = record.ranks[0]
    return sum(window.seconds for window in rank.later if window.index < rank.soaked[0].index)
