"""Which measured windows came after a slow canary, seat by seat over rounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from scaling.records import canary
from scaling.records.events import Window
from scaling.records.run import PointRecord, RankRecord


class Canary(NamedTuple):
    """What one took before a window, and how much of that others had its core."""

    seconds: float
    queued_s: float


def of(windows: Iterable[Window]) -> list[Canary | None]:
    """That before each window; of those that run in one go the first has the canary of all."""
    own = (None if one.canary_s is None else Canary(one.canary_s, one.canary_queued_s) for one in windows)
    found: Iterator[Canary | None] = accumulate(own, lambda before, own: own or before)
    return list(found)


def known_s(ranks: Iterable[RankRecord]) -> list[float]:
    """What is usual is read from these: of windows that were measured again the try that counts and the first one,
    since those that waited for a burner's end would make its slowness usual."""
    windows = chain.from_iterable((*rank.windows, *_first_tries(rank).values()) for rank in ranks)
    return [window.canary_s for window in windows if window.canary_s is not None]


def _first_tries(rank: RankRecord) -> dict[int, Window]:
    """Of the windows that were measured again, by index, unless it is the one that counts."""
    first = {window.index: window for window in reversed(rank.disturbed)}
    return {one.index: first[one.index] for one in rank.windows if first.get(one.index, one).start_s < one.start_s}


def slow_above_s(canaries_s: Sequence[float]) -> float:
    """Above how many seconds one of these canaries was slow; of none, infinity."""
    return canary.slow_above_s(canaries_s) if canaries_s else inf


def slow_blocks(windows: Sequence[Window], limit_s: float) -> frozenset[int]:
    """The indices of the windows before which a canary took longer."""
    found = zip(windows, of(windows), strict=True)
    return frozenset(window.index for window, one in found if one and one.seconds > limit_s)


def quiet_at_first(records: Sequence[PointRecord]) -> Iterator[PointRecord]:
    """The same records as they would be had nothing been measured again, without the windows before which the
    core of any rank was slower than it mostly is."""
    by_seat: dict[int, list[RankRecord]] = {}
    for rank in chain.from_iterable(record.ranks for record in records):
        by_seat.setdefault(rank.launch_rank, []).append(rank)
    limits_s = {seat: slow_above_s(known_s(ranks)) for seat, ranks in by_seat.items()}
    for record in records:
        ranks = [replace(rank, windows=_at_first(rank)) for rank in record.ranks]
        slow = frozenset[int]().union(*(slow_blocks(one.windows, limits_s[one.launch_rank]) for one in ranks))
        quiet = (tuple(window for window in rank.windows if window.index not in slow) for rank in ranks)
        kept = (replace(rank, windows=windows) for rank, windows in zip(ranks, quiet, strict=True))
        yield replace(record, ranks=tuple(kept))


def _at_first(rank: RankRecord) -> tuple[Window, ...]:
    first = _first_tries(rank)
    return tuple(first.get(window.index, window) for window in rank.windows)
