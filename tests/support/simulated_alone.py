"""The intervals of thousands of simulated runs whose points are measured alone, one after the other, as on GPUs.

Of the same series of half-second windows as in simulated_intervals.py each point takes a start with its warm-up
and then its windows; `each` has those of one seat and then those of the other. `of_run` repeats, on arrays, what
the analysis does with such records; a unit test holds them equal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # type: ignore[import-untyped]

from scaling.analysis.measured.step_time import ROUNDING, SETTLED_CONFIDENCE
from scaling.plan.defaults import PACE_ALONE
from tests.support.simulated_intervals import (
    BESIDE_0,
    BESIDE_1,
    OLD_START,
    ONE,
    SEAT_0,
    SEAT_1,
    TWO,
    Array,
    Design,
    Interval,
    Noise,
    by_rate,
    contrast,
    harmonic,
    of_columns,
    series,
)

Mask = NDArray[np.bool_]
WINDOWS = PACE_ALONE[1]
# Which columns are one point's, which is as long as its turns: both loops beside each other have one and the same.
POINTS = ((SEAT_0, SEAT_1), (ONE,), (TWO,), (BESIDE_0, BESIDE_1))
TURNS = (2, 1, 1, 1)
# By column.
POINT_OF = (0, 0, 1, 2, 3, 3)
TURN_OF = (0, 1, 0, 0, 0, 0)


def times(seats: Array, rounds: int, noise: Noise, dice: np.random.Generator) -> Array:
    """ln step times of runs x rounds x windows x columns: point after point, in random order within each round."""
    runs, length = len(seats), sum(OLD_START + turns * WINDOWS for turns in TURNS)
    machine = series(runs, rounds * length, noise, dice).reshape(runs, rounds, length)
    begins = _begins(runs, rounds, dice)[..., list(POINT_OF)] + WINDOWS * np.array(TURN_OF)
    at = begins[:, :, None, :] + np.arange(WINDOWS)[:, None]
    found = np.take_along_axis(machine, at.reshape(runs, rounds, -1), axis=2).reshape(at.shape)
    return of_columns(seats, found, noise, dice)


def _begins(runs: int, rounds: int, dice: np.random.Generator) -> NDArray[np.intp]:
    """In which window of its round each point's measured windows begin."""
    order = dice.permuted(np.broadcast_to(np.arange(len(POINTS)), (runs, rounds, len(POINTS))), axis=2)
    lasting = OLD_START + WINDOWS * np.array(TURNS)[order]
    begins = np.cumsum(lasting, axis=2) - lasting + OLD_START
    return np.take_along_axis(begins, np.argsort(order, axis=2), axis=2)


def of_run(times: Array) -> dict[int, Interval]:
    """ln efficiency of both ranks, and of one, by run; of the seats alone the first is the layout's column."""
    by_point = [settled(times[..., list(columns)].mean(axis=-1)) for columns in POINTS]
    kept = np.stack([by_point[point] for point in POINT_OF], axis=-1)
    whole = np.log(_mean(np.exp(times), kept))  # runs x rounds x columns
    seats, single, both = whole[..., :2], whole[..., ONE], whole[..., TWO]
    layout = np.stack([seats[..., SEAT_0], single, both, slowest(times, whole, kept)], axis=2)
    alone = np.log(by_rate(times, seats))
    implied = _variance_of_mean(times, kept)
    of_both = _variance_of_mean(alone[..., None], kept[..., :1])[..., 0]
    return {
        2: contrast(harmonic(seats) - both, of_both + implied[..., TWO], layout),
        1: contrast(seats[..., SEAT_0] - single, implied[..., SEAT_0] + implied[..., ONE], layout),
    }


def slowest(times: Array, whole: Array, kept: Mask) -> Array:
    """ln step time of the loops beside each other, as `step_time.lock_step`."""
    columns = [BESIDE_0, BESIDE_1]
    beside, seconds = np.exp(whole[..., columns]), np.exp(times[..., columns])
    late = _mean((seconds.max(axis=-1) - seconds.mean(axis=-1))[..., None], kept[..., BESIDE_0, None])[..., 0]
    return np.asarray(np.log(np.maximum(beside.max(axis=-1), beside.mean(axis=-1) + late)))


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


def _mean(values: Array, kept: Mask) -> Array:
    return np.asarray(values.mean(axis=2, where=kept))


def _variance_of_mean(values: Array, kept: Mask) -> Array:
    return np.asarray(values.var(axis=2, ddof=1, where=kept) / kept.sum(axis=2))


ALONE = Design(times, of_run)
