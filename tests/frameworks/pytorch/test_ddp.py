"""DistributedDataParallel: environment, what is missing, options, buckets, the process group."""

from __future__ import annotations

import inspect
import socket
import subprocess
import sys
from datetime import timedelta
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from scaling import frameworks
from scaling.errors import UsageError
from scaling.frameworks.base import read_options
from scaling.frameworks.pytorch import ddp, loop, store
from scaling.hosts import gpus
from scaling.records.host import Gpu
from scaling.records.point import Kind
from scaling.worker.failures import cause_of
from scaling.workloads import models
from tests.support import ranks
from tests.support.points import placed
from tests.support.ranks import one_task

strategy = frameworks.load("torch:gloo")

GPU = Gpu(index=0, name="T", uuid="u", memory_bytes=1, power_limit_w=1.0, max_sm_clock_mhz=1.0)


# ---------------------------------------------------------------- before the worker


@pytest.mark.parametrize("name", ["torch:gloo", "torch:nccl"])
@pytest.mark.parametrize("kind", ["exchange", "comm"])
def test_environ(name: str, kind: Kind) -> None:
    _, task = ranks.tasks(name, kind, 2, ports=(5001,))
    task = msgspec.structs.replace(placed(task, ["10.0.0.1", "10.0.0.2"], "ib0"), local_rank=0)
    assert ddp.environ(task, {}) == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "5001",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "GLOO_SOCKET_IFNAME": "ib0",
    }


@pytest.mark.parametrize("kind", ["solo", "together"])
def test_the_plain_loop_asks_for_nothing(kind: Kind) -> None:
    assert ddp.environ(one_task(kind=kind, ports=()), {}) == {}


def test_traits() -> None:
    for name in ddp.NAMES:
        found = ddp.traits(name)
        assert (found.ports, found.rank_ports, found.servers) == (1, False, False)
        assert (found.drives, found.synchronous) == ("device", True)


def test_devices() -> None:
    assert ddp.devices("torch:nccl") == ("cuda",)
    assert ddp.devices("torch:gloo") == ddp.devices("torch:plain") == ("cpu", "cuda", "emulated")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch whose installed files are the test's; returns their folder."""
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(ddp, "find_spec", lambda _: spec)
    monkeypatch.setattr(metadata, "version", lambda _: "9.9.9")
    (tmp_path / "lib").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", ddp.NAMES)
def test_missing_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "find_spec", lambda _: None)
    assert ddp.missing(name) == "torch is not installed: ./launch/install torch"


def test_nccl_needs_a_cuda_build(installed: Path) -> None:
    reason = ddp.missing("torch:nccl")
    assert reason == "torch 9.9.9 is built without CUDA: install a CUDA build (https://pytorch.org)"
    assert ddp.missing("torch:gloo") is ddp.missing("torch:plain") is None


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (((), ""), "no NVIDIA GPU on this host (driver not installed); use torch:gloo"),
        (((), "unusable: Z"), "no NVIDIA GPU on this host (driver unusable: Z); use torch:gloo"),
        (((GPU,), "580.1"), None),
    ],
)
def test_nccl_needs_a_gpu(
    found: Any, wanted: str | None, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installed / "lib/libtorch_cuda.so").touch()
    monkeypatch.setattr(gpus, "gather_gpus", lambda: found)
    assert ddp.missing("torch:nccl") == wanted


def test_there_are_no_helpers() -> None:
    task = one_task("torch:gloo", "exchange")
    assert ddp.helpers(task) == []
    with pytest.raises(NotImplementedError, match="torch:gloo has no helper 'server'"):
        ddp.serve(msgspec.structs.replace(task, role="server"), print)


# ---------------------------------------------------------------- options and buckets


def test_defaults_are_those_of_ddp() -> None:
    from torch.nn.parallel import DistributedDataParallel, distributed

    theirs = inspect.signature(DistributedDataParallel).parameters
    assert theirs["bucket_cap_mb"].default is None
    assert ddp.OPTIONS["bucket_cap_mb"].default == distributed._DEFAULT_BUCKET_CAP_MB
    for name in ("gradient_as_bucket_view", "static_graph"):
        assert ddp.OPTIONS[name].default is theirs[name].default


def test_options_are_read_from_words() -> None:
    given = {"bucket_cap_mb": "0.5", "static_graph": "true"}
    assert read_options(ddp.OPTIONS, given) == {
        "bucket_cap_mb": 0.5,
        "gradient_as_bucket_view": False,
        "static_graph": True,
        "accumulate": 1,
    }
    for text in ("big", "0", "nan"):
        with pytest.raises(UsageError, match=f"--option bucket_cap_mb={text}: expected positive number"):
            read_options(ddp.OPTIONS, {"bucket_cap_mb": text})


def test_buckets_by_hand() -> None:
    mib = 1 << 20
    assert ddp.bucket_bytes([mib - 1, 1, 26 * mib, mib], 25) == [mib, 26 * mib, mib]
    assert ddp.bucket_bytes([mib - 1, 1, 26 * mib, mib], 2) == [27 * mib, mib]
    assert ddp.bucket_bytes([mib, mib, mib], 1) == [mib, mib, mib]


