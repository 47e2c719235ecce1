"""The intervals of thousands of simulated runs at once: points side by side, and the design before it, under many
noises.

Two devices. The machine's noise is one series of half-second windows; each process start and each window add their
own. `of_run` repeats, on arrays, what the analysis does with the records of one run; a unit test holds them equal.
The same for points that are measured alone, one after the other, as on GPUs: of the same series each point takes a
start with its warm-up and then its windows; `each` has those of one seat and then those of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # type: ignore[import-untyped]

from scaling.analysis.measured.step_time import ROUNDING, SETTLED_CONFIDENCE
from scaling.analysis.statistics.intervals import FLOOR
from scaling.plan.defaults import PACE_ALONE

Array = NDArray[np.float64]
SIZES = (2, 1)
ROUNDS = (4, 6, 10)
BLOCKS = 6
EFFICIENCY = 0.85
SINGLE = 0.99
OLD_ROUNDS, OLD_WINDOWS = 3, 10
# Of the old design: a start with its warm-up, in windows.
OLD_START = 10
# Columns of a block: both seats alone, one rank, both ranks, both plain loops beside each other.
SEAT_0, SEAT_1, ONE, TWO, BESIDE_0, BESIDE_1 = range(6)
# In which start each of them ran; and those of one turn share a window of time.
STARTS = (0, 1, 2, 3, 4, 5)
TURNS = (0, 1, 2, 3, 4, 4)


class Noise(NamedTuple):
    """Standard deviations and parts of 1. `slow` is of a series with autocorrelation `ar` between windows; `drift`
    over the whole run; of `stalls` of the windows each takes twice as long."""

    window: float = 0.0
    slow: float = 0.0
    ar: float = 0.0
    drift: float = 0.0
    stalls: float = 0.0
    start: float = 0.0


NOISES = {
    "iid 3 %": Noise(window=0.03),
    "AR 0.5": Noise(slow=0.03, ar=0.5),
    "AR 0.8": Noise(slow=0.03, ar=0.8),
    "AR 0.95": Noise(slow=0.03, ar=0.95),
    "drift 5 %": Noise(window=0.03, drift=0.05),
    "3 % of windows x2": Noise(window=0.01, stalls=0.03),
    "0.3 % of windows x2": Noise(window=0.01, stalls=0.003),
    "2 % per start": Noise(window=0.03, start=0.02),
    "real": Noise(window=0.02, start=0.012),
    "all": Noise(window=0.01, slow=0.03, ar=0.8, drift=0.05, stalls=0.003, start=0.02),
}


class Interval(NamedTuple):
    """Logarithms, one of each simulated run."""

    mean: Array
    half: Array


class Measured(NamedTuple):
    """How often the interval held the truth, and half of its mean width in points."""

    coverage: float
    half_width: float


class Design(NamedTuple):
    """How runs are measured and what is made of them: `times` of devices, rounds, noise and dice are ln step times
    of runs x rounds x windows x columns, `of_run` the intervals of ln efficiency by world size."""

    times: Callable[[Array, int, Noise, np.random.Generator], Array]
    of_run: Callable[[Array], dict[int, Interval]]


# ---------------------------------------------------------------- what is measured


def devices(runs: int, spread: float, dice: np.random.Generator) -> Array:
    """ln of what each of two seats takes for a step, by run."""
    return spread * dice.standard_normal((runs, 2))


def truth(seats: Array) -> dict[int, Array]:
    """ln of each column's step time without noise."""
    harmonic = -np.log(np.exp(-seats).mean(axis=1))
    return {
        SEAT_0: seats[:, 0],
        SEAT_1: seats[:, 1],
        ONE: seats[:, 0] - np.log(SINGLE),
        TWO: harmonic - np.log(EFFICIENCY),
        BESIDE_0: seats[:, 0] + 0.02,
        BESIDE_1: seats[:, 1] + 0.02,
    }


