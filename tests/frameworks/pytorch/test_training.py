"""PyTorch trained to an accuracy: what it predicts, its rate, its batch norm, weights of torchvision's."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.frameworks.pytorch import network
from scaling.frameworks.pytorch.loop import Training
from scaling.records.events import Evaluated, Event
from scaling.records.point import Regime
from scaling.records.task import Evaluate, Task, Train
from scaling.worker.loop import Worker
from scaling.worker.training import Learner
from scaling.workloads import models
from tests.support.points import TASK, changed

ROOT = Path(__file__).parents[3]
REGIME = Regime(epochs=3, seed=0, rate=0.006, base_rate=0.0015, base_batch=16)


def task(regime: Regime = REGIME, **fields: Any) -> Task:
    own: dict[str, Any] = {"strategy": "torch:plain", "kind": "train", "image_size": 16, "batch_size": 64}
    own["regime"] = regime
    return replace(TASK, point=changed(TASK.point, **{**own, **fields}), seed=regime.seed, threads=1)


def top1(of: Task, epochs: int) -> list[float]:
    trainer, said = Training(of), list[Event]()
    learner = Learner(trainer, of, said.append)
    worker = Worker(trainer, lambda event, hold=False: said.append(event), lambda: True, learner=learner)
    for number in range(epochs):
        worker.obey(Train(number=number, steps=23))
        worker.obey(Evaluate(number=number))
    return [event.correct / event.seen for event in said if isinstance(event, Evaluated)]


def test_evaluation_changes_nothing_that_is_trained() -> None:
    trainer = Training(task(model="vit-tiny", batch_size=8))
    trainer.step()
    before, samples = trainer.digest(), trainer.samples
    shown = np.random.default_rng(0).standard_normal((5, 1, 16, 16)).astype(np.float32)
    found = trainer.predict(shown)
    assert found.dtype == np.int64
    assert found.shape == (5,)
    assert np.array_equal(found, trainer.predict(shown))
    assert (trainer.digest(), trainer.samples) == (before, samples)
    assert trainer._module.training


def test_the_rate_of_the_regime_is_the_optimiser_s_and_can_be_changed() -> None:
    trainer = Training(task())
    assert [group["lr"] for group in trainer._optimizer.param_groups] == [0.006]  # type: ignore[attr-defined]
    before = trainer.weights()
    trainer.set_rate(0.0)
    trainer.step()
    for name, array in trainer.weights().items():
        assert np.array_equal(array, before[name])


def test_the_same_seed_learns_the_same() -> None:
    assert top1(task(), 1) == top1(task(), 1)


# With running statistics that differ, and with the classifiers that torchvision trains beside the network's own.
TORCHVISION = """
import torch
from msgspec.structs import replace
from scaling.errors import UsageError
from scaling.frameworks.pytorch import network
from scaling.workloads import models, weights
from tests.support import networks
theirs = networks.torchvision().models.googlenet(aux_logits=True, init_weights=False)
for buffer in theirs.buffers():
    if buffer.is_floating_point():
        buffer.uniform_(0.5, 1.5)
torch.save(theirs.state_dict(), 'w.pth')
exec(f'import numpy; {weights.CONVERT % "w.pth"}')
spec = replace(models.spec("googlenet-bn"), weights="w.npz")
shown = torch.rand(2, 3, 64, 64)
with torch.no_grad():
    found, wanted = network.build(spec, seed=1).eval()(shown), theirs.eval()(shown)
print(float((found - wanted).abs().max() / wanted.abs().max()), len(weights.statistics(spec)))
"""


def test_a_state_dict_of_torchvision_s_is_read_whole(tmp_path: Path) -> None:
    """In a process of its own: torchvision warns as it likes."""
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    command, environ = [sys.executable, "-c", TORCHVISION], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    difference, norms = map(float, done.stdout.split())
    assert difference < 1e-6
    assert norms == 57


def test_the_line_for_files_of_torch_makes_one_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ours = network.build(models.spec("digits-cnn"), seed=2)
    torch.save(ours.state_dict(), "a.pth")
    with pytest.raises(UsageError) as error:
        network.build(replace(models.spec("digits-cnn"), weights="a.pth"), seed=5)
    exec(str(error.value).partition("in Python: ")[2], {"numpy": np, "torch": torch})
    again = network.build(replace(models.spec("digits-cnn"), weights="w.npz"), seed=5)
    for one, other in zip(ours.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
