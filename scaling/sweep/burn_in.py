"""A burn-in (`--for`): when it ends, which of its records are kept, and how far it is.

Its clock is the sweep's, without the time between an interruption and its `--resume`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from scaling.analysis.measured.burn_in import summarized
from scaling.records.burn_in import LIVE_ROUNDS, PointSummary, is_kept
from scaling.records.events import Failed
from scaling.records.run import PointRecord
from scaling.sweep.forecast import Ahead
from scaling.text import counted, duration


class BurnIn:
    """Rounds until `for_s` seconds are over. `earlier` has the summaries of the rounds before an interruption."""

    def __init__(self, for_s: float, clock: Callable[[], float], earlier: Sequence[PointSummary] = ()) -> None:
        self._for_s = for_s
        self._clock = clock
        self._spent_s = max((one.end_s for one in earlier), default=0.0)
        self._begun_s = clock()
        self.first_round = self._rounds = max((one.first_round + one.rounds for one in earlier), default=0)
        self.failures = sum(sum(one.failures.values()) for one in earlier)

    def begin(self) -> None:
        """Start the clock: now the first round begins."""
        self._begun_s = self._clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds of all rounds so far."""
        return self._spent_s + self._clock() - self._begun_s

    @property
    def ahead(self) -> Ahead:
        return Ahead(min(self.elapsed_s / self._for_s, 1.0), max(self._for_s - self.elapsed_s, 0.0))

    def __call__(self, _: object, rounds: int) -> bool:
        """Return whether another round follows, which probably takes as long as the mean of `rounds` before it."""
        elapsed_s = self.elapsed_s
        return elapsed_s + elapsed_s / max(rounds, 1) <= self._for_s

    def keeps(self, record: PointRecord) -> bool:
        """Return whether the file gets the whole record: its round is among the evenly spaced ones."""
        number = record.point.round
        self._rounds = max(self._rounds, number + 1)
        return is_kept(number, self._rounds)

    def summary(self, record: PointRecord) -> PointSummary:
        """Summarise a point that has just ended."""
        self.failures += isinstance(record.outcome, Failed)
        end_s = self.elapsed_s
        return summarized(record, max(end_s - record.wall_s, 0.0), end_s)

    def thinned(self, records: Iterable[PointRecord]) -> tuple[PointRecord, ...]:
        """Return the records that stay in memory: of evenly spaced rounds, and of the newest one."""
        rounds = self._rounds
        return tuple(
            one
            for one in records
            if is_kept(one.point.round, rounds, LIVE_ROUNDS) or one.point.round == rounds - 1
        )

    def __str__(self) -> str:
        """Return `1 h 12 min of 2 h 0 min, 35 rounds`."""
        spent_s = min(self.elapsed_s, self._for_s)
        return f"{duration(spent_s)} of {duration(self._for_s)}, {counted(self._rounds, 'round')}"
