"""How long plain loops wait for data: what they take beyond the same loops on one batch that stays put. Pure.

    beside   together - held, on all devices of a row at once
    alone    the plain loop on one device - held on it: what is in the baseline of efficiency already

neither more than the feeds take by themselves, as DS-Analyzer finds its stalls by differences of rates (Mohan et
al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021): seconds that a rank is blocked in its feed
are no loss where a device computes meanwhile, and too few where decoding takes cores from computing.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from scaling.records.point import Record


class DataTimes(Record, frozen=True, kw_only=True):
    """Seconds of a step in one round, of the row's devices beside each other and of one alone, bounded by nothing
    yet; `most_s` is what the feeds take by themselves, None where that was not measured."""

    beside_s: float
    alone_s: float
    most_s: float | None = None
    most_alone_s: float | None = None

    def told(self) -> dict[str, float]:
        """By name, what is known; the most that it can be is known of both or of none."""
        found = {"data": self.beside_s, "data_alone": self.alone_s}
        if self.most_s is None or self.most_alone_s is None:
            return found
        return {**found, "feed": self.most_s, "feed_alone": self.most_alone_s}


class DataWait(Record, frozen=True, kw_only=True):
    """What of a row's step plain loops wait for data, and what of one device's own step, which is in the baseline
    already: fractions of 1, means over rounds. `feed_samples_per_s` is the rate of all feeds by themselves, which
    no row can exceed; None where it was not measured."""

    of_step: float
    of_alone: float
    feed_samples_per_s: float | None = None


def bounded(waits: Sequence[float], most: Sequence[float] | None) -> float:
    """The mean over rounds, from 0 up to that of what the feeds take by themselves, if that is known."""
    found = max(fmean(waits), 0.0)
    return min(found, fmean(most)) if most else found


def part(waits: Sequence[tuple[float, float | None, float]]) -> float:
    """The same of seconds waited, of the most that it can be, and of what they are a part of, round by round."""
    most = [most_s / whole_s for _, most_s, whole_s in waits if most_s is not None]
    known = most if len(most) == len(waits) else None
    return bounded([wait_s / whole_s for wait_s, _, whole_s in waits], known)
