"""PyTorch trained to an accuracy: what it predicts, its rate, its batch norm, weights of torchvision's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from scaling.frameworks.evaluating import Evaluating
from scaling.frameworks.pytorch import network
from scaling.frameworks.pytorch.loop import Training
from scaling.records.events import Event
from scaling.records.point import Regime
from scaling.records.task import Evaluate, Task, Train
from scaling.worker.loop import Worker
from scaling.worker.training import learner_of
from scaling.workloads import models, weights
from tests.support.points import TASK, changed

REGIME = Regime(epochs=3, seed=0, rate=0.006, base_rate=0.0015, base_batch=16)


def task(regime: Regime = REGIME, **fields: object) -> Task:
    """Of digits at 16 px."""
    own = {"strategy": "torch:plain", "kind": "train", "image_size": 16, "batch_size": 64, "regime": regime}
    return replace(TASK, point=changed(TASK.point, **{**own, **fields}), seed=regime.seed, threads=1)


def top1(of: Task, epochs: int) -> list[float]:
    """By epoch, of one rank."""
    trainer, said = Training(of), list[Event]()
    worker = Worker(
        trainer, lambda event, hold=False: said.append(event), lambda: True,
        learner=learner_of(trainer, of, said.append),
    )  # fmt: skip
    for number in range(epochs):
        worker.obey(Train(number=number, steps=23))
        worker.obey(Evaluate(number=number))
    return [event.correct / event.seen for event in said if hasattr(event, "correct")]


def test_evaluation_changes_nothing_that_is_trained() -> None:
    trainer = Training(task(model="vit-tiny", batch_size=8))
    assert isinstance(trainer, Evaluating)
    trainer.step()
    before, samples = trainer.digest(), trainer.samples
    shown = np.random.default_rng(0).standard_normal((5, 1, 16, 16)).astype(np.float32)
    found = trainer.predict(shown)
    assert (found.dtype, found.shape) == (np.int64, (5,))
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


def test_a_state_dict_of_torchvision_s_is_read_whole(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    theirs = torchvision.models.googlenet(aux_logits=True, init_weights=False)
    for buffer in theirs.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    path = tmp_path / "googlenet.pth"
    torch.save(theirs.state_dict(), path)
    spec = replace(models.spec("googlenet-bn"), weights=str(path))
    ours = network.build(spec, seed=1).eval()
    shown = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours(shown), theirs.eval()(shown))
    assert len(weights.statistics(spec)) == 57


def test_a_checkpoint_with_more_than_tensors_is_read_if_it_is_harmless(tmp_path: Path) -> None:
    ours = network.build(models.spec("digits-cnn"), seed=2)
    path = tmp_path / "checkpoint.pth"
    torch.save({"epoch": 3, "state_dict": ours.state_dict()}, path)
    again = network.build(replace(models.spec("digits-cnn"), weights=str(path)), seed=5)
    for one, other in zip(ours.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
