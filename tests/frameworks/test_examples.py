"""The examples of user's files: a strategy, and a model of PyTorch and of JAX."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from scaling import frameworks
from tests.support import ranks

FOLDER = Path(os.path.relpath(Path(frameworks.__file__).parent))
TORCH, JAX = FOLDER / "pytorch/example_model.py:Encoder", FOLDER / "jax/example_model.py:dense"


def test_ranks_agree_and_learn_what_the_plain_loop_learns() -> None:
    first, second = ranks.run(ranks.tasks(f"{FOLDER / 'pytorch/example_one_by_one.py'}:gloo", "exchange", 2))
    (alone,) = ranks.run(ranks.tasks("torch:plain", "solo", 1), joined=2)
    assert first.digest == second.digest
    for name, value in alone.after.items():
        assert first.after[name] == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "model", "parameters"),
    [("torch:gloo", TORCH, 162_472), ("torch:fsdp2", TORCH, 162_472), ("jax:psum", JAX, 101_770)],
)
def test_a_step_of_two_ranks_is_the_mean_of_their_steps_alone(name: str, model: Path, parameters: int) -> None:
    if name == "torch:fsdp2" and (why := frameworks.load(name).missing(name)):
        pytest.skip(why)
    fields: dict[str, Any] = {"model": str(model), "data": "its own", "unit": "samples"}
    both = ranks.run(ranks.tasks(name, "exchange", 2, **fields))
    alone = ranks.run(ranks.tasks(frameworks.load(name).baseline, "together", 2, **fields))
    assert both[0].digest == both[1].digest and alone[0].digest != alone[1].digest
    assert (both[0].parameters, both[0].gradient_bytes, both[0].samples) == (parameters, 4 * parameters, 4)
    for key, begun in both[0].before.items():
        steps = [one.after[key] - begun for one in alone]
        assert both[0].after[key] - begun == pytest.approx((steps[0] + steps[1]) / 2, abs=1e-6)
    for one, plain in zip(both, alone, strict=True):
        assert one.losses == pytest.approx(plain.losses, abs=1e-5)


@pytest.mark.parametrize(("name", "model"), [("torch:gloo", TORCH), ("jax:fsdp", JAX)])
def test_the_exchange_alone_trains_nothing(name: str, model: Path) -> None:
    first, second = ranks.run(ranks.tasks(name, "comm", 2, model=str(model), data="its own", unit="samples"))
    assert first.parameters == second.parameters > 0
    assert (first.samples, first.losses) == (0, [None])
