"""MXNet's distributed kvstores before the worker: environment, traits, options, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.frameworks.base import Helper, Traits, read_options
from scaling.frameworks.mx.dist_kvstore import STRATEGY
from scaling.plan import tasks
from scaling.records.network import Place
from scaling.records.point import Kind
from scaling.records.task import Server, Task
from tests.support import paper_tasks
from tests.support.paper_tasks import one_task
from tests.support.points import changed, placed


def on_two_hosts(kind: Kind = "exchange", **fields: Any) -> list[Task]:
    places = [("node1", "10.0.0.1"), ("node2", "10.0.0.2")]
    servers = tuple(
        Server(launch_rank=rank, host=host, place=Place(address=address, interface="ib0"), port=6001 + rank)
        for rank, (host, address) in enumerate(places)
    )
    hosts, addresses = zip(*places, strict=True)
    return [
        replace(placed(task, addresses, "ib0"), hosts=hosts, servers=servers, ports=(5001,))
        for task in paper_tasks.tasks("mxnet:dist_sync", kind, 2, **fields)
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
SERVER = {**COMMON, "DMLC_ROLE": "server"}


@pytest.mark.parametrize("kind", ["exchange", "comm"])
def test_environ_of_workers(kind: Kind) -> None:
    first, second = (STRATEGY.environ(task, {}) for task in on_two_hosts(kind))
    assert first == {**COMMON, "DMLC_ROLE": "worker", "DMLC_NODE_HOST": "10.0.0.1"}
    assert second == {**COMMON, "DMLC_ROLE": "worker", "DMLC_NODE_HOST": "10.0.0.2"}


def test_environ_of_helpers() -> None:
    """Each binds its own address; a server the port that is reserved for it."""
    of = on_two_hosts()
    scheduler, first, second = (
        STRATEGY.environ(tasks.helper_task(of, wanted), {}) for wanted in STRATEGY.helpers(of[0])
    )
    assert scheduler == {**COMMON, "DMLC_ROLE": "scheduler", "DMLC_NODE_HOST": "10.0.0.1"}
    assert first == {**SERVER, "DMLC_NODE_HOST": "10.0.0.1", "PORT": "6001"}
    assert second == {**SERVER, "DMLC_NODE_HOST": "10.0.0.2", "PORT": "6002"}


def test_the_bound_for_big_arrays_reaches_all_roles() -> None:
    task = on_two_hosts(options={"bigarray_bound": "77"})[0]
    for role in ("worker", "scheduler", "server-1"):
        assert STRATEGY.environ(replace(task, role=role), {})["MXNET_KVSTORE_BIGARRAY_BOUND"] == "77"


def test_a_bound_above_all_arrays_is_lowered_to_an_int_of_mxnet() -> None:
    """MXNet's is an int: of more it said "Invalid Parameter format", and every cell failed."""
    task = on_two_hosts(options={"bigarray_bound": "99999999999"})[0]
    assert STRATEGY.environ(task, {})["MXNET_KVSTORE_BIGARRAY_BOUND"] == str(2**31 - 1)


def test_helpers_are_a_scheduler_and_the_servers() -> None:
    assert STRATEGY.helpers(on_two_hosts()[0]) == [
        Helper(name="scheduler", awaited=False),
        Helper(name="server-0", server=0, awaited=False),
        Helper(name="server-1", server=1, awaited=False),
    ]


def test_traits_and_devices() -> None:
    served = Traits(ports=1, servers=True, accuracy=("evaluate",))
    assert STRATEGY.traits("mxnet:dist_sync") == served
    assert STRATEGY.traits("mxnet:dist_device_sync") == served
    assert STRATEGY.traits("mxnet:dist_async") == replace(served, synchronous=False)
    assert {STRATEGY.devices(name) for name in STRATEGY.names} == {("cpu", "cuda", "emulated")}


def test_defaults_are_mxnets() -> None:
    assert read_options(STRATEGY.options, {}) == {
        "bigarray_bound": 1_000_000,
        "compression": "none",
        "compression_threshold": 0.5,
        "update_on_kvstore": True,
        "accumulate": 1,
    }


@pytest.mark.parametrize(
    ("key", "text", "wanted"),
    [
        ("bigarray_bound", "0", "integer from 1 to"),
        ("compression", "1bit", "none or 2bit"),
        ("compression_threshold", "0", "number from 0.000001 to"),
        ("update_on_kvstore", "maybe", "true or false"),
    ],
)
def test_a_wrong_value_is_refused(key: str, text: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=f"--option {key}={text}: expected {wanted}"):
        read_options(STRATEGY.options, {key: text})


def test_refuses_combinations_that_mxnet_does_not_have() -> None:
    on_workers = one_task("mxnet:dist_async", options={"update_on_kvstore": "false"}).point
    assert STRATEGY.refuse(on_workers) == (
        "--option update_on_kvstore=false: mxnet:dist_async only updates on its servers; leave it out"
    )
    assert STRATEGY.refuse(replace(on_workers, strategy="mxnet:dist_sync")) is None
    half = one_task("mxnet:dist_sync", options={"compression": "2bit"}, precision="fp16", device="cuda").point
    assert STRATEGY.refuse(half) == ("--option compression=2bit: mxnet only compresses fp32 gradients, not fp16")
    assert STRATEGY.refuse(changed(half, precision="fp32")) is None


def test_servers_that_count_pushes_update_by_sgd() -> None:
    point = one_task("mxnet:dist_async", model="mnist-cnn").point
    assert STRATEGY.refuse(point) == (
        "--optimizer adadelta: the servers of mxnet:dist_async update by SGD; add --optimizer sgd"
    )
    assert STRATEGY.refuse(changed(point, optimizer="sgd")) is None
    assert STRATEGY.refuse(replace(point, strategy="mxnet:dist_sync")) is None
