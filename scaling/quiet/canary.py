"""Judge canaries: fixed pieces of work that an agent times on a rank's cores before windows. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# A canary is slow if it takes this many times its usual time ...
SLOWER = 1.15
# ... and lies this many times as far above the lower quartile as that lies above the lowest twentieth. Cores of
# some virtual machines change their speed by a third within a second, all day: none of their windows stands out.
# (Of simulated cores that wander by 14 %, 3 % of canaries are slow.)
FENCE = 4.5
# Standard deviations between a quartile of a normal distribution and its median.
QUARTILE_SD = 0.674
LEAST = 10  # canaries, for a spread
LEAST_SEEN = 4  # canaries of a core, before one of them is judged by the others
YOUNG = 16  # canaries of a core: up to here they are also judged by what they queued
NEWEST = 64  # canaries of a core that are kept


class Canary(NamedTuple):
    """What a canary took, and for how long of that another program had its core, by the kernel."""

    seconds: float
    queued_s: float = 0.0

    @property
    def is_shared(self) -> bool:
        """Whether another program had the core for so much of the time that the canary was slow for that."""
        return self.seconds > SLOWER * (self.seconds - self.queued_s)


class Canaries:
    """The canaries of a sweep, by launch rank and company: canaries at the same time share caches, power and
    hyperthreads."""

    def __init__(self) -> None:
        self._seen: defaultdict[tuple[int, str], list[float]] = defaultdict(list)

    def disturbed(self, canaries: Iterable[tuple[int, str, Canary]], *, again: bool = False) -> bool:
        """Add the newest canaries, (launch rank, company, canary), and return whether any core was disturbed.

        `again`: the core was disturbed before, and this is another try.
        """
        found = [self._is_disturbed((rank, company), one, again) for rank, company, one in canaries]
        return any(found)

    def _is_disturbed(self, key: tuple[int, str], one: Canary, again: bool) -> bool:
        """Add one canary, and return whether it was slow, or one of the first and on a shared core.

        The usual time is not known at first: a burner that was there before would make its slowness usual.
        """
        seen = self._seen[key]
        seen.append(one.seconds)
        found = self._stands_out(seen, one)
        if found and again:
            seen.pop()  # tries that wait for a burner's end would make its slowness usual
        del seen[:-NEWEST]
        return found

    def _stands_out(self, seen: Sequence[float], one: Canary) -> bool:
        if len(seen) <= YOUNG and one.is_shared:
            return True
        return len(seen) > LEAST_SEEN and one.seconds > slow_above_s(seen)


def slow_above_s(canaries_s: Sequence[float]) -> float:
    """Return the seconds above which one of these canaries was slow; there must be at least one.

    The spread and the usual time are read from the quickest quarter: a burner that comes and goes moves neither,
    even if it had the core during most of a run's first canaries.
    """
    quickest_s, quartile_s = sorted(canaries_s)[len(canaries_s) // 20], usual_s(canaries_s)
    return max(SLOWER * quartile_s, quartile_s + FENCE * (quartile_s - quickest_s))


def usual_s(canaries_s: Sequence[float]) -> float:
    """Return the lower quartile: a machine that stays slower moves it, a burner that comes and goes does not."""
    return sorted(canaries_s)[len(canaries_s) // 4]


def spread(canaries_s: Sequence[float]) -> float:
    """Return the relative standard deviation without outliers: of the normal distribution with this quicker half.

    0 if there are too few canaries.
    """
    if len(canaries_s) < LEAST:
        return 0.0
    median_s = _median_s(canaries_s)
    return (median_s - usual_s(canaries_s)) / (QUARTILE_SD * median_s)


def _median_s(canaries_s: Sequence[float]) -> float:
    return sorted(canaries_s)[(len(canaries_s) - 1) // 2]
