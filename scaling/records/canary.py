"""When a canary was slow: judged alike while a sweep runs, by what is measured again, and in its report. Pure."""

from __future__ import annotations

from collections.abc import Sequence

# A core is disturbed on which the piece of work takes this much longer than it mostly does ...
SLOWER = 1.15
# ... and so many times as far above the lower quartile as that is above the lowest twentieth. Cores of some
# virtual machines change their speed by a third within a second, all day, with nothing else to be seen: no window
# of theirs stands out. (Of simulated cores that wander by 14 %, 3 % of canaries are beyond.)
FENCE = 4.5
# The quartiles of a normal distribution lie so many standard deviations from its median.
QUARTILE_SD = 0.674
LEAST = 10


def slow_above_s(canaries_s: Sequence[float]) -> float:
    """Above how many seconds one of these canaries, of which there must be some, was slow.

    The spread is read from the quickest quarter, as what is usual is: a burner that comes and goes moves neither,
    even where it had the core for most of those few that a run begins with.
    """
    quickest_s, quartile_s = sorted(canaries_s)[len(canaries_s) // 20], usual_s(canaries_s)
    return max(SLOWER * quartile_s, quartile_s + FENCE * (quartile_s - quickest_s))


def is_shared(seconds: float, queued_s: float) -> bool:
    """Whether others had the core for so much of one canary's time that it was slow for that."""
    return seconds > SLOWER * (seconds - queued_s)


def usual_s(canaries_s: Sequence[float]) -> float:
    """What the canary mostly takes: the lower quartile. A burner that comes and goes does not move it, a machine
    that is slower for good does."""
    return sorted(canaries_s)[len(canaries_s) // 4]


def spread(canaries_s: Sequence[float]) -> float:
    """The relative standard deviation of what these canaries take when nothing stands out: read from their quicker
    half, as if they were normal; 0 where they are too few to tell."""
    if len(canaries_s) < LEAST:
        return 0.0
    median_s = _median_s(canaries_s)
    return (median_s - usual_s(canaries_s)) / (QUARTILE_SD * median_s)


def _median_s(canaries_s: Sequence[float]) -> float:
    return sorted(canaries_s)[(len(canaries_s) - 1) // 2]
