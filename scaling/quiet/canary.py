"""Judgement of canaries: fixed pieces of work that an agent times on a rank's cores before windows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import NamedTuple

# A canary is slow if it takes SLOWER times its usual time, and is over FENCE times as far above the lower quartile
# as that is above the lowest twentieth. Cores of some virtual machines change speed by a third all day.
SLOWER = 1.15
FENCE = 4.5
# Standard deviations between a quartile of a normal distribution and its median.
QUARTILE_SD = 0.674
LEAST = 10  # canaries for a spread
# Canaries of a core:
LEAST_SEEN = 4  # earlier ones needed to judge by time
YOUNG = 16  # first ones, which are also judged by queueing
NEWEST = 64  # kept


class Canary(NamedTuple):
    """Seconds of a canary, and the part of them in which another program had its core."""

    seconds: float
    queued_s: float = 0.0

    @property
    def is_shared(self) -> bool:
        """Whether waiting for another program alone made the canary slow."""
        return self.seconds > SLOWER * (self.seconds - self.queued_s)


class Canaries:
    """The canaries of a sweep by launch rank and company (concurrent canaries share caches and power)."""

    def __init__(self) -> None:
        self._seen: defaultdict[tuple[int, str], list[float]] = defaultdict(list)

    def disturbed(self, canaries: Iterable[tuple[int, str, Canary]], *, again: bool = False) -> bool:
        """Add (launch rank, company, canary) and return whether any is slow; `again`: this is another try."""
        found = [self._is_disturbed((rank, company), one, again) for rank, company, one in canaries]
        return any(found)

    def _is_disturbed(self, key: tuple[int, str], one: Canary, again: bool) -> bool:
        """Queueing counts for the first canaries, because the usual time is not known yet."""
        seen = self._seen[key]
        seen.append(one.seconds)
        is_slow = len(seen) > LEAST_SEEN and one.seconds > slow_above_s(seen)
        found = is_slow or (len(seen) <= YOUNG and one.is_shared)
        if found and again:
            seen.pop()  # else a burner's slowness becomes usual
        del seen[:-NEWEST]
        return found


def slow_above_s(canaries_s: Sequence[float]) -> float:
    """Return the seconds above which one of these canaries, at least one, is slow.

    It depends only on the fastest quarter, which a burner that comes and goes does not change.
    """
    quickest_s, quartile_s = sorted(canaries_s)[len(canaries_s) // 20], usual_s(canaries_s)
    return max(SLOWER * quartile_s, quartile_s + FENCE * (quartile_s - quickest_s))


def usual_s(canaries_s: Sequence[float]) -> float:
    """Return the lower quartile: it follows a machine that stays slower, but not a burner that comes and goes."""
    return sorted(canaries_s)[len(canaries_s) // 4]


def spread(canaries_s: Sequence[float]) -> float:
    """Return the relative standard deviation of the normal distribution of the faster half; 0 for too few."""
    if len(canaries_s) < LEAST:
        return 0.0
    median_s = median_low(canaries_s)
    return (median_s - usual_s(canaries_s)) / (QUARTILE_SD * median_s)
