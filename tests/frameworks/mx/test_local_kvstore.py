"""MXNet's kvstores of one process: environment, what is missing, and that all contexts do the same work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import json
from msgspec.structs import replace

from scaling import frameworks
from scaling.frameworks.base import Traits, read_options
from scaling.frameworks.mx import local_kvstore, rank
from scaling.hosts import gpus
from scaling.plan import tasks
from scaling.records.host import Gpu
from scaling.records.task import Task
from tests.support import ranks
from tests.support.ranks import one_task

strategy = frameworks.load("mxnet:local")

GPU = Gpu(index=0, name="T", uuid="u", memory_bytes=1, power_limit_w=1.0, max_sm_clock_mhz=1.0)

needs_mxnet = pytest.mark.skipif(rank.missing() is not None, reason=rank.missing() or "")
every_name = pytest.mark.parametrize("name", local_kvstore.NAMES)


def node(name: str = "mxnet:local", size: int = 2, **fields: Any) -> Task:
    """The task of the one worker of a point."""
    (task,) = tasks.worker_tasks(ranks.tasks(name, "exchange", size, **fields), local_kvstore.traits(name))
    return task


# ---------------------------------------------------------------- before the worker


@every_name
def test_traits_and_devices(name: str) -> None:
    assert local_kvstore.traits(name) == Traits(drives="node")
    assert local_kvstore.devices(name) == (("cuda",) if name == "mxnet:nccl" else ("cpu", "cuda", "emulated"))


def test_environ() -> None:
    """As many threads for sums over contexts as all contexts have."""
    task = replace(node(size=4), threads=3)
    assert local_kvstore.environ(task, {}) == {
        "DMLC_ROLE": "worker",
        "MXNET_CPU_WORKER_NTHREADS": "1",
        "MXNET_KVSTORE_REDUCTION_NTHREADS": "12",
    }


@every_name
def test_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "find_spec", lambda _: None)
    assert local_kvstore.missing(name) == "mxnet is not installed: ./launch/install mxnet"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of installed distributions, with an mxnet to import and nothing else."""
    monkeypatch.setattr(rank, "find_spec", lambda _: SimpleNamespace(name="mxnet"))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def install(folder: Path, name: str) -> None:
    """As pip leaves it."""
    place = folder / f"{name.replace('-', '_')}-1.9.1.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.9.1\n")


def test_nccl_needs_a_cuda_build(installed: Path) -> None:
    install(installed, "mxnet")
    assert local_kvstore.missing("mxnet:nccl") == (
        "mxnet is built without CUDA, and so without NCCL: ./launch/install mxnet-cuda"
    )
    assert local_kvstore.missing("mxnet:local") is local_kvstore.missing("mxnet:device") is None


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (((), ""), "no NVIDIA GPU on this host (driver not installed); use mxnet:device"),
        (((), "unusable: Z"), "no NVIDIA GPU on this host (driver unusable: Z); use mxnet:device"),
        (((GPU,), "580.1"), None),
    ],
)
def test_nccl_needs_a_gpu(
    found: Any, wanted: str | None, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(installed, "mxnet-cu112")
    monkeypatch.setattr(gpus, "gather_gpus", lambda: found)
    assert local_kvstore.missing("mxnet:nccl") == wanted


def test_refuses_what_gluon_cannot_do() -> None:
    assert local_kvstore.refuse(node(precision="bf16").point) == (
        "--precision bf16: mxnet computes in fp32 (fp16 with CUDA)"
    )
    assert local_kvstore.refuse(node().point) is None


def test_gluon_chooses_where_to_update() -> None:
    assert read_options(local_kvstore.OPTIONS, {}) == {"update_on_kvstore": "auto", "accumulate": 1}


@every_name
def test_there_are_no_helpers(name: str) -> None:
    task = one_task(name, "exchange")
    assert local_kvstore.helpers(task) == []
    with pytest.raises(NotImplementedError, match=f"{name} has no helper 'server'"):
        local_kvstore.serve(replace(task, role="server"), print)


# ---------------------------------------------------------------- training

EACH_CONTEXT = """
import sys
from msgspec import json
from scaling.frameworks.mx import local_kvstore as mxnet_devices
from scaling.records.task import Task
trainer = mxnet_devices.connect(json.decode(sys.argv[1], type=Task))
trainer.step()
print(*(len(set(round(float(each), 5) for each in losses.asnumpy())) for losses in trainer._losses))
print(len({losses.asnumpy().tobytes() for losses in trainer._losses}))
print(trainer.digest() == trainer.digest_of(trainer.contexts[1]))
weight = next(iter(trainer.trained.values())).data(trainer.contexts[1])
weight[0] += 1e-3
try:
    trainer.digest()
except RuntimeError as error:
    print(error)
"""


@needs_mxnet
@pytest.mark.parametrize("name", ["mxnet:local", "mxnet:device"])
def test_a_context_that_differs_is_told(name: str) -> None:
    """Contexts see different images, hold the same weights, and digest() is no hash when they do not."""
    command = [sys.executable, "-c", EACH_CONTEXT, json.encode(node(name)).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses, images, same, *error = done.stdout.splitlines()
    assert (losses, images, same) == ("4 4", "2", "True")
    assert error[0].startswith("the devices' parameters differ: {'cpu(0)': '")


@needs_mxnet
@pytest.mark.parametrize("choice", ["true", "false"])
def test_on_one_device_there_is_nothing_to_choose(choice: str) -> None:
    (trained,) = ranks.run(ranks.tasks("mxnet:local", "exchange", 1, options={"update_on_kvstore": choice}))
    assert trained.samples == 4


@needs_mxnet
@pytest.mark.parametrize("options", [{"update_on_kvstore": "false"}, {"accumulate": "2"}])
def test_options_do_not_change_the_update(options: dict[str, str]) -> None:
    (first,) = ranks.run(ranks.tasks("mxnet:device", "exchange", 2))
    (other,) = ranks.run(ranks.tasks("mxnet:device", "exchange", 2, options=options))
    for key, start in first.before.items():
        update = np.linalg.norm(first.after[key] - start)
        assert np.linalg.norm(other.after[key] - first.after[key]) < 1e-3 * update, key