def blocks(seats: Array, rounds: int, noise: Noise, dice: np.random.Generator) -> Array:
    """ln step times of runs x rounds x blocks x columns: side by side, in random order within each block."""
    runs, turns = len(seats), max(TURNS) + 1
    machine = series(runs, rounds * BLOCKS * turns, noise, dice).reshape(runs, rounds, BLOCKS, turns)
    order = dice.permuted(np.broadcast_to(np.arange(turns), machine.shape), axis=3)
    machine = np.take_along_axis(machine, order, axis=3)
    return of_columns(seats, machine[..., list(TURNS)], noise, dice)


def of_columns(seats: Array, machine: Array, noise: Noise, dice: np.random.Generator) -> Array:
    """ln step times; what the `machine` does in a window of a column is runs x rounds x windows x columns."""
    runs, rounds, _, columns = machine.shape
    level = np.stack([truth(seats)[column] for column in range(columns)], axis=1)
    start = noise.start * dice.standard_normal((runs, rounds, 1, len(STARTS)))
    own = _windows(machine.shape, noise, dice)
    return np.asarray(level[:, None, None, :] + start + own + machine)


def series(runs: int, length: int, noise: Noise, dice: np.random.Generator) -> Array:
    """What the machine does in every half second of a run."""
    found = np.linspace(0.0, noise.drift, length)[:, None] * np.ones(runs)
    if noise.slow:
        now = dice.standard_normal(runs)
        for at in range(length):
            found[at] += noise.slow * now
            now = noise.ar * now + np.sqrt(1 - noise.ar**2) * dice.standard_normal(runs)
    return np.ascontiguousarray(found.T)


def _windows(shape: tuple[int, ...], noise: Noise, dice: np.random.Generator) -> Array:
    stalled = dice.random(shape) < noise.stalls
    return np.asarray(noise.window * dice.standard_normal(shape) + np.log(2.0) * stalled)


# ---------------------------------------------------------------- points side by side


def of_run(times: Array) -> dict[int, Interval]:
    """ln efficiency of both ranks, and of one, by run; `times` as `blocks` makes them."""
    whole = mean(times)  # runs x rounds x columns
    seats = whole[..., :2]
    return {
        2: _of_blocks(by_rate(times, seats), np.exp(times[..., TWO])),
        1: _of_blocks(np.exp(times[..., SEAT_0]), np.exp(times[..., ONE])),
    }


def by_rate(times: Array, seats: Array) -> Array:
    """Seconds, runs x rounds x windows: exp of what `step_time.by_rate` says; `seats` are ln step times, runs x
    rounds x seats."""
    own = seats.mean(axis=1) - seats.mean(axis=(1, 2))[:, None]
    rates = np.exp(-own)[:, None, None, :]
    parts = (rates * np.exp(times[..., :2]) * rates).sum(axis=3) / rates.sum(axis=3)
    return np.asarray(np.exp(harmonic(own))[:, None, None] * parts)


def _of_blocks(ideal: Array, own: Array) -> Interval:
    """Of step times, runs x rounds x blocks, as `rounds.Round.efficiency` and its `noise`."""
    scale = ideal.mean(axis=-1) / own.mean(axis=-1)
    rest = ideal - scale[..., None] * own
    implied = rest.var(axis=-1, ddof=1) / rest.shape[-1] / ideal.mean(axis=-1) ** 2
    return contrast(np.log(scale), implied)


def contrast(by_round: Array, implied: Array) -> Interval:
    """As `intervals.interval`: ln ratios and their variance that windows imply are runs x rounds."""
    rounds = by_round.shape[1]
    variance = np.maximum(by_round.var(axis=1, ddof=1), FLOOR * implied.mean(axis=1)) / rounds
    return Interval(by_round.mean(axis=1), stdtrit(rounds - 1, 0.975) * np.sqrt(variance))


def harmonic(logs: Array) -> Array:
    """ln of the harmonic mean over the last axis."""
    return np.asarray(-np.log(np.exp(-logs).mean(axis=-1)))


def mean(times: Array) -> Array:
    """ln of the mean of step times over blocks, which are the last axis but one."""
    return np.asarray(np.log(np.exp(times).mean(axis=-2)))


SIDE_BY_SIDE = Design(blocks, of_run)


