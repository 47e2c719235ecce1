"""The TensorFlow loop, and MultiWorkerMirroredStrategy: environment, what is missing, options, packs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent.child import child_environ
from scaling.errors import UsageError
from scaling.frameworks.base import Traits, read_options
from scaling.frameworks.tf import loop, multiworker
from scaling.hosts import gpus
from scaling.records.host import Gpu
from scaling.records.point import Kind
from scaling.records.task import Task
from scaling.workloads import models
from tests.support import ranks
from tests.support.points import changed, placed
from tests.support.ranks import one_task

strategy = frameworks.load("tensorflow:ring")

GPU = Gpu(index=0, name="T", uuid="u", memory_bytes=1, power_limit_w=1.0, max_sm_clock_mhz=1.0)


def plain_task(**fields: Any) -> Any:
    return one_task("tensorflow:plain", **fields)


# ---------------------------------------------------------------- before the worker


@pytest.mark.parametrize("kind", ["exchange", "comm"])
def test_the_addresses_choose_the_network(kind: Kind) -> None:
    _, task = ranks.tasks("tensorflow:ring", kind, 2, ports=(5001, 5002))
    task = placed(task, ("10.0.0.1", "10.0.0.2"), "ib0")
    asked = multiworker.environ(task, {})
    assert json.loads(asked.pop("TF_CONFIG")) == {
        "cluster": {"worker": ["10.0.0.1:5001", "10.0.0.2:5002"]},
        "task": {"type": "worker", "index": 1},
    }
    assert asked == loop.ENVIRON


def test_nccl_is_told_the_interface() -> None:
    (task,) = ranks.tasks("tensorflow:nccl", "exchange", 1, ports=(5001,), device="cuda")
    asked = multiworker.environ(placed(task, ["10.0.0.1"], "ib0"), {})
    assert asked["NCCL_SOCKET_IFNAME"] == "=ib0"


@pytest.mark.parametrize("kind", ["solo", "together"])
def test_the_plain_loop_asks_for_keras_settings_alone(kind: Kind) -> None:
    assert multiworker.environ(plain_task(kind=kind), {}) == loop.ENVIRON


def test_devices_and_traits() -> None:
    assert multiworker.devices("tensorflow:nccl") == ("cuda",)
    for name in ("tensorflow:ring", "tensorflow:plain"):
        assert multiworker.devices(name) == ("cpu", "cuda", "emulated")
    assert (
        multiworker.traits("tensorflow:ring") == multiworker.traits("tensorflow:nccl") == Traits(rank_ports=True)
    )
    assert multiworker.traits("tensorflow:plain") == Traits()


def test_there_are_no_helpers() -> None:
    task = one_task("tensorflow:ring", "exchange")
    assert multiworker.helpers(task) == []
    with pytest.raises(NotImplementedError, match="tensorflow:ring has no helper 'server'"):
        multiworker.serve(replace(task, role="server"), print)


@pytest.mark.parametrize("name", multiworker.NAMES)
def test_missing_tensorflow(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "find_spec", lambda _: None)
    assert multiworker.missing(name) == "tensorflow is not installed: ./launch/install tensorflow"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TensorFlow whose installed files are the test's; returns the file that says what it was built with."""
    spec = ModuleSpec("tensorflow", None, origin=str(tmp_path / "__init__.py"))
    for module in (loop, multiworker):
        monkeypatch.setattr(module, "find_spec", lambda _: spec)
    build = tmp_path / "python/platform/build_info.py"
    build.parent.mkdir(parents=True)
    build.write_text("build_info = collections.OrderedDict([('is_cuda_build', False), ('is_rocm_build', False)])")
    return build


