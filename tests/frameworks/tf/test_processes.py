"""TensorFlow's loop and MultiWorkerMirroredStrategy in processes: home, threads, emulated devices, packs, ends."""

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
from scaling.frameworks.tf import strategies
from scaling.records.task import Task
from tests.support import ranks
from tests.support.matrix import cases
from tests.support.ranks import one_task
from tests.support.waiting import eventually

pytest.importorskip("tensorflow")


def test_what_this_tensorflow_was_built_with_can_be_read() -> None:
    import tensorflow as tf

    assert ("built without CUDA" in (strategies.unfit() or "")) == (not tf.test.is_built_with_cuda())


def python(code: str, task: Task, **environ: str) -> str:
    """Run code in a worker's environment, which has the task as JSON; what it printed. Fails with what it said."""
    done = run(code, task, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(code: str, task: Task, **environ: str) -> subprocess.CompletedProcess[str]:
    asked = frameworks.load(task.point.strategy).environ(task, {})
    environ = {**child_environ(os.environ, task, {**asked, **environ}), "TASK": msgspec.json.encode(task).decode()}
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)


def test_importing_writes_nothing_into_the_users_home(tmp_path: Path) -> None:
    """Not through Keras either, which looks for matplotlib."""
    code = (
        "from scaling.worker import run_task; run_task.draw_nothing(); "
        "import scaling.frameworks.tf.loop, keras; print(keras.config.backend())"
    )
    assert python(code, one_task("tensorflow:plain"), HOME=str(tmp_path)).split() == ["tensorflow"]
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
    assert python(THREADS, one_task("tensorflow:plain")).split() == ["3", "1"]


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
    assert python(EMULATED, one_task("tensorflow:plain")).split()[:4] == ["True", "32", "None", "emulated"]


ORPHAN = """
import subprocess, sys, time
code = "import time; from scaling.hosts import proc; proc.end_with_parent(); print(flush=1);"
code += "time.sleep(99)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_worker_dies_with_its_agent_whatever_it_waits_for() -> None:
    environ = child_environ(os.environ, one_task("tensorflow:plain"), {})
    agent = subprocess.Popen([sys.executable, "-c", ORPHAN], env=environ, stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    worker = int(agent.stdout.readline())
    assert alive(worker)
    agent.kill()
    agent.communicate()
    assert eventually(lambda: not alive(worker))


def alive(pid: int) -> bool:
    """Whether it runs; a zombie, which nobody has fetched yet, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---------------------------------------------------------------- MultiWorkerMirroredStrategy

# A rank that ended would break the exchange of the other one: both wait until both are through.
PACKS = """
import os, sys, time
from pathlib import Path
import msgspec
from scaling.frameworks.tf import loop
from scaling.records.task import Task
trainer = loop.connect(msgspec.json.decode(os.environ["TASK"], type=Task))
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
from scaling.frameworks.tf import loop
from scaling.records.task import Task
loop.connect(msgspec.json.decode(os.environ["TASK"], type=Task))
os.kill(os.getpid(), 15)
print("still here", flush=True)
os._exit(0)
"""


def test_a_rank_ends_on_term() -> None:
    (task,) = ranks.tasks("tensorflow:ring", "exchange", 1)
    done = run(STOPPED, task)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")
