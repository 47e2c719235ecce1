"""TensorFlow's loop in processes of their own: home, threads, emulated devices, a dead agent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scaling.agent.environment import child_environ
from scaling.frameworks.tf.plain import ENVIRON
from scaling.records.task import Task
from tests.support.ranks import one_task
from tests.support.waiting import eventually

pytest.importorskip("tensorflow")


def plain_task() -> Task:
    return one_task("tensorflow:plain")


def python(code: str, task: Any, **environ: str) -> str:
    """Run code in a worker's environment; what it printed. Fails with what it said."""
    asked = {**ENVIRON, **environ}
    done = run(code, child_environ(os.environ, task, asked))
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(code: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)


def test_importing_writes_nothing_into_the_users_home(tmp_path: Path) -> None:
    """Not through Keras either, which looks for matplotlib."""
    code = (
        "from scaling.worker import run_task; run_task.draw_nothing(); "
        "import scaling.frameworks.tf.loop, keras; print(keras.config.backend())"
    )
    assert python(code, plain_task(), HOME=str(tmp_path)).split() == ["tensorflow"]
    assert list(tmp_path.iterdir()) == []


THREADS = """
import msgspec
import tensorflow as tf
from scaling.frameworks.tf.loop import Training
from tests.support.ranks import one_task
trainer = Training(msgspec.structs.replace(one_task("tensorflow:plain"), threads=3))
trainer.step()
threading = tf.config.threading
print(threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads())
"""


def test_the_threads_are_the_tasks() -> None:
    assert python(THREADS, plain_task()).split() == ["3", "1"]


EMULATED = """
from importlib import import_module
from scaling import frameworks
from scaling.frameworks.tf.loop import Training
from tests.support.ranks import one_task
task = one_task(
    "tensorflow:plain", device="emulated", profile="p100", model="resnet50", data="synthetic", batch_size=32,
    shrink=50.0,
)
trainer = import_module(frameworks.load("tensorflow:plain").trainer_module).connect(task)
trainer.step()
trainer.sync()
print(type(trainer) is Training, trainer.samples, trainer.loss(), trainer.device_name)
"""


def test_an_emulated_device_runs_the_same_loop() -> None:
    assert python(EMULATED, plain_task()).split()[:4] == ["True", "32", "None", "emulated"]


ORPHAN = """
import subprocess, sys, time
code = "import time; from scaling.hosts import parents; parents.end_with_parent(); print(flush=1);"
code += "time.sleep(99)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_worker_dies_with_its_agent_whatever_it_waits_for() -> None:
    environ = child_environ(os.environ, plain_task(), {})
    agent = subprocess.Popen([sys.executable, "-c", ORPHAN], env=environ, stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    worker = int(agent.stdout.readline())
    agent.kill()
    agent.communicate()
    assert eventually(lambda: not alive(worker))


def alive(pid: int) -> bool:
    """Whether it runs; a zombie, which nobody has fetched yet, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