# ---------------------------------------------------------------- points that are measured alone

Mask = NDArray[np.bool_]
WINDOWS = PACE_ALONE[1]
# Which columns are one point's, which is as long as its turns: both loops beside each other have one and the same.
POINTS = ((SEAT_0, SEAT_1), (ONE,), (TWO,), (BESIDE_0, BESIDE_1))
ALONE_TURNS = (2, 1, 1, 1)
# By column.
POINT_OF = (0, 0, 1, 2, 3, 3)
TURN_OF = (0, 1, 0, 0, 0, 0)


def times_alone(seats: Array, rounds: int, noise: Noise, dice: np.random.Generator) -> Array:
    """ln step times of runs x rounds x windows x columns: point after point, in random order within each round."""
    runs, length = len(seats), sum(OLD_START + turns * WINDOWS for turns in ALONE_TURNS)
    machine = series(runs, rounds * length, noise, dice).reshape(runs, rounds, length)
    begins = _begins(runs, rounds, dice)[..., list(POINT_OF)] + WINDOWS * np.array(TURN_OF)
    at = begins[:, :, None, :] + np.arange(WINDOWS)[:, None]
    found = np.take_along_axis(machine, at.reshape(runs, rounds, -1), axis=2).reshape(at.shape)
    return of_columns(seats, found, noise, dice)


def _begins(runs: int, rounds: int, dice: np.random.Generator) -> NDArray[np.intp]:
    """In which window of its round each point's measured windows begin."""
    order = dice.permuted(np.broadcast_to(np.arange(len(POINTS)), (runs, rounds, len(POINTS))), axis=2)
    lasting = OLD_START + WINDOWS * np.array(ALONE_TURNS)[order]
    begins = np.cumsum(lasting, axis=2) - lasting + OLD_START
    return np.take_along_axis(begins, np.argsort(order, axis=2), axis=2)


def of_run_alone(times: Array) -> dict[int, Interval]:
    """ln efficiency of both ranks, and of one, by run."""
    by_point = [settled(times[..., list(columns)].mean(axis=-1)) for columns in POINTS]
    kept = np.stack([by_point[point] for point in POINT_OF], axis=-1)
    whole = np.log(_kept_mean(np.exp(times), kept))  # runs x rounds x columns
    seats, single, both = whole[..., :2], whole[..., ONE], whole[..., TWO]
    alone = np.log(by_rate(times, seats))
    implied = _variance_of_mean(times, kept)
    of_both = _variance_of_mean(alone[..., None], kept[..., :1])[..., 0]
    return {
        2: contrast(harmonic(seats) - both, of_both + implied[..., TWO]),
        1: contrast(seats[..., SEAT_0] - single, implied[..., SEAT_0] + implied[..., ONE]),
    }


