"""What a trainer of each framework says that it has learnt: the file that it began with, to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import json
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent.environment import child_environ
from scaling.records.point import Regime
from scaling.records.task import Task
from scaling.workloads import models, weights
from scaling.workloads.layers import BatchNorm
from scaling.workloads.specs import ModelSpec
from tests.support.points import TASK, changed

# As a worker would, without an agent.
LEARNT = """
import sys
from importlib import import_module
import msgspec
from scaling import frameworks
from scaling.records.task import Task
from scaling.workloads import models, weights
task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
module = import_module(frameworks.load(task.point.strategy).trainer_module)
getattr(module, "prepare", lambda: None)()
learnt = module.connect(task).learnt()
weights.save(sys.argv[1], models.at(task.point), learnt.trained, learnt.statistics)
"""


def task(strategy: str, **fields: Any) -> Task:
    regime = Regime(epochs=1, seed=1, rate=0.1, base_rate=0.1, base_batch=4, weights=fields.pop("weights"))
    own: dict[str, Any] = {"strategy": strategy, "kind": "train", "batch_size": 4, "regime": regime}
    return replace(TASK, point=changed(TASK.point, **{**own, **fields}), threads=1)


def begun(spec: ModelSpec, path: Path) -> str:
    random = np.random.default_rng(0)
    widths = [placed.shape[0] for placed in spec.placed if isinstance(placed.layer, BatchNorm)]
    statistics = [(random.random(width), random.random(width)) for width in widths]
    weights.save(str(path), spec, dict(weights.draw(spec, seed=7)), statistics)
    return str(path)


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "mxnet", "jax"])
def test_it_is_in_the_description_s_names_order_and_shapes(framework: str, tmp_path: Path) -> None:
    """With kernels that Keras turns, a flattened image, and batch norm of both kinds."""
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    fields: dict[str, Any] = {"model": "fashion-cnn", "data": "digits", "image_size": 8}
    bare = task(f"{framework}:plain", weights="", **fields)
    file = begun(models.of(bare.point.workload), tmp_path / "begun.npz")
    one = task(f"{framework}:plain", weights=file, **fields)
    same(one, Path(file), tmp_path / "learnt.npz")


def test_an_lstm_is_saved_without_torch_s_second_biases(tmp_path: Path) -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    fields: dict[str, Any] = {"model": "imdb-lstm", "data": "synthetic-tokens", "sequence_length": 8}
    file = begun(models.spec("imdb-lstm"), tmp_path / "begun.npz")
    same(task("torch:plain", weights=file, **fields), Path(file), tmp_path / "learnt.npz")


def same(one: Task, begun_with: Path, learnt: Path) -> None:
    strategy = frameworks.load(one.point.strategy)
    environ = child_environ(os.environ, one, strategy.environ(one, {}))
    command = [sys.executable, "-c", LEARNT, str(learnt)]
    done = subprocess.run(command, input=json.encode(one), capture_output=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr.decode()
    with np.load(begun_with) as wanted, np.load(learnt) as found:
        assert found.files == wanted.files
        for name in wanted.files:
            assert np.array_equal(found[name], wanted[name]), name
