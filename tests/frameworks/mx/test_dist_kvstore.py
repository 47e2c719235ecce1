"""MXNet's distributed kvstores: environment, options, ps-lite's helpers as processes, compression, counting."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import UsageError
from scaling.frameworks.base import Helper, Traits, read_options
from scaling.frameworks.mx import dist_kvstore
from scaling.frameworks.mx import rank as mxnet_rank
from scaling.plan import tasks
from scaling.records.network import Place
from scaling.records.point import Kind
from scaling.records.task import Server, Task
from tests.support import ranks
from tests.support.points import changed, placed
from tests.support.ranks import one_task

strategy = frameworks.load("mxnet:dist_sync")


# ---------------------------------------------------------------- before the worker


def on_two_hosts(kind: Kind = "exchange", **fields: Any) -> list[Task]:
    """Two ranks and two servers, on node1 and node2."""
    places = [("node1", "10.0.0.1"), ("node2", "10.0.0.2")]
    servers = tuple(
        Server(launch_rank=rank, host=host, place=Place(address=address, interface="ib0"), port=6001 + rank)
        for rank, (host, address) in enumerate(places)
    )
    hosts, addresses = zip(*places, strict=True)
    return [
        replace(placed(task, addresses, "ib0"), hosts=hosts, servers=servers, ports=(5001,))
        for task in ranks.tasks("mxnet:dist_sync", kind, 2, **fields)
    ]  # fmt: skip


COMMON = {
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "5001",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "2",
    "DMLC_INTERFACE": "ib0",
    "MXNET_KVSTORE_BIGARRAY_BOUND": "1000000",
    "MXNET_CPU_WORKER_NTHREADS": "1",
    "MXNET_KVSTORE_REDUCTION_NTHREADS": "1",
}
SERVER = {
    **COMMON,
    "DMLC_ROLE": "server",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "MALLOC_MMAP_THRESHOLD_": "33554432",
}


@pytest.mark.parametrize("kind", ["exchange", "comm"])
def test_environ_of_workers(kind: Kind) -> None:
    first, second = (dist_kvstore.environ(task, {}) for task in on_two_hosts(kind))
    assert first == {**COMMON, "DMLC_ROLE": "worker", "DMLC_NODE_HOST": "10.0.0.1"}
    assert second == {**COMMON, "DMLC_ROLE": "worker", "DMLC_NODE_HOST": "10.0.0.2"}


def test_environ_of_helpers() -> None:
    """Each binds its own address; a server the port that is reserved for it."""
    of = on_two_hosts()
    scheduler, first, second = (
        dist_kvstore.environ(tasks.helper_task(of, wanted), {}) for wanted in dist_kvstore.helpers(of[0])
    )
    assert scheduler == {**COMMON, "DMLC_ROLE": "scheduler", "DMLC_NODE_HOST": "10.0.0.1"}
    assert first == {**SERVER, "DMLC_NODE_HOST": "10.0.0.1", "PORT": "6001"}
    assert second == {**SERVER, "DMLC_NODE_HOST": "10.0.0.2", "PORT": "6002"}


def test_the_bound_for_big_arrays_reaches_all_roles() -> None:
    task = on_two_hosts(options={"bigarray_bound": "77"})[0]
    for role in ("worker", "scheduler", "server-1"):
        assert dist_kvstore.environ(replace(task, role=role), {})["MXNET_KVSTORE_BIGARRAY_BOUND"] == "77"


@pytest.mark.parametrize("kind", ["solo", "together"])
def test_the_plain_loop_is_told_of_no_server(kind: Kind) -> None:
    """But that it is a worker: a shell's DMLC_ROLE=server would make of its import a server."""
    asked = dist_kvstore.environ(one_task("mxnet:plain", kind), {})
    assert asked["DMLC_ROLE"] == "worker"
    assert not {key for key in asked if "DMLC" in key} - {"DMLC_ROLE"}


def test_cuda_computes_fp32_in_fp32() -> None:
    task = one_task("mxnet:plain", device="cuda")
    assert dist_kvstore.environ(task, {})["NVIDIA_TF32_OVERRIDE"] == "0"