@pytest.mark.parametrize("name", models.CATALOGUE)
def test_buckets_are_those_that_torch_computes(name: str) -> None:
    import torch

    from scaling.frameworks.pytorch import vision

    distributed: Any = torch.distributed
    with torch.device("meta"):
        gradients = list(vision.build(models.spec(name)).parameters())[::-1]
    limits = [distributed._DEFAULT_FIRST_BUCKET_BYTES, 25 << 20]
    indices, _ = distributed._compute_bucket_assignment_by_size(gradients, limits, [False] * len(gradients))
    wanted = [sum(4 * gradients[index].numel() for index in bucket) for bucket in indices]
    assert ddp.bucket_bytes((4 * each.numel() for each in gradients), 25) == wanted


IN_A_PROCESS = """
import os, sys
from scaling.frameworks.pytorch import ddp as torch_ddp
from scaling.frameworks.pytorch import loop as torch_loop
from tests.support import ranks
(task,) = ranks.tasks("torch:gloo", "exchange", 1, options={options})
os.environ.update(torch_ddp.environ(task, {{}}))
trainer = torch_ddp.connect(task)
for _ in range(4):
    trainer.step()
data = trainer._model._get_ddp_logging_data()
print(data["rebuilt_bucket_sizes"], data["gradient_as_bucket_view"], data.get("static_graph", 0), sep=";")
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("cap_mb", [None, 0.6])
def test_ddp_really_forms_these_buckets(cap_mb: float | None) -> None:
    from scaling.frameworks.pytorch.vision import build

    switches = {"gradient_as_bucket_view": "true", "static_graph": "true"}
    options = {"bucket_cap_mb": str(cap_mb), **switches} if cap_mb else {}
    code = IN_A_PROCESS.format(options=options)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    sizes, view, static = done.stdout.strip().split(";")
    gradients = [4 * each.numel() for each in build(models.spec("digits-cnn")).parameters()]
    wanted = ddp.bucket_bytes(gradients[::-1], cap_mb or 25)
    assert len(wanted) == (3 if cap_mb else 2)
    # A convolution's weight is ready before its bias, which may then go into the next bucket.
    assert [int(size) for size in sizes.split(", ")] == pytest.approx(wanted, abs=4 * 128)
    assert (view, static) == (("1", "1") if cap_mb else ("0", "0"))


# ---------------------------------------------------------------- gradient accumulation

COUNTING = """
import os, sys
from scaling.frameworks.pytorch import ddp as torch_ddp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from tests.support import ranks
(task,) = ranks.tasks("torch:gloo", "exchange", 1, options={"accumulate": sys.argv[1]})
os.environ.update(torch_ddp.environ(task, {}))
trainer = torch_ddp.connect(task)
sent = []
def counting(state, bucket):
    sent.append(bucket.index())
    return default_hooks.allreduce_hook(state, bucket)
trainer._parallel.register_comm_hook(None, counting)
for _ in range(3):
    trainer.step()
print(len(sent), trainer.samples)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("parts", ["1", "4"])
def test_micro_batches_are_exchanged_once_a_step(parts: str) -> None:
    command = [sys.executable, "-c", COUNTING, parts]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # DDP forms its two buckets after the first step.
    assert done.stdout.split() == ["5", "12"]


# ---------------------------------------------------------------- the process group


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How the store was asked for, which is not opened."""
    asked: list[dict[str, Any]] = []

    def note(address: str, port: int, **options: Any) -> str:
        asked.append({"address": address, "port": port, **options})
        return "the store"

    monkeypatch.setattr(store, "open_store", note)
    return asked


def stub_rank(name: str) -> tuple[Any, dict[str, Any]]:
    """A rank whose torch only notes how the group was asked for."""
    called: dict[str, Any] = {}

    def initialise(backend: str, **options: Any) -> None:
        called.update(options, backend=backend)

    distributed = SimpleNamespace(init_process_group=initialise)
    rank = SimpleNamespace(
        task=one_task(name, "exchange"), torch=SimpleNamespace(distributed=distributed), device="the device"
    )
    return rank, called


def test_the_group_times_out_after_the_agents_clocks(stores: list[dict[str, Any]]) -> None:
    rank, called = stub_rank("torch:gloo")
    ddp._join(rank)
    timeout = timedelta(seconds=ranks.LIMIT_S + 30)
    assert called == {
        "backend": "gloo", "timeout": timeout, "device_id": None, "store": "the store", "rank": 0, "world_size": 1,
    }  # fmt: skip
    assert stores == [{"address": "127.0.0.1", "port": rank.task.ports[0], "hosts": True, "timeout": timeout}]


def test_nccl_connects_at_once(stores: list[dict[str, Any]]) -> None:
    rank, called = stub_rank("torch:nccl")
    ddp._join(rank)
    assert (called["backend"], called["device_id"]) == ("nccl", "the device")


def test_a_taken_port_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as taken:
        task = one_task("torch:gloo", "exchange", ports=(taken.getsockname()[1],))
        for key, value in ddp.environ(task, {}).items():
            monkeypatch.setenv(key, value)
        with pytest.raises(OSError, match="in use") as caught:
            ddp.connect(task)
    assert cause_of(caught.value) == "port-taken"
