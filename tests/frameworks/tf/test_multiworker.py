"""MultiWorkerMirroredStrategy in real processes: what this TensorFlow was built with, packs, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from scaling import frameworks
from scaling.agent.environment import child_environ
from scaling.frameworks.tf import plain
from scaling.records.task import Task
from tests.support import ranks
from tests.support.matrix import cases

pytest.importorskip("tensorflow")

STRATEGY = frameworks.load("tensorflow:ring")


def test_what_this_tensorflow_was_built_with_can_be_read() -> None:
    assert ("built without CUDA" in (plain.unfit() or "")) == (not built_with_cuda())


def built_with_cuda() -> bool:
    import tensorflow as tf

    return bool(tf.test.is_built_with_cuda())


def python(code: str, task: Task) -> str:
    """Run code in a worker's environment, which has the task as JSON; what it printed. Fails with what it said."""
    done = run(code, task)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(code: str, task: Task) -> subprocess.CompletedProcess[str]:
    environ = child_environ(os.environ, task, STRATEGY.environ(task, {}))
    environ["TASK"] = msgspec.json.encode(task).decode()
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)


# A rank that ended would break the exchange of the other one: both wait until both are through.
PACKS = """
import os, sys, time
from pathlib import Path
import msgspec
from scaling.frameworks.tf import multiworker_trainer
from scaling.records.task import Task
trainer = multiworker_trainer.connect(msgspec.json.decode(os.environ["TASK"], type=Task))
trainer.step()
operations = trainer._step.graph.get_operations()
print(*(each.inputs[0].shape.num_elements() for each in operations if each.type == "CollectiveReduceV2"))
sys.stdout.flush()
trainer.sync()
through = Path(os.environ["THROUGH"])
(through / str(os.getpid())).touch()
for _ in range(6000):
    if len(list(through.iterdir())) == 2:
        break
    time.sleep(0.01)
os._exit(0)
"""


@pytest.mark.parametrize(("bytes_per_pack", "packs"), cases([(0, 1), (1_000_000, 3)], [(1_000_000, 3)]))
def test_the_comm_control_joins_gradients_as_training_does(
    bytes_per_pack: int, packs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[str]] = []
    for kind in ("exchange", "comm"):
        (tmp_path / kind).mkdir()
        monkeypatch.setenv("THROUGH", str(tmp_path / kind))
        tasks = ranks.tasks("tensorflow:ring", kind, 2, options={"bytes_per_pack": str(bytes_per_pack)})
        with ThreadPoolExecutor() as pool:
            found += pool.map(lambda task: python(PACKS, task).split(), tasks)
    training, _, alone, _ = found
    assert found == [training] * 4
    assert len(alone) == packs
    assert sum(map(int, alone)) == 813_546


STOPPED = """
import os, sys
import msgspec
from scaling.frameworks.tf import multiworker_trainer
from scaling.records.task import Task
multiworker_trainer.connect(msgspec.json.decode(os.environ["TASK"], type=Task))
os.kill(os.getpid(), 15)
print("still here", flush=True)
os._exit(0)
"""


def test_a_rank_ends_on_term() -> None:
    (task,) = ranks.tasks("tensorflow:ring", "exchange", 1)
    done = run(STOPPED, task)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")
