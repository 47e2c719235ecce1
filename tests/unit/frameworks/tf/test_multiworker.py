"""MultiWorkerMirroredStrategy before a worker starts: environment, what is missing, options."""

from __future__ import annotations

import json
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from scaling import frameworks
from scaling.errors import UsageError
from scaling.frameworks.base import Traits, read_options
from scaling.frameworks.tf import multiworker, plain
from scaling.hosts import gpus
from scaling.records.host import Gpu
from scaling.records.point import Kind
from tests.support import paper_tasks
from tests.support.paper_tasks import one_task
from tests.support.points import changed, placed

STRATEGY = frameworks.load("tensorflow:ring")
GPU = Gpu(index=0, name="T", uuid="u", memory_bytes=1, power_limit_w=1.0, max_sm_clock_mhz=1.0)


@pytest.mark.parametrize("kind", ["exchange", "comm"])
def test_the_addresses_choose_the_network(kind: Kind) -> None:
    _, task = paper_tasks.tasks("tensorflow:ring", kind, 2, ports=(5001, 5002))
    task = placed(task, ("10.0.0.1", "10.0.0.2"), "ib0")
    asked = STRATEGY.environ(task, {})
    assert json.loads(asked.pop("TF_CONFIG")) == {
        "cluster": {"worker": ["10.0.0.1:5001", "10.0.0.2:5002"]},
        "task": {"type": "worker", "index": 1},
    }
    assert asked == plain.ENVIRON


def test_nccl_is_told_the_interface() -> None:
    (task,) = paper_tasks.tasks("tensorflow:nccl", "exchange", 1, ports=(5001,), device="cuda")
    asked = STRATEGY.environ(placed(task, ["10.0.0.1"], "ib0"), {})
    assert asked["NCCL_SOCKET_IFNAME"] == "=ib0"


def test_devices_and_traits() -> None:
    assert STRATEGY.devices("tensorflow:nccl") == ("cuda",)
    assert STRATEGY.devices("tensorflow:ring") == ("cpu", "cuda", "emulated")
    assert STRATEGY.traits("tensorflow:ring") == STRATEGY.traits("tensorflow:nccl") == Traits(rank_ports=True)


def test_there_are_no_helpers() -> None:
    assert STRATEGY.helpers(one_task("tensorflow:ring", "exchange", ports=(5001,))) == []


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TensorFlow whose installed files are the test's; returns the file that says what it was built with."""
    spec = ModuleSpec("tensorflow", None, origin=str(tmp_path / "__init__.py"))
    for module in (plain, multiworker):
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
    assert STRATEGY.missing("tensorflow:nccl") == wanted
    assert STRATEGY.missing("tensorflow:ring") is None


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
    assert STRATEGY.missing("tensorflow:nccl") == wanted


def test_it_may_be_compiled() -> None:
    point = one_task("tensorflow:ring", "exchange", ports=(5001,)).point
    assert STRATEGY.refuse(changed(point, compile=True)) is None


def test_options_are_read_from_words() -> None:
    given = {"bytes_per_pack": "1000000", "accumulate": "2"}
    assert read_options(STRATEGY.options, given) == {"bytes_per_pack": 1_000_000, "accumulate": 2}
    assert read_options(STRATEGY.options, {}) == {"bytes_per_pack": 0, "accumulate": 1}
    for wrong in ({"accumulate": "0"}, {"accumulate": "1.5"}, {"bytes_per_pack": "-1"}, {"bytes_per_pack": "x"}):
        with pytest.raises(UsageError, match=f"--option {next(iter(wrong))}="):
            read_options(STRATEGY.options, wrong)
