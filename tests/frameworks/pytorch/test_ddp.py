"""DistributedDataParallel in the worker: defaults, buckets, micro-batches, the process group."""

from __future__ import annotations

import gc
import inspect
import json
import socket
import subprocess
import sys
import weakref
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from scaling import frameworks
from scaling.emulated import layers
from scaling.emulated.layers import bucket_bytes
from scaling.frameworks.pytorch import ddp_trainer, group, network
from scaling.frameworks.pytorch.loop import Exchange
from scaling.frameworks.pytorch.strategies import DDP
from scaling.worker.run_task import cause_of
from scaling.workloads import models
from scaling.workloads.models import RATES
from tests.support import ranks
from tests.support.ranks import one_task

# ---------------------------------------------------------------- options and buckets


def test_defaults_are_those_of_ddp() -> None:
    theirs = inspect.signature(DistributedDataParallel).parameters
    assert theirs["bucket_cap_mb"].default is None
    limit_mb = getattr(torch.nn.parallel.distributed, "_DEFAULT_BUCKET_CAP_MB", 25)  # 2.9 has no name for it
    assert DDP.options["bucket_cap_mb"].default == limit_mb
    for name in ("gradient_as_bucket_view", "static_graph"):
        assert DDP.options[name].default is theirs[name].default


@pytest.mark.parametrize("name", models.CATALOGUE)
def test_buckets_are_those_that_torch_computes(name: str) -> None:
    distributed: Any = torch.distributed
    gradients = [each for _, each in network.trained(network.empty(models.spec(name)))][::-1]
    limits = [distributed._DEFAULT_FIRST_BUCKET_BYTES, 25 << 20]
    indices, _ = distributed._compute_bucket_assignment_by_size(gradients, limits, [False] * len(gradients))
    wanted = [sum(4 * gradients[index].numel() for index in bucket) for bucket in indices]
    assert bucket_bytes((4 * each.numel() for each in gradients), 25) == wanted
    assert layers.tail_bytes(name) == wanted[-1]


def in_process(code: str, *words: str) -> list[str]:
    """Return what code prints in a process of its own; torch 2.9's Gloo writes lines of its own before."""
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]


# A rank of DDP, of the options and fields in sys.argv, as `trainer`.
RANK = """
import json, os, sys, torch
from scaling import frameworks
from scaling.frameworks.pytorch import ddp_trainer
from tests.support import ranks
(task,) = ranks.tasks("torch:gloo", sys.argv[1], 1, **json.loads(sys.argv[2]))
os.environ.update(frameworks.load("torch:gloo").environ(task, {}))
trainer = ddp_trainer.connect(task)
"""
LEAVE = """
sys.stdout.flush()
os._exit(0)
"""
BUCKETS = """
for _ in range(4):
    trainer.step()
data = trainer._parallel._get_ddp_logging_data()
print(data["rebuilt_bucket_sizes"], data["gradient_as_bucket_view"], data.get("static_graph", 0), sep=";")
"""


def of_rank(code: str, kind: str = "exchange", **fields: Any) -> str:
    return in_process(RANK + code + LEAVE, kind, json.dumps(fields))[-1]


@pytest.mark.parametrize("cap_mb", [None, 0.6])
def test_ddp_really_forms_these_buckets(cap_mb: float | None) -> None:
    switches = {"gradient_as_bucket_view": "true", "static_graph": "true"}
    options = {"bucket_cap_mb": str(cap_mb), **switches} if cap_mb else {}
    sizes, view, static = of_rank(BUCKETS, options=options).split(";")
    gradients = [4 * each.numel() for each in network.empty(models.spec("digits-cnn")).parameters()]
    wanted = bucket_bytes(gradients[::-1], cap_mb or 25)
    assert len(wanted) == (3 if cap_mb else 2)
    # A convolution's weight is ready before its bias, which may then go into the next bucket.
    assert [int(size) for size in sizes.split(", ")] == pytest.approx(wanted, abs=4 * 128)
    assert (view, static) == (("1", "1") if cap_mb else ("0", "0"))


AT_SIXTEEN = """
import sys, torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from scaling.frameworks.pytorch import network
from scaling.workloads import models
torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=16)
parallel = torch.nn.parallel.DistributedDataParallel(network.build(models.spec(sys.argv[1]), 1))
sent = []
def noting(state, bucket):
    sent.append(4 * bucket.buffer().numel())
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
parallel.register_comm_hook(None, noting)
for _ in range(2):
    sent.clear()  # the first step's are not yet in the order of backward
    parallel(torch.ones(2, 3, 64, 64)).sum().backward()
print(*sent)
"""


def test_ddp_really_forms_these_buckets_of_a_large_model_among_sixteen() -> None:
    """In torch's process group that is none, by a hook that sees each bucket. Which bucket a gradient at a limit
    goes into, its layer's order of backward decides."""
    gradients = [4 * each.numel() for each in network.empty(models.spec("resnet50")).parameters()]
    wanted = bucket_bytes(gradients[::-1], 25)
    found = [int(size) for size in in_process(AT_SIXTEEN, "resnet50")[-1].split()]
    assert len(found) == len(wanted) > 2
    assert sum(found) == sum(wanted)
    assert found == pytest.approx(wanted, abs=4 * 2048)


