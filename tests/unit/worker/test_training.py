"""A worker of a training to an accuracy: rates step by step, signs of life, as many predictions on all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling.frameworks.fake.trainer import FakeTrainer
from scaling.records.events import Evaluated, Event, Progress, Window
from scaling.records.point import Regime
from scaling.records.task import Evaluate, Task, Train
from scaling.worker import training
from scaling.worker.loop import Worker
from tests.support.inline_child import Clock
from tests.support.points import TASK, changed

REGIME = Regime(epochs=2, seed=0, rate=0.4, base_rate=0.1, base_batch=32, warmup_epochs=1)


class Counting(FakeTrainer):
    predicted = 0

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        self.predicted += 1
        return super().predict(inputs)


def task(rank: int = 0, size: int = 1, batch_size: int = 64) -> Task:
    fields: dict[str, Any] = {
        "kind": "train",
        "world_size": size,
        "batch_size": batch_size,
        "regime": REGIME,
        "image_size": 8,
    }
    return replace(TASK, rank=rank, point=changed(TASK.point, options={"step_s": "2.0"}, **fields))


def worker(of: Task) -> tuple[Worker, Counting, list[Event]]:
    clock, said = Clock(), list[Event]()
    trainer = Counting(of, clock=clock, sleep=clock.sleep)
    learner = training.learner_of(trainer, of, said.append, clock)
    loop = Worker(
        trainer, lambda event, hold=False: said.append(event), lambda: True, clock, clock, learner=learner
    )
    return loop, trainer, said


def test_an_epoch_is_one_window_with_a_rate_for_each_step_and_signs_of_life() -> None:
    loop, trainer, said = worker(task())
    assert loop.obey(Train(number=0, steps=4))
    assert loop.obey(Train(number=1, steps=4))
    assert trainer.rates == pytest.approx([0.1, 0.175, 0.25, 0.325, 0.4, 0.4, 0.4, 0.4])
    windows = [event for event in said if isinstance(event, Window)]
    assert [(each.index, each.steps, each.samples, each.measured) for each in windows] == [
        (0, 4, 256, True), (1, 4, 256, True),
    ]  # fmt: skip
    assert windows[0].seconds == 8.0
    assert windows[1].uncounted_samples == 0
    assert any(isinstance(event, Progress) for event in said)


def test_ranks_with_shorter_shards_predict_as_often_and_count_only_their_own() -> None:
    """360 held-out digits on 7 ranks in batches of 17: 52 or 51 each, that is 4 batches or 3 whole ones."""
    seen, predicted = [], []
    for rank in range(7):
        loop, trainer, said = worker(task(rank, 7, batch_size=17))
        loop.obey(Evaluate(number=0))
        (found,) = (event for event in said if isinstance(event, Evaluated))
        seen.append(found.seen)
        predicted.append(trainer.predicted)
    assert seen == [52, 52, 52, 51, 51, 51, 51]
    assert predicted == [4] * 7
