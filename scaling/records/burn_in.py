"""Summaries of a burn-in, and which rounds it keeps in full: memory and file of a week's run are bounded.

Every point has a summary, also in rounds that are not kept. Summaries of consecutive rounds join into one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import floor, log
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import replace

from scaling.records.point import Amount, Count, Index, Record, Seconds, Size
from scaling.text import seconds_of

# ---------------------------------------------------------------- rounds that are kept

# Rounds with all their windows, evenly spaced from the first. LIVE_ROUNDS are in the table while the run goes
# on, which is made again after each point.
MOST_ROUNDS, LIVE_ROUNDS = 64, 16
# Stretches of time in a report.
MOST_STRETCHES = 200


def spacing(rounds: int, most: int = MOST_ROUNDS) -> int:
    """Return the power of two by which at most `most` of these rounds are evenly spaced."""
    return 1 << max(0, (-(-rounds // most) - 1).bit_length())


def is_kept(number: int, rounds: int, most: int = MOST_ROUNDS) -> bool:
    """Return whether this round, counted from 0, is kept in full when there are so many rounds."""
    return number % spacing(rounds, most) == 0


def asked_s(config: Mapping[str, Any]) -> float:
    """Return the seconds of `--for` in the configuration of a run; 0 without it."""
    text = config.get("for")
    return (seconds_of(text) or 0.0) if isinstance(text, str) else 0.0


# ---------------------------------------------------------------- summaries

# Bins of step times, each 1 % wide: a percentile is off by 0.5 % at most.
BIN = log(1.01)
Bin = Annotated[int, Meta(ge=-4000, le=4000)]


def bin_of(seconds: float) -> int:
    """Return the bin of a step's time."""
    return min(max(floor(log(seconds) / BIN), -4000), 4000)


class LinkErrors(Record, frozen=True, kw_only=True, array_like=True):
    """The rise of one error counter of a network card or RDMA port (`eth0`, `mlx5_0/1`) in timed windows."""

    host: str
    card: str
    counter: str
    count: Count


class PointSummary(Record, frozen=True, kw_only=True, tag="summary"):
    """A cell in `rounds` consecutive rounds from `first_round` on, `measured` of which have a result.

    `cell`: `Point.cell`; `begin_s`, `end_s`: seconds of the run at the start of the first and end of the last.
    `samples`, `seconds`: of all measured windows by the slowest rank; of one device if ranks ran alone.
    `times`: (bin, number) of step times. In a synchronous exchange a step takes as long as on its slowest rank;
      other points have the steps of each rank. `of_windows`: single steps are not timed, so these are means of
      windows.
    `worst_s`: the longest of them, on `worst_rank` of `worst_host` in round `worst_round`.
    `readings`: readings of GPUs, or periods of a CPU quota; `throttled` of them were, for `reasons`.
    `repeated`: windows that were repeated because other programs or slower cores disturbed them; not in `times`.
    `failures`: failed points by cause.
    """

    cell: str
    first_round: Index
    begin_s: Seconds
    end_s: Seconds
    rounds: Size = 1
    measured: Index = 0
    samples: Count = 0
    seconds: Seconds = 0.0
    times: tuple[tuple[Bin, Count], ...] = ()
    of_windows: bool = False
    worst_s: Amount = 0.0
    worst_rank: Index = 0
    worst_host: str = ""
    worst_round: Index = 0
    readings: Count = 0
    throttled: Count = 0
    reasons: tuple[str, ...] = ()
    repeated: Count = 0
    link_errors: tuple[LinkErrors, ...] = ()
    failures: dict[str, Count] = {}


_SUMS = ("measured", "samples", "seconds", "readings", "throttled", "repeated")


def joined(*found: PointSummary) -> PointSummary:
    """Join the summaries of one cell in several stretches of rounds."""
    worst = max(found, key=lambda one: one.worst_s)
    begin, end = min(one.first_round for one in found), max(map(_end, found))
    failures: Counter[str] = Counter()
    for one in found:
        failures.update(one.failures)
    return replace(
        worst,
        first_round=begin,
        rounds=end - begin,
        begin_s=min(one.begin_s for one in found),
        end_s=max(one.end_s for one in found),
        times=counts(time for one in found for time in one.times),
        of_windows=any(one.of_windows for one in found),
        reasons=tuple(sorted({reason for one in found for reason in one.reasons})),
        link_errors=added(error for one in found for error in one.link_errors),
        failures=dict(failures),
        **{name: sum(getattr(one, name) for one in found) for name in _SUMS},
    )


def counts(times: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Add up the numbers of each bin, in the order of the bins."""
    found: Counter[int] = Counter()
    for place, number in times:
        found[place] += number
    return tuple(sorted(found.items()))


def added(errors: Iterable[LinkErrors]) -> tuple[LinkErrors, ...]:
    """Add up the errors of each counter."""
    found: Counter[tuple[str, str, str]] = Counter()
    for one in errors:
        found[one.host, one.card, one.counter] += one.count
    return tuple(
        LinkErrors(host=host, card=card, counter=counter, count=count)
        for (host, card, counter), count in sorted(found.items())
    )


def _end(one: PointSummary) -> int:
    return one.first_round + one.rounds


# Summaries that wait to be joined, by cell and stretch: joining many at once is faster.
MOST_WAITING = 32


class Stretches:
    """The summaries of a run by cell, in at most `most` stretches of as many rounds each."""

    def __init__(self, summaries: Iterable[PointSummary] = (), most: int = MOST_STRETCHES) -> None:
        self._most = most
        self._width = 1
        self._found: dict[tuple[str, int], list[PointSummary]] = {}
        for one in summaries:
            self.add(one)

    def add(self, one: PointSummary) -> None:
        width = spacing(_end(one), self._most)
        if width > self._width:
            before = self.all()
            self._found, self._width = {}, width
            for each in before:
                self._put(each)
        self._put(one)

    def all(self) -> tuple[PointSummary, ...]:
        """Return the joined summaries, each cell's in the order of time."""
        return tuple(found[0] if len(found) == 1 else joined(*found) for found in self._found.values())

    def _put(self, one: PointSummary) -> None:
        found = self._found.setdefault((one.cell, one.first_round // self._width), [])
        found.append(one)
        if len(found) >= MOST_WAITING:
            found[:] = [joined(*found)]
