"""A network's first weights, drawn by NumPy, and its rotary angles: the same for every framework."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from scaling.workloads import weights_file
from scaling.workloads.layers import Parameter
from scaling.workloads.specs import ModelSpec

Array = NDArray[np.float32]
Random = np.random.Generator


def draw(spec: ModelSpec, seed: int) -> Iterator[tuple[str, Array]]:
    """Yield `path.parameter` and values of every parameter, in order. Each is drawn from the seed and its index,
    or read from the model's file. Each core of this process draws one; twice as many are in memory at most. Raises
    UsageError for a file of another network."""
    kept = weights_file.weights(spec).trained if spec.weights else ()
    parameters = (each for placed in spec.placed for each in placed.parameters)

    def value(index: int, parameter: Parameter, known: Array | None) -> Array:
        return values(parameter, Random(np.random.SFC64((seed, index)))) if known is None else known

    with ThreadPoolExecutor(cores := len(os.sched_getaffinity(0))) as pool:
        begun: deque[Future[Array]] = deque()
        remaining = names(spec)[::-1]
        for index, (parameter, known) in enumerate(zip_longest(parameters, kept)):
            begun.append(pool.submit(value, index, parameter, known))
            if len(begun) == 2 * cores:  # every other one is a small bias
                yield remaining.pop(), begun.popleft().result()
        for one in begun:
            yield remaining.pop(), one.result()


def names(spec: ModelSpec) -> list[str]:
    return [f"{placed.path}.{each.name}" for placed in spec.placed for each in placed.parameters]


def statistics(spec: ModelSpec) -> tuple[tuple[Array, Array], ...]:
    """Return the first means and variances of every batch norm, in order; () if they are 0 and 1."""
    return weights_file.weights(spec).statistics if spec.weights else ()


def values(parameter: Parameter, random: Random) -> Array:
    """Return the first values of one parameter, float32, contiguous."""
    return STARTS[parameter.start](parameter, random)


def _normal(deviation: Callable[[Parameter], float]) -> Callable[[Parameter, Random], Array]:
    def draw_normal(parameter: Parameter, random: Random) -> Array:
        drawn = random.standard_normal(parameter.shape, dtype=np.float32)
        drawn *= np.float32(deviation(parameter))
        return drawn

    return draw_normal


def _uniform(limit: Callable[[Parameter], float]) -> Callable[[Parameter, Random], Array]:
    def draw_uniform(parameter: Parameter, random: Random) -> Array:
        width = np.float32(limit(parameter))
        drawn = random.random(parameter.shape, dtype=np.float32)
        drawn *= 2 * width
        drawn -= width
        return drawn

    return draw_uniform


def _filled(value: float) -> Callable[[Parameter, Random], Array]:
    return lambda parameter, _random: np.full(parameter.shape, value, np.float32)


def _orthogonal(parameter: Parameter, random: Random) -> Array:
    """Return a matrix with orthonormal columns (Saxe 2013)."""
    rows, columns = parameter.shape
    matrix, upper = np.linalg.qr(random.standard_normal((rows, columns)))
    return np.ascontiguousarray(matrix * np.sign(np.diag(upper)), np.float32)


def _forget(parameter: Parameter, _random: Random) -> Array:
    """Return ones for the forget gates, the second quarter, as in Keras (Jozefowicz 2015)."""
    bias = np.zeros(parameter.shape, np.float32)
    quarter = parameter.size // 4
    bias[quarter : 2 * quarter] = 1
    return bias


STARTS: dict[str, Callable[[Parameter, Random], Array]] = {
    "he-in": _normal(lambda each: math.sqrt(2 / each.fan_in)),
    "he-out": _normal(lambda each: math.sqrt(2 / each.fan_out)),
    "glorot": _uniform(lambda each: math.sqrt(6 / (each.fan_in + each.fan_out))),
    "uniform": _uniform(lambda each: 1 / math.sqrt(each.fan_in)),
    "uniform-0.05": _uniform(lambda _each: 0.05),
    "normal-0.01": _normal(lambda _each: 0.01),
    "normal-0.02": _normal(lambda _each: 0.02),
    "orthogonal": _orthogonal,
    "zeros": _filled(0),
    "ones": _filled(1),
    "forget": _forget,
}


# ---------------------------------------------------------------- rotary position embeddings


def angles(length: int, size: int, base: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cosine and sine of each position's angles: (length, size / 2), float32 (Su 2021, section 3.2.2)."""
    turns = np.outer(np.arange(length), base ** -(np.arange(0, size, 2) / size))
    return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)
