"""ParameterServerStrategy in real processes: what trainers are fed with, staleness, bytes, and faults."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent.child import Child
from scaling.agent.environment import child_environ
from scaling.frameworks import options
from scaling.plan import tasks
from scaling.records.point import Kind
from scaling.records.task import Task
from scaling.workloads import feeds, models
from tests.support import ranks
from tests.support.waiting import eventually

pytest.importorskip("tensorflow")

STRATEGY = frameworks.load("tensorflow:ps")


def tasks_of(size: int = 2, *, servers: int = 1, kind: Kind = "exchange", **fields: Any) -> list[Task]:
    return ranks.tasks("tensorflow:ps", kind, size, servers=servers, **fields)


# ---------------------------------------------------------------- what trainers are fed with


@pytest.mark.parametrize(("fields", "count"), [({"batch_size": 64}, 121), ({"data": "synthetic"}, 1)])
def test_a_trainer_keeps_its_ranks_first_batches(fields: dict[str, Any], count: int) -> None:
    from scaling.frameworks.tf import ps_server

    task = tasks_of(**fields)[1]
    path = ps_server._keep_images(task)
    try:
        kept = Path(path).read_bytes()
    finally:
        os.close(int(path.rpartition("/")[2]))
    feed, batch = feeds.feed(task, models.spec("digits-cnn")), task.point.workload.batch_size
    record = batch * (4 * 32 * 32 + 8)
    assert len(kept) == count * record <= ps_server.FED_BYTES
    for step in {0, count - 1}:
        images, labels = feed.batch(step)
        one = kept[step * record : (step + 1) * record]
        found = np.frombuffer(one[: -8 * batch], np.float32).reshape(batch, 32, 32, 1)
        np.testing.assert_array_equal(found, images.transpose(0, 2, 3, 1))
        np.testing.assert_array_equal(np.frombuffer(one[-8 * batch :], np.int64), labels)
    assert feed.fixed or (count + 1) * record > ps_server.FED_BYTES


# ---------------------------------------------------------------- in processes


@pytest.mark.parametrize("given", [{}, {"accumulate": "2", "partition_min_bytes": "65536"}])
def test_one_trainer_does_what_the_plain_loop_does(given: dict[str, str]) -> None:
    """The same images in the same order, on whole and on divided variables."""
    (found,) = ranks.run(tasks_of(1, servers=2, options=given), 3)
    kept = {key: value for key, value in given.items() if key in options.LOOP}
    (wanted,) = ranks.run(ranks.tasks("tensorflow:plain", "solo", 1, options=kept), 3)
    assert found.losses == pytest.approx(wanted.losses, rel=1e-4)
    assert found.staleness == 0
    assert found.before.keys() == wanted.before.keys()
    for key, start in wanted.before.items():
        np.testing.assert_array_equal(found.before[key], start)
        update = wanted.after[key] - start
        assert np.linalg.norm(found.after[key] - wanted.after[key]) < 1e-3 * np.linalg.norm(update), key


COORDINATOR = """
import os, sys
import msgspec
from scaling.frameworks.tf import ps_trainer
from scaling.frameworks.tf.loop import RealCompute, sources
from scaling.records.task import Task
task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
{code}
sys.stdout.flush()
os._exit(0)
"""


def coordinate(of: Sequence[Task], folder: Path, code: str) -> str:
    """Run code that has the coordinator's `task`, beside its helpers; what it printed."""
    of = [replace(task, log=f"{folder}/{task.rank}.log") for task in of]
    with ranks.helping(of) as announced:
        (task,) = tasks.worker_tasks(of, STRATEGY.traits("tensorflow:ps"))
        task = replace(task, announced=announced)
        done = subprocess.run(
            [sys.executable, "-c", COORDINATOR.format(code=code)],
            env=child_environ(os.environ, task, STRATEGY.environ(task, announced)),
            input=msgspec.json.encode(task),
            capture_output=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


SPREAD = """
trainer = ps_trainer.connect(task)
places = [each.device for each in sources(trainer.trained(trainer.model))]
print(len(trainer.model.trainable_variables), len(places), *sorted(set(places)))
"""


def test_big_variables_are_cut_over_the_servers(tmp_path: Path) -> None:
    of = tasks_of(1, servers=2, options={"partition_min_bytes": "65536"})
    whole, parts, *places = coordinate(of, tmp_path, SPREAD).split()
    assert places == [f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in (0, 1)]
    assert int(parts) > int(whole)


IN_BETWEEN = """
compute = RealCompute._compute

def with_others(self, images, labels):
    loss, gradients = compute(self, images, labels)
    self._rank._pushes.assign_add(3)
    return loss, gradients

RealCompute._compute = with_others
trainer = ps_trainer.connect(task)
for _ in range(4):
    trainer.step()
trainer.sync()
print(trainer.staleness(), trainer.staleness(), trainer.samples)
"""


def test_staleness_counts_the_pushes_between_pull_and_push(tmp_path: Path) -> None:
    assert coordinate(tasks_of(1), tmp_path, IN_BETWEEN).split() == ["3.0", "0.0", "16"]


SENT = """
from pathlib import Path

def sent():
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))

trainer = ps_trainer.connect(task)
trainer.step()
trainer.sync()
before = sent()
for _ in range(5):
    trainer.step()
trainer.sync()
print((sent() - before) / 5 / trainer.gradient_bytes)
"""


@pytest.mark.parametrize("kind", ["exchange", "comm"])
def test_every_step_pulls_and_pushes_all_parameters(kind: Kind, tmp_path: Path) -> None:
    """Two trainers, so four times the gradients' bytes; what others send at the same time is added."""
    assert float(coordinate(tasks_of(kind=kind), tmp_path, SENT)) >= 4


@pytest.mark.parametrize("role", ["server-0", "trainer-0"])
def test_a_helper_dies_with_its_agent(role: str, tmp_path: Path) -> None:
    """It watches its lifeline while it serves; TensorFlow's own way to wait would not let it."""
    of = [replace(task, log=f"{tmp_path}/log") for task in tasks_of(1)]
    helper = next(each for each in STRATEGY.helpers(of[0]) if each.name == role)
    task = tasks.helper_task(of, helper)
    child = Child(task, child_environ(os.environ, task, STRATEGY.environ(task, {})))
    try:
        assert ranks._announced(child).keys() == {role}
        os.dup2(os.open(os.devnull, os.O_WRONLY), child.stdin_fd)
        assert eventually(child.ended)
    finally:
        child.reap()