BROADCAST = """
sent, broadcast = [], torch.distributed._broadcast_coalesced
def noting(group, tensors, size, source):
    sent.append((size, source, [(str(each.dtype), each.numel()) for each in tensors]))
    return broadcast(group, tensors, size, source)
torch.distributed._broadcast_coalesced = noting
trainer.step()
print(sent)
"""


def test_the_exchange_alone_broadcasts_the_buffers_that_ddp_does() -> None:
    """The running means of a model with batch normalisation, before each forward."""
    fields = {"model": "resnet50", "data": "synthetic", "batch_size": 1}
    told, alone = (of_rank(BROADCAST, kind, **fields) for kind in ("exchange", "comm"))
    assert told == alone
    assert told.count("torch.float32") == 106 and told.count("torch.int64") == 53


COUNTING = """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
sent = []
def counting(state, bucket):
    sent.append(bucket.index())
    return default_hooks.allreduce_hook(state, bucket)
trainer._parallel.register_comm_hook(None, counting)
for _ in range(3):
    trainer.step()
print(len(sent), trainer.samples)
"""


@pytest.mark.parametrize("parts", ["1", "4"])
def test_micro_batches_are_exchanged_once_a_step(parts: str) -> None:
    # DDP forms its two buckets after the first step.
    assert of_rank(COUNTING, options={"accumulate": parts}).split() == ["5", "12"]


SHARDED = """
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from scaling.frameworks.pytorch import compute, ddp_trainer
from scaling.workloads.specs import Recipe
torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
for kind in compute.OPTIMIZERS:
    ways = []
    for wrap in (lambda whole: whole, ddp_trainer.sharded):
        weights = torch.nn.Parameter(torch.ones(3))
        optimizer = wrap(compute.optimizer_of(Recipe(optimizer=kind, rate=0.5, decay=0.1), [weights]))
        for gradient in (torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.5, 1.0, 4.0])):
            weights.grad = gradient
            optimizer.step()
        ways.append(weights.detach())
    print(kind, torch.equal(*ways), not torch.equal(ways[0], torch.ones(3)))
"""


def test_every_optimizer_can_be_sharded_and_updates_as_it_does_whole() -> None:
    """AdamW's defaults have one that AdamW does not take: no transformer could be trained so."""
    assert in_process(SHARDED) == [f"{kind} True True" for kind in RATES]


# ---------------------------------------------------------------- the process group


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = []

    def note(address: str, port: int, **options: Any) -> str:
        asked.append({"address": address, "port": port, **options})
        return "the store"

    monkeypatch.setattr(group, "open_store", note)
    return asked


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    asked: dict[str, Any] = {}

    def note(backend: str, **options: Any) -> None:
        asked.update(options, backend=backend)

    monkeypatch.setattr(torch.distributed, "init_process_group", note)
    return asked


def test_the_group_times_out_after_the_agents_clocks(stores: list[dict[str, Any]], joined: dict[str, Any]) -> None:
    task = one_task("torch:gloo", "exchange")
    group.join(task, torch.device("cpu"))
    timeout = timedelta(seconds=ranks.LIMIT_S + 30)
    assert joined == {
        "backend": "gloo", "timeout": timeout, "device_id": None, "store": "the store", "rank": 0, "world_size": 1,
    }  # fmt: skip
    assert stores == [{"address": "127.0.0.1", "port": task.ports[0], "hosts": True, "timeout": timeout}]


@pytest.mark.usefixtures("stores")
def test_nccl_connects_at_once(joined: dict[str, Any]) -> None:
    group.join(one_task("torch:nccl", "exchange", device="cuda"), torch.device("cuda", 1))
    assert (joined["backend"], joined["device_id"]) == ("nccl", torch.device("cuda", 1))


def test_a_taken_port_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as taken:
        task = one_task("torch:gloo", "exchange", ports=(taken.getsockname()[1],))
        for key, value in frameworks.load("torch:gloo").environ(task, {}).items():
            monkeypatch.setenv(key, value)
        with pytest.raises(OSError, match="in use") as caught:
            ddp_trainer.connect(task)
    assert cause_of(caught.value) == "port-taken"


def test_an_exchange_without_compute_keeps_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stay in the host's memory next to the buckets, on every rank of the host."""
    built: list[weakref.ref[torch.nn.Module]] = []

    def build(exchange: Any) -> torch.nn.Module:
        module = Exchange.build(exchange)
        built.append(weakref.ref(module))
        return module

    monkeypatch.setattr(ddp_trainer, "distributed", SimpleNamespace(group=SimpleNamespace(WORLD="all ranks")))
    monkeypatch.setattr(ddp_trainer.GradientExchange, "build", build)
    exchange = ddp_trainer.GradientExchange(one_task(strategy="torch:gloo", kind="comm"), beside=True)
    gc.collect()
    assert exchange.gradient_bytes > 0
    assert [each() for each in built] == [None]
