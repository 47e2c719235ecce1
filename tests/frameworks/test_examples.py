"""The examples of user's files: a strategy, and a model of PyTorch and of JAX."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from scaling import frameworks
from scaling.errors import UsageError
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


BATCH = "def batch(size, generator):\n    return torch.zeros((size, 3)), torch.zeros(size, dtype=torch.long)\n"
IN_TORCH = f"import torch\n{BATCH}"
IN_JAX = f"import jax.numpy as jnp\n{BATCH.replace('torch.zeros', 'jnp.zeros').replace('torch.long', 'jnp.int32')}"
MISTAKES = [
    ("torch:plain", f"{IN_TORCH}def Net():\n    return 3\n", ":4: Net() returned int; return a torch.nn.Module"),
    ("torch:plain", f"{IN_TORCH}def Net():\n    raise ValueError('planted')\n", ":5: ValueError: planted"),
    (
        "torch:plain",
        f"{IN_TORCH}class Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(3, 2)\n"
        "    def forward(self, x):\n        raise ValueError('planted')\n",
        ":8: ValueError: planted",
    ),
    (
        "torch:plain",
        f"{IN_TORCH}def Net():\n    return torch.nn.Linear(3, 2)\n"
        "def loss(outputs, targets):\n    return outputs\n",
        ":6: loss() returned Tensor; return a tensor of one number",
    ),
    ("jax:plain", f"{IN_JAX}def Net(key):\n    return 3\n", ":4: Net() returned int; return parameters and"),
    (
        "jax:plain",
        f"{IN_JAX}def Net(key):\n    return [jnp.ones((3, 2))], lambda given, x: x @ given[1]\n",
        ":5: IndexError: ",
    ),
    (
        "jax:plain",
        f"{IN_JAX}def Net(key):\n    return [jnp.ones((3, 2))], lambda given, x: x @ given[0]\n"
        "def loss(outputs, targets):\n    return outputs\n",
        ":6: loss() returned ",
    ),
]


@pytest.mark.parametrize(("name", "text", "words"), MISTAKES)
def test_a_mistake_in_a_worker_names_the_line_of_the_file(
    name: str, text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = f"mine_{tmp_path.name}.py"
    (tmp_path / file).write_text(text)
    module: Any = import_module(frameworks.load(name).trainer_module)
    with pytest.raises(UsageError) as error:
        module.connect(ranks.one_task(name, model=f"{file}:Net", data="its own", unit="samples")).step()
    assert str(error.value).startswith(f"--model {file}:Net: {file}{words}")
