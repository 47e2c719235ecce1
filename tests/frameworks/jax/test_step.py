"""JAX's compiled steps: what they send, what they compute, and what they leave alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from math import prod
from typing import Any

import msgspec
import pytest

from scaling import frameworks
from scaling.agent.environment import child_environ
from scaling.workloads import models
from tests.support.ranks import LIMIT_S, one_task, tasks

pytest.importorskip("jax")

# A strategy's compiled step, for two ranks of one process, whose collectives stay in the program.
PROGRAM = """
import json, sys
from importlib import import_module
import msgspec
import jax, numpy as np
from jax.sharding import Mesh
from scaling import frameworks
from scaling.frameworks.jax import mesh_trainer
from scaling.records.task import Task
task = msgspec.json.decode(sys.argv[1], type=Task)
jax.config.update("jax_num_cpu_devices", 2)
mesh_trainer.joined = lambda task: Mesh(np.array(jax.devices()), ("data",))
mesh_trainer.Meshed.spread = lambda self, array, spec: jax.device_put(
    np.concatenate([array] * 2) if spec else array, jax.sharding.NamedSharding(self.mesh, spec))
trainer = import_module(frameworks.load(task.point.strategy).trainer_module).connect(task)
print("TOLD" + json.dumps(trainer._step.as_text()))
"""
SIZES = {"f32": 4, "bf16": 2}


def compiled(name: str, **fields: Any) -> str:
    task = tasks(name, "exchange", 2, **fields)[0]
    environ = child_environ({}, task, frameworks.load(name).environ(task, {}))
    command = [sys.executable, "-c", PROGRAM, msgspec.json.encode(task).decode()]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environ, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout.partition("TOLD")[2]))


def moved_bytes(program: str, operation: str) -> int:
    """The bytes of all results of a collective."""
    found = re.findall(rf"= (.*?) {operation}(?:-start)?\(", program)
    shapes = re.findall(r"(f32|bf16)\[([0-9,]*)\]", " ".join(found))
    sizes = ([int(each) for each in shape.split(",") if each] for _, shape in shapes)
    return sum(SIZES[kind] * prod(size) for (kind, _), size in zip(shapes, sizes, strict=True))


@pytest.mark.parametrize("accumulate", ["1", "2"])
def test_all_gradients_and_nothing_else_are_reduced_once(accumulate: str) -> None:
    program = compiled("jax:psum", options={"accumulate": accumulate})
    assert moved_bytes(program, "all-reduce") == 4 * models.spec("digits-cnn").parameters
    assert moved_bytes(program, "all-gather") == moved_bytes(program, "reduce-scatter") == 0


def test_half_precision_gradients_are_reduced_in_single_precision() -> None:
    program = compiled("jax:psum", precision="bf16")
    assert "bf16" in program
    assert moved_bytes(program, "all-reduce") == 4 * models.spec("digits-cnn").parameters


def test_sharded_parameters_are_gathered_and_their_gradients_scattered_once() -> None:
    program = compiled("jax:fsdp")
    whole = 4 * models.spec("digits-cnn").parameters
    assert moved_bytes(program, "all-gather") == pytest.approx(whole, rel=1e-4)
    assert moved_bytes(program, "reduce-scatter") == pytest.approx(whole / 2, rel=1e-4)
    assert moved_bytes(program, "all-reduce") == 0


def test_a_point_of_one_rank_says_that_compiling_is_always_on() -> None:
    from scaling.frameworks.jax import loop

    trainer = loop.connect(one_task("jax:plain"))
    trainer.step()
    assert trainer.notes == ("XLA compiles every step (--compile changes nothing), in channels_last",)
    assert trainer.samples == 4 and trainer.loss() is not None