def test_helpers_are_a_scheduler_and_the_servers() -> None:
    assert dist_kvstore.helpers(on_two_hosts()[0]) == [
        Helper(name="scheduler"),
        Helper(name="server-0", server=0),
        Helper(name="server-1", server=1),
    ]


def test_traits_and_devices() -> None:
    assert dist_kvstore.traits("mxnet:plain") == Traits()
    served = Traits(ports=1, servers=True)
    assert dist_kvstore.traits("mxnet:dist_sync") == served
    assert dist_kvstore.traits("mxnet:dist_device_sync") == served
    assert dist_kvstore.traits("mxnet:dist_async") == replace(served, synchronous=False)
    assert {dist_kvstore.devices(name) for name in dist_kvstore.NAMES} == {("cpu", "cuda", "emulated")}


def test_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mxnet_rank, "find_spec", lambda _: None)
    for name in dist_kvstore.NAMES:
        assert dist_kvstore.missing(name) == "mxnet is not installed: ./launch/install mxnet"


def test_defaults_are_mxnets() -> None:
    assert read_options(dist_kvstore.OPTIONS, {}) == {
        "bigarray_bound": 1_000_000,
        "compression": "none",
        "compression_threshold": 0.5,
        "update_on_kvstore": True,
        "accumulate": 1,
    }
    assert [*dist_kvstore.PLAIN_OPTIONS] == ["accumulate"]


@pytest.mark.parametrize(
    ("key", "text", "wanted"),
    [
        ("bigarray_bound", "0", "positive integer"),
        ("compression", "1bit", "none or 2bit"),
        ("compression_threshold", "0", "positive number"),
        ("update_on_kvstore", "maybe", "true or false"),
    ],
)
def test_a_wrong_value_is_refused(key: str, text: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=f"--option {key}={text}: expected {wanted}"):
        read_options(dist_kvstore.OPTIONS, {key: text})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": "googlenet"}, "--model googlenet: not in Gluon; mxnet has digits-cnn, resnet50, resnet101, "
     "resnet152, alexnet, vgg16, inception_v3"),
    ({"precision": "bf16"}, "--precision bf16: mxnet computes in fp32 (fp16 with CUDA)"),
    ({"precision": "fp16"}, "--precision fp16: mxnet computes in fp32 (fp16 with CUDA)"),
    ({"precision": "tf32", "device": "cuda"}, "--precision tf32: mxnet computes in fp32 (fp16 with CUDA)"),
    ({"memory_format": "channels_last"},
     "--memory-format channels_last: mxnet has its models in contiguous (NCHW)"),
    ({"compile": True}, "--compile: mxnet runs hybridized graphs always; leave it out"),
    ({"options": {"accumulate": "3"}}, "--option accumulate=3: does not divide the batch of 4 per device"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "reason"), REFUSED)
@pytest.mark.parametrize("name", ["mxnet:plain", "mxnet:dist_sync"])
def test_refuses(name: str, fields: dict[str, Any], reason: str) -> None:
    assert dist_kvstore.refuse(one_task(name, **fields).point) == reason


@pytest.mark.parametrize("name", dist_kvstore.NAMES)
def test_refuses_nothing_of_what_it_can_do(name: str) -> None:
    asked: list[dict[str, Any]] = [
        {}, {"precision": "fp16", "device": "cuda"}, {"options": {"accumulate": "2"}}
    ]  # fmt: skip
    for fields in asked:
        assert dist_kvstore.refuse(one_task(name, **fields).point) is None


def test_refuses_combinations_that_mxnet_does_not_have() -> None:
    on_workers = one_task("mxnet:dist_async", options={"update_on_kvstore": "false"}).point
    assert dist_kvstore.refuse(on_workers) == (
        "--option update_on_kvstore=false: mxnet:dist_async updates on its servers only"
    )
    assert dist_kvstore.refuse(replace(on_workers, strategy="mxnet:dist_sync")) is None
    half = one_task("mxnet:dist_sync", options={"compression": "2bit"}, precision="fp16", device="cuda").point
    assert dist_kvstore.refuse(half) == (
        "--option compression=2bit: mxnet compresses fp32 gradients only, not fp16"
    )
    assert dist_kvstore.refuse(changed(half, precision="fp32")) is None
