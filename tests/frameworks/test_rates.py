"""A rate that changes on the way does the same in every framework, whatever its momentum is kept in units of."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scaling import frameworks
from scaling.agent.environment import child_environ
from tests.support import ranks

# The sum of all changes of a first step and of one at a millionth of its rate.
STEPS = """
import sys
from importlib import import_module
import numpy as np
from scaling import frameworks
from tests.support import ranks

task = ranks.one_task(sys.argv[1], "solo", model="digits-cnn", data="digits", image_size=16, batch_size=16)
trainer = import_module(frameworks.load(sys.argv[1]).trainer_module).connect(task)
before = trainer.weights()
for rate in (1e-3, 1e-9):
    trainer.set_rate(rate)
    trainer.step()
    trainer.sync()
    after = trainer.weights()
    moved = [np.abs(after[name].astype(float) - before[name]).sum() for name in after]
    print("moved", float(sum(moved)), flush=True)
    before = after
"""


@pytest.mark.parametrize("strategy", ["torch:plain", "tensorflow:plain", "mxnet:plain", "jax:plain"])
def test_momentum_is_rescaled_to_the_new_rate(strategy: str) -> None:
    """As torch and Goyal 2017 have it; where velocities have rates in them, nine tenths of a step follow it."""
    module = frameworks.load(strategy)
    if reason := module.missing(strategy):
        pytest.skip(reason)
    env = child_environ(os.environ, ranks.one_task(strategy), {})
    command = [sys.executable, "-c", STEPS, strategy]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("moved "))
    assert 0 < second < 1e-3 * first
