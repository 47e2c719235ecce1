"""First weights: how they are distributed, and that a seed gives the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scaling.workloads import models, walk, weights
from scaling.workloads.layers import Parameter, Start


def drawn(start: Start, shape: tuple[int, ...] = (400, 500)) -> weights.Array:
    return weights.values(Parameter("weight", shape, start, 200, 300), np.random.default_rng(1))


@pytest.mark.parametrize(
    ("start", "deviation"),
    [
        ("he-in", math.sqrt(2 / 200)),
        ("he-out", math.sqrt(2 / 300)),
        ("glorot", math.sqrt(2 / 500)),
        ("uniform", 1 / math.sqrt(3 * 200)),
        ("uniform-0.05", 0.05 / math.sqrt(3)),
        ("normal-0.01", 0.01),
        ("normal-0.02", 0.02),
    ],
)
def test_deviations(start: Start, deviation: float) -> None:
    """Of 200,000 values: the standard error is 0.2 %."""
    values = drawn(start)
    assert values.dtype == np.float32
    assert values.std() == pytest.approx(deviation, rel=0.01)
    assert abs(values.mean()) < 0.02 * deviation
    if start in ("glorot", "uniform", "uniform-0.05"):
        assert np.abs(values).max() <= math.sqrt(3) * deviation * 1.001


def test_states_start_orthogonal_and_gates_remember() -> None:
    matrix = drawn("orthogonal", (64, 16))
    assert np.allclose(matrix.T @ matrix, np.eye(16), atol=1e-6)
    assert drawn("forget", (8,)).tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    assert (drawn("ones", (2,)).tolist(), drawn("zeros", (2,)).tolist()) == ([1, 1], [0, 0])


def test_a_seed_gives_the_same_weights_in_the_descriptions_order() -> None:
    spec = models.spec("imdb-lstm")
    first, again, other = (dict(weights.draw(spec, seed)) for seed in (1, 1, 2))
    wanted = walk.parameters(spec.layers, spec.input.shape)
    assert [(name, each.shape) for name, each in first.items()] == [
        (name, each.shape) for name, each in wanted.items()
    ]
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["0.weight"], other["0.weight"])
