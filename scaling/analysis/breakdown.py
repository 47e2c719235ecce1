"""Where lost efficiency went: the time of a step, split by cause, round by round. Pure.

Of the exchange's step time t, with the plain loop alone (`solo`) and on all devices at once (`together`), and the
exchange without compute (`comm`):

    small batch   solo at the point's batch - the ideal time of a step          (0 under the weak rule)
    contention    mean of together - solo
    straggling    slowest of together - mean of together
    exposed       t - slowest of together, from 0 up to comm
    unexplained   what is left of t - the ideal time

each divided by t. The definitions are this project's own. Asynchronous modes differ as `Breakdown` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from scaling.analysis.stats import Estimate, interval
from scaling.analysis.step_time import StepTime
from scaling.records.point import Record

CAUSES = ("contention", "straggling", "exposed", "small_batch")


class Breakdown(Record, frozen=True, kw_only=True):
    """Fractions of the exchange's step time, means over rounds; with `unexplained` they add up to
    1 - efficiency. None: the control that tells it was not measured (its part is in `unexplained`).

    contention: the plain loop is slower with all devices at work (`solo` -> mean of `together`);
    straggling: the slowest rank against the mean of `together`; exposed: communication that compute does
    not hide (slowest of `together` -> `exchange`, at most what `comm` takes alone); small_batch: a device's
    part of a fixed global batch costs more than its share of the whole (0 under the weak rule).

    An asynchronous mode waits for nobody: straggling is None, the mean of `together` is that of the rates
    (harmonic), as its own step time is, and exposed communication is counted from there.
    """

    contention: float | None
    straggling: float | None
    exposed: float | None
    small_batch: float | None
    unexplained: float


class Round(Record, frozen=True, kw_only=True):
    """The step times of one round that explain an exchange, seconds; None where not measured.

    `ideal_s` is what a step would take at efficiency 1; `solo_s` one device alone at the point's batch.
    """

    number: int
    exchange_s: float
    ideal_s: float
    solo_s: float | None
    together: StepTime | None
    comm_s: float | None
    synchronous: bool = True

    @property
    def efficiency(self) -> float:
        """Fraction of 1."""
        return self.ideal_s / self.exchange_s


def split(measured: Sequence[Round]) -> Breakdown:
    """Return the lost efficiency by cause over rounds.

    A cause is the mean over the rounds that tell it; what is then left of 1 - efficiency, negative or
    not, is unexplained, so that the parts always add up to the whole.
    """
    means = {cause: fmean(known) if known else None for cause, known in _by_cause(measured).items()}
    lost = 1 - fmean(one.efficiency for one in measured)
    return Breakdown(unexplained=lost - sum(value for value in means.values() if value is not None), **means)


def intervals(measured: Sequence[Round]) -> dict[str, Estimate]:
    """Return each cause's mean with its 95 % interval over the rounds that tell it; `unexplained` over the
    rounds with all controls that any round has. Causes that no round tells are left out."""
    found = {cause: interval(known) for cause, known in _by_cause(measured).items() if known}
    by_round = [(one, _causes(one)) for one in measured]
    rest = [
        1 - one.efficiency - sum(value for value in causes.values() if value is not None)
        for one, causes in by_round
        if all(causes[cause] is not None for cause in found)
    ]
    return {**found, "unexplained": interval(rest)} if rest else found


def _by_cause(measured: Iterable[Round]) -> Mapping[str, list[float]]:
    """Each cause's values, of the rounds that tell it."""
    by_round = [_causes(one) for one in measured]
    return {cause: [value for one in by_round if (value := one[cause]) is not None] for cause in CAUSES}


def _causes(one: Round) -> dict[str, float | None]:
    """Fractions of the step by cause, None where a control is missing."""
    solo_s, together, step_s = one.solo_s, one.together, one.exchange_s
    seconds: dict[str, float | None] = dict.fromkeys(CAUSES)
    if solo_s is not None:
        seconds["small_batch"] = solo_s - one.ideal_s
    if together is not None:
        mean_s, last_s = _beside(together, synchronous=one.synchronous)
        if solo_s is not None:
            seconds["contention"] = mean_s - solo_s
        if one.synchronous:
            seconds["straggling"] = last_s - mean_s
        if one.comm_s is not None:
            seconds["exposed"] = min(max(step_s - last_s, 0.0), one.comm_s)
    return {cause: None if value is None else value / step_s for cause, value in seconds.items()}


def _beside(together: StepTime, *, synchronous: bool) -> tuple[float, float]:
    """What the ranks beside each other take on average, and when an exchange of theirs could end."""
    if synchronous:
        return together.mean_s, together.step_s
    return together.harmonic_s, together.harmonic_s
