"""What `--pass` does in each framework: parts of a step, with all their work and nothing else."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import pytest
from msgspec import json

from scaling import frameworks
from scaling.agent.environment import child_environ
from scaling.records.point import Pass
from tests.support.ranks import LIMIT_S, one_task

PASSES: tuple[Pass, ...] = ("forward", "backward", "step")
# In a process of its own, since frameworks are told their threads once: two steps of each pass, what they left
# behind, and how large the gradients are that the backward pass made (TensorFlow: that its graph returns).
PROGRAM = """
import os, sys
from importlib import import_module
from msgspec import json
import numpy as np
from scaling import frameworks
from scaling.records.task import Task

def gradients(trainer, name):
    if name == "torch":
        return [each.grad.numpy() for each in trainer._module.parameters() if each.grad is not None]
    if name == "mxnet":
        return [each.grad().asnumpy() for each in trainer.trained.values()]
    if trainer.task.point.workload.trains:
        return []
    if name == "jax":
        trainer._state, _, made = trainer._step(trainer._state, *trainer._moved(0), *trainer._scalars())
        return [np.asarray(each) for each in made.values()]
    graph = trainer._step.__closure__[0].cell_contents
    _, *made = graph(*trainer.compute._moved(0))
    return [each.numpy() for each in made]

told = []
for task in json.decode(sys.argv[1], type=list[Task]):
    trainer = import_module(frameworks.load(task.point.strategy).trainer_module).connect(task)
    before = trainer.digest()
    for _ in range(2):
        trainer.step()
    trainer.sync()
    made = gradients(trainer, task.point.strategy.partition(":")[0])
    sizes = [float(np.abs(each).sum()) for each in made]
    told.append((before == trainer.digest(), trainer.samples, trainer.loss(), sizes))
print("TOLD" + json.encode(told).decode())
sys.stdout.flush()
os._exit(0)
"""


class Left(NamedTuple):
    """What two steps left behind: `sizes` are the sums of the absolute gradients, parameter by parameter."""

    is_untrained: bool
    samples: int
    loss: float | None
    sizes: list[float]


def left(name: str) -> list[Left]:
    tasks = [one_task(name, "exchange", pass_=one, batch_size=8) for one in PASSES]
    environ = child_environ({}, tasks[0], frameworks.load(name).environ(tasks[0], {}))
    command = [sys.executable, "-c", PROGRAM, json.encode(tasks).decode()]
    done = subprocess.run(command, check=False, capture_output=True, env=environ, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr.decode()
    return json.decode(done.stdout.partition(b"TOLD")[2], type=list[Left])


@pytest.mark.parametrize("name", frameworks.BASELINES)
def test_passes_train_nothing_and_leave_no_work_out(name: str) -> None:
    if reason := frameworks.load(name).missing(name, "cpu"):
        pytest.skip(reason)
    forward, backward, step = left(name)
    assert (forward.is_untrained, backward.is_untrained, step.is_untrained) == (True, True, False)
    assert forward.samples == backward.samples == step.samples == 16
    assert forward.loss is backward.loss is None
    assert step.loss is not None
    # Gradients are made by the backward pass, each of them, and by no other.
    assert sum(forward.sizes) == 0
    assert len(backward.sizes) >= 10
    assert all(size > 0 for size in backward.sizes)
