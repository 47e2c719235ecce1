"""Two programs that took turns by blocks -> their ratio with its interval. Pure.

Blocks of one start follow each other on one placement in memory and are not independent: they are paired, which
takes away what the machine does for seconds, and make one number; the interval is over starts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import exp, inf, log
from statistics import fmean
from typing import Literal, NamedTuple

from scipy.stats import trim_mean  # type: ignore[import-untyped]

from scaling.analysis import intervals

# The ratio is that of the first over the second.
Side = Literal["subject", "reference"]
BLOCK_S = 0.4
FEWEST_STEPS, MOST_STEPS = 2, 1000
# Of the block pairs of a start, from either end: Wilcox, "Introduction to Robust Estimation", recommends 20 %.
TRIMMED = 0.2
QUICKEST = 4
LEAST_RATIO, WIDEST = 0.99, 0.01
# ln(10) is the loss of guessing one of ten digits.
LEARNT = 2.0


class Answer(NamedTuple):
    """What one process tells of a block: samples over seconds is its rate."""

    samples: int
    seconds: float
    loss: float | None


class Start(NamedTuple):
    """The blocks of one start of both, paired: images/s of the two in each pair."""

    steps: int
    subject: list[float]
    reference: list[float]


def samples_per_s(answers: Sequence[Answer], *, asynchronous: bool) -> float:
    """The rate of all ranks: that of the slowest where they wait for each other, else the sum."""
    if asynchronous:
        return sum(each.samples / each.seconds for each in answers)
    return sum(each.samples for each in answers) / max(each.seconds for each in answers)


def learnt(answers: Sequence[Answer], *, asynchronous: bool) -> bool:
    """Whether the loss is that of a program that trains. Ranks that do not wait for each other learn more slowly,
    and by chance: theirs must be a number."""
    losses = [each.loss for each in answers if each.loss is not None]
    return bool(losses) and fmean(losses) < (inf if asynchronous else LEARNT)


def steps_per_block(step_s: Sequence[float]) -> int:
    """How many steps last about a block for the slower of the two; both do as many."""
    return max(FEWEST_STEPS, min(MOST_STEPS, round(BLOCK_S / max(step_s))))


def order(pairs: int, seed: str) -> list[tuple[Side, Side]]:
    """Who goes first in each pair of blocks, by chance."""
    chance = random.Random(seed)
    sides: tuple[Side, Side] = ("subject", "reference")
    return [sides if chance.random() < 0.5 else (sides[1], sides[0]) for _ in range(pairs)]


def of_start(start: Start) -> float:
    """The logarithm of their ratio: the trimmed mean over the pairs of a start."""
    logs = [log(subject / other) for subject, other in zip(start.subject, start.reference, strict=True)]
    return float(trim_mean(logs, TRIMMED))


def quickest_of_start(start: Start) -> float:
    """The logarithm of the ratio of each side's quickest quarter of blocks: what is left where nobody else was in
    the way, on machines that others slow down for part of the time."""
    count = max(1, len(start.subject) // QUICKEST)
    subject, reference = (fmean(sorted(side)[-count:]) for side in (start.subject, start.reference))
    return log(subject / reference)


def ratio(starts: Sequence[Start], of: Callable[[Start], float] = of_start) -> intervals.Estimate:
    """Subject over reference with its 95 % interval over starts (Student's t of the logarithms)."""
    found = intervals.interval([of(start) for start in starts])
    low, high = (None if bound is None else exp(bound) for bound in (found.low, found.high))
    return intervals.Estimate(mean=exp(found.mean), low=low, high=high, n=found.n)


def said(found: intervals.Estimate, pairs: int) -> str:
    """In one line: `ratio 0.998 (0.992 to 1.004), 6 starts x 12 blocks: reached`."""
    return f"{summary(found, pairs)}: {verdict(found)}"


def summary(found: intervals.Estimate, pairs: int) -> str:
    span = "" if found.low is None else f" ({found.low:.3f} to {found.high:.3f})"
    return f"ratio {found.mean:.3f}{span}, {found.n} starts x {pairs} blocks"


def verdict(found: intervals.Estimate) -> str:
    """Whether it is 0.99 at least, by an interval of 1 % to either side or less. A wider one tells where all of it
    is on one side."""
    if found.low is None or found.high is None or found.half_width is None:
        return "too wide to tell"
    told = "reached" if found.mean >= LEAST_RATIO else "missed"
    if found.half_width <= WIDEST:
        return told
    return "too wide to tell" if found.low <= LEAST_RATIO <= found.high else f"{told} by all of a wider interval"