@pytest.mark.parametrize(("has", "said"), [("tensorflow-cpu", "tensorflow-cpu 9.9"), ("", "tensorflow")])
def test_nccl_needs_a_cuda_build(has: str, said: str, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name != has:
            raise metadata.PackageNotFoundError(name)
        return "9.9"

    monkeypatch.setattr(metadata, "version", version)
    wanted = f"{said} is built without CUDA: ./launch/install tensorflow-cuda"
    assert multiworker.missing("tensorflow:nccl") == wanted
    assert multiworker.missing("tensorflow:ring") is multiworker.missing("tensorflow:plain") is None


def test_what_this_tensorflow_was_built_with_can_be_read() -> None:
    pytest.importorskip("tensorflow")
    reason = multiworker.missing("tensorflow:nccl") or ""
    assert ("built without CUDA" in reason) == (not built_with_cuda())


def built_with_cuda() -> bool:
    import tensorflow as tf

    return bool(tf.test.is_built_with_cuda())


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (((), ""), "no NVIDIA GPU on this host (driver not installed); use tensorflow:ring"),
        (((), "unusable: Z"), "no NVIDIA GPU on this host (driver unusable: Z); use tensorflow:ring"),
        (((GPU,), "580.1"), None),
    ],
)
def test_nccl_needs_a_gpu(
    found: Any, wanted: str | None, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.write_text(installed.read_text().replace("('is_cuda_build', False)", "('is_cuda_build', True)"))
    monkeypatch.setattr(gpus, "gather_gpus", lambda: found)
    assert multiworker.missing("tensorflow:nccl") == wanted


def test_keras_has_no_googlenet() -> None:
    point = plain_task(model="googlenet").point
    reason = multiworker.refuse(point) or ""
    assert reason.startswith("--model googlenet: not in Keras; tensorflow has digits-cnn, resnet50, ")
    assert "googlenet" not in reason.partition(":")[2]
    for name in models.CATALOGUE:
        if name != "googlenet":
            assert multiworker.refuse(changed(point, model=name)) is None


def test_micro_batches_must_divide_the_batch() -> None:
    point = plain_task(batch_size=6, options={"accumulate": "4"}).point
    assert multiworker.refuse(point) == "--option accumulate=4: does not divide the batch of 6 per device"
    assert multiworker.refuse(replace(point, options={"accumulate": "3"})) is None
    assert multiworker.refuse(changed(point, options={}, memory_format="channels_last", compile=True)) is None


def test_options_are_read_from_words() -> None:
    given = {"bytes_per_pack": "1000000", "accumulate": "2"}
    assert read_options(multiworker.OPTIONS, given) == {"bytes_per_pack": 1_000_000, "accumulate": 2}
    assert read_options(multiworker.OPTIONS, {}) == {"bytes_per_pack": 0, "accumulate": 1}
    for wrong in ({"accumulate": "0"}, {"accumulate": "1.5"}, {"bytes_per_pack": "-1"}, {"bytes_per_pack": "x"}):
        with pytest.raises(UsageError, match=f"--option {next(iter(wrong))}="):
            read_options(multiworker.OPTIONS, wrong)


# ---------------------------------------------------------------- in processes of their own


def python(code: str, task: Task) -> str:
    """Run code in a worker's environment, which has the task as JSON; what it printed. Fails with what it said."""
    done = run(code, task)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(code: str, task: Task) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    environ = child_environ(os.environ, task, multiworker.environ(task, {}))
    environ["TASK"] = msgspec.json.encode(task).decode()
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)


PACKS = """
import os, sys
import msgspec
from scaling.frameworks.tf import multiworker as tf_collective
from scaling.records.task import Task
trainer = tf_collective.connect(msgspec.json.decode(os.environ["TASK"], type=Task))
trainer.step()
operations = trainer._step.graph.get_operations()
print(*(each.inputs[0].shape.num_elements() for each in operations if each.type == "CollectiveReduceV2"))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(("bytes_per_pack", "packs"), [(0, 1), (1_000_000, 3)])
def test_the_comm_control_joins_gradients_as_training_does(bytes_per_pack: int, packs: int) -> None:
    pytest.importorskip("tensorflow")
    found: list[list[str]] = []
    for kind in ("exchange", "comm"):
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
from scaling.frameworks.tf import multiworker as tf_collective
from scaling.records.task import Task
tf_collective.connect(msgspec.json.decode(os.environ["TASK"], type=Task))
os.kill(os.getpid(), 15)
print("still here", flush=True)
os._exit(0)
"""


def test_a_rank_ends_when_it_is_told_to() -> None:
    pytest.importorskip("tensorflow")
    (task,) = ranks.tasks("tensorflow:ring", "exchange", 1)
    done = run(STOPPED, task)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")
