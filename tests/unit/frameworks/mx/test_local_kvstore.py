"""MXNet's kvstores of one process before the worker: environment, what is missing, what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.frameworks.base import Traits, read_options
from scaling.frameworks.mx import plain
from scaling.frameworks.mx.local_kvstore import STRATEGY
from scaling.hosts import gpus
from scaling.records.host import Gpu
from tests.support.paper_tasks import one_task, tasks

GPU = Gpu(index=0, name="T", uuid="u", memory_bytes=1, power_limit_w=1.0, max_sm_clock_mhz=1.0)

every_name = pytest.mark.parametrize("name", STRATEGY.names)


@every_name
def test_traits_and_devices(name: str) -> None:
    assert STRATEGY.traits(name) == Traits(drives="node")
    assert STRATEGY.devices(name) == (("cuda",) if name == "mxnet:nccl" else ("cpu", "cuda", "emulated"))


def test_environ() -> None:
    """As many threads for sums over contexts as all contexts have."""
    task = replace(tasks("mxnet:local", "exchange", 4)[0], threads=3)
    assert STRATEGY.environ(task, {}) == {
        "DMLC_ROLE": "worker",
        "MXNET_CPU_WORKER_NTHREADS": "1",
        "MXNET_KVSTORE_REDUCTION_NTHREADS": "12",
    }


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of installed distributions, with an mxnet to import and nothing else."""
    monkeypatch.setattr(plain, "find_spec", lambda _: SimpleNamespace(name="mxnet"))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def install(folder: Path, name: str) -> None:
    """As pip leaves it."""
    place = folder / f"{name.replace('-', '_')}-1.9.1.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.9.1\n")


def test_nccl_needs_a_cuda_build(installed: Path) -> None:
    install(installed, "mxnet")
    assert STRATEGY.missing("mxnet:nccl") == (
        "mxnet is built without CUDA, and so without NCCL: ./launch/install mxnet-cuda"
    )
    assert STRATEGY.missing("mxnet:local") is STRATEGY.missing("mxnet:device") is None


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
    assert STRATEGY.missing("mxnet:nccl") == wanted


def test_gluon_chooses_where_to_update() -> None:
    assert read_options(STRATEGY.options, {}) == {"update_on_kvstore": "auto", "accumulate": 1}


@every_name
def test_there_are_no_helpers(name: str) -> None:
    assert STRATEGY.helpers(one_task(name, "exchange")) == []