def settled(values: Array) -> Mask:
    """Which windows count, as `truncation.truncation`; they are the last axis."""
    count = values.shape[-1]
    errors = [values[..., first:].var(axis=-1) / (count - first) for first in range(count // 2 + 1)]
    least, first_kept = np.argmin(errors, axis=0), np.zeros(values.shape[:-1], int)
    for first in range(1, count // 2 + 1):
        head, rest = values[..., :first], values[..., first:]
        error = np.sqrt(rest.var(axis=-1, ddof=1) * (1 / first + 1 / (count - first)))
        beyond = np.maximum(ROUNDING, stdtrit(count - first - 1, (1 + SETTLED_CONFIDENCE) / 2) * error)
        is_apart = np.abs(head.mean(axis=-1) - rest.mean(axis=-1)) > beyond
        first_kept[(least == first) & is_apart] = first
    return np.asarray(np.arange(count) >= first_kept[..., None])


def _kept_mean(values: Array, kept: Mask) -> Array:
    return np.asarray(values.mean(axis=2, where=kept))


def _variance_of_mean(values: Array, kept: Mask) -> Array:
    return np.asarray(values.var(axis=2, ddof=1, where=kept) / kept.sum(axis=2))


ALONE = Design(times_alone, of_run_alone)


# ---------------------------------------------------------------- the design before it


def of_old_run(seats: Array, noise: Noise, dice: np.random.Generator) -> Interval:
    """3 rounds of 10 windows, one cell after the other in shuffled order, each against `solo` on the first seat by
    its own three ratios with t(2); of efficiency itself, not its logarithm."""
    runs, cells = len(seats), 5
    span = OLD_START + OLD_WINDOWS
    machine = series(runs, OLD_ROUNDS * cells * span, noise, dice).reshape(runs, OLD_ROUNDS, cells, span)
    order = dice.permuted(np.broadcast_to(np.arange(cells), (runs, OLD_ROUNDS, cells)), axis=2)
    machine = np.take_along_axis(machine[..., OLD_START:], order[..., None], axis=2)
    levels = truth(seats)
    ratios = []
    for column, cell in ((SEAT_0, 0), (TWO, 1)):
        start = noise.start * dice.standard_normal((runs, OLD_ROUNDS, 1))
        own = _windows((runs, OLD_ROUNDS, OLD_WINDOWS), noise, dice)
        ratios.append(np.exp(levels[column][:, None, None] + machine[:, :, cell] + start + own).mean(axis=2))
    efficiency = ratios[0] / ratios[1]
    deviation = efficiency.std(axis=1, ddof=1) / np.sqrt(OLD_ROUNDS)
    return Interval(efficiency.mean(axis=1), stdtrit(OLD_ROUNDS - 1, 0.975) * deviation)


# ---------------------------------------------------------------- how good they are


def measured(
    noise: Noise, spread: float, rounds: int, *, runs: int, seed: int, size: int = 2, design: Design = SIDE_BY_SIDE
) -> Measured:
    """Of a design: the row with both ranks, or with one."""
    dice = np.random.default_rng(seed)
    found = design.of_run(design.times(devices(runs, spread, dice), rounds, noise, dice))[size]
    right = EFFICIENCY if size == 2 else SINGLE
    held = np.abs(found.mean - np.log(right)) <= found.half
    return Measured(float(held.mean()), float(np.mean(half_width(found))))


def half_width(found: Interval) -> Array:
    """In points of efficiency, by run."""
    return np.asarray(50 * (np.exp(found.mean + found.half) - np.exp(found.mean - found.half)))


def measured_old(noise: Noise, spread: float, *, runs: int, seed: int) -> Measured:
    dice = np.random.default_rng(seed)
    found = of_old_run(devices(runs, spread, dice), noise, dice)
    held = np.abs(found.mean - EFFICIENCY) <= found.half
    return Measured(float(held.mean()), float(100 * np.mean(found.half)))


def measured_until(
    noise: Noise, target: float, first: int, *, runs: int, seed: int, most: int = 20, design: Design = SIDE_BY_SIDE
) -> Measured:
    """Of a design where rounds are added to the `first` until half of both rows' intervals is below so many
    points (`--target-ci`), or there are the `most`: the row with both ranks."""
    dice = np.random.default_rng(seed)
    times = design.times(devices(runs, 0.0, dice), most, noise, dice)
    open_ = np.ones(runs, bool)
    held, widths = np.zeros(runs, bool), np.zeros(runs)
    for rounds in range(first, most + 1):
        found = design.of_run(times[open_, :rounds])
        half = {size: half_width(one) for size, one in found.items()}
        held[open_] = np.abs(found[2].mean - np.log(EFFICIENCY)) <= found[2].half
        widths[open_] = half[2]
        open_[open_] = np.maximum(half[1], half[2]) > target
    return Measured(float(held.mean()), float(np.mean(widths)))


def table(
    noise: Noise, spread: float, *, runs: int, seed: int, design: Design = SIDE_BY_SIDE
) -> dict[str, Measured]:
    """Of a design with 4, 6 and 10 rounds: of the row with both ranks and of that with one."""
    return {
        name_of(size, rounds): measured(noise, spread, rounds, runs=runs, seed=seed, size=size, design=design)
        for size in SIZES
        for rounds in ROUNDS
    }


def name_of(size: int, rounds: int) -> str:
    """A column of the table."""
    return f"N={size} R={rounds}"
