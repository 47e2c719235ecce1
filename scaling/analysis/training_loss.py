"""What training came to: its loss, the loss after equal numbers of samples, staleness. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from statistics import fmean

from scaling.records.events import Finished, Window
from scaling.records.run import PointRecord, RankRecord


def staleness(records: Iterable[PointRecord]) -> float | None:
    """Return the mean over ranks, measured windows and rounds; None for synchronous modes."""
    windows = (window for record in _finished(records) for rank in record.ranks for window in rank.windows)
    known = [window.staleness for window in windows if window.staleness is not None]
    return fmean(known) if known else None


def first_and_last_loss(records: Iterable[PointRecord]) -> tuple[float | None, float | None]:
    """Return the means over ranks and rounds of the first and of the last window that has a loss."""
    ends = [found for record in _finished(records) for rank in record.ranks if (found := _ends(rank)) is not None]
    if not ends:
        return None, None
    return fmean([first for first, _ in ends]), fmean([last for _, last in ends])


def samples(record: PointRecord) -> int:
    """Return how many samples all ranks have trained on up to their last loss, warm-up included; 0 without a
    loss. What ranks of an asynchronous mode go on doing when their own windows are over is not counted."""
    return min((curve[-1][0] for curve in _curves(record) if curve), default=0)


def equal_samples(cells: Iterable[Iterable[PointRecord]]) -> int | None:
    """Return the smallest number of samples that any finished record of these cells was trained on."""
    found = [count for records in cells for record in _finished(records) if (count := samples(record))]
    return min(found, default=None)


def loss_after(records: Iterable[PointRecord], count: int) -> float | None:
    """Return the training loss after `count` samples, mean over ranks and rounds; None where none reached it.

    A rank's curve is the loss of each window over the samples that all ranks had done by that window's end,
    linear in between. Ranks that do not wait for each other end the same window at different times; the
    samples are then those that all have done when each has ended it.
    """
    curves = (curve for record in _finished(records) for curve in _curves(record))
    known = [loss for curve in curves if (loss := _at(curve, count)) is not None]
    return fmean(known) if known else None


def _finished(records: Iterable[PointRecord]) -> Iterable[PointRecord]:
    return (record for record in records if isinstance(record.outcome, Finished))


def _windows(rank: RankRecord) -> tuple[Window, ...]:
    """In which it was trained, one after the other: also in those that were then measured again."""
    measured = sorted((*rank.windows, *rank.disturbed), key=lambda window: window.start_s)
    return (*rank.warmup, *measured)


def _curves(record: PointRecord) -> list[list[tuple[int, float]]]:
    """The curve of each rank."""
    totals = _totals(record)
    return [_curve(rank, totals) for rank in record.ranks]


def _totals(record: PointRecord) -> list[int]:
    """Samples of all ranks up to the end of each window."""
    same = zip(*map(_windows, record.ranks), strict=False)
    return list(accumulate(sum(w.samples + w.uncounted_samples for w in windows) for windows in same))


def _curve(rank: RankRecord, totals: Sequence[int]) -> list[tuple[int, float]]:
    """(samples, loss) of the windows that have a loss."""
    both = zip(totals, _windows(rank), strict=False)
    return [(total, window.loss) for total, window in both if window.loss is not None]


def _at(curve: Sequence[tuple[int, float]], count: int) -> float | None:
    if curve and curve[0][0] == count:
        return curve[0][1]
    for (before, high), (after, low) in pairwise(curve):
        if before < count <= after:
            return high + (low - high) * (count - before) / (after - before)
    return None


def _ends(rank: RankRecord) -> tuple[float, float] | None:
    losses = [window.loss for window in _windows(rank) if window.loss is not None]
    return (losses[0], losses[-1]) if losses else None
