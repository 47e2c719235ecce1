"""Agent-side strategies of TensorFlow: plain loop, workers in a ring, parameter servers."""

from __future__ import annotations

import json
import os
from importlib.machinery import ModuleSpec
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import UsageError
from scaling.frameworks.base import PASSES, Helper, Traits, read_options
from scaling.frameworks.tf import plain
from scaling.records.network import Place
from scaling.records.point import Kind
from scaling.records.task import Server, Task
from scaling.workloads import models
from tests.support import paper_tasks
from tests.support.paper_tasks import one_task
from tests.support.points import changed, placed

# What all of TensorFlow's strategies share before a worker starts.

STRATEGY = frameworks.load("tensorflow:plain")
NAMES = ("tensorflow:plain", "tensorflow:ring", "tensorflow:nccl", "tensorflow:ps", "tensorflow:horovod")


def plain_task(**fields: Any) -> Any:
    return one_task("tensorflow:plain", **fields)


@pytest.mark.parametrize("kind", ["solo", "together"])
def test_the_plain_loop_asks_for_keras_settings_alone(kind: Kind) -> None:
    assert STRATEGY.environ(plain_task(kind=kind), {}) == {
        "KERAS_BACKEND": "tensorflow",
        "KERAS_HOME": os.devnull,
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }


def test_it_is_a_loop_by_itself() -> None:
    assert STRATEGY.devices("tensorflow:plain") == ("cpu", "cuda", "emulated")
    assert STRATEGY.traits("tensorflow:plain") == PASSES
    assert STRATEGY.helpers(plain_task()) == []
    assert read_options(STRATEGY.options, {}) == {"accumulate": 1}


@pytest.mark.parametrize("spec", [None, ModuleSpec("a-folder", None)])
@pytest.mark.parametrize("name", NAMES)
def test_missing_tensorflow(name: str, spec: ModuleSpec | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "find_spec", lambda _: spec)
    assert frameworks.load(name).missing(name) == "tensorflow is not installed: ./launch/install tensorflow"


@pytest.mark.parametrize("name", NAMES)
def test_every_network_is_there(name: str) -> None:
    strategy, point = frameworks.load(name), plain_task().point
    for model in models.CATALOGUE:
        assert strategy.refuse(changed(point, model=model)) is None


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_must_divide_the_batch(name: str) -> None:
    strategy, point = frameworks.load(name), plain_task(batch_size=6, options={"accumulate": "4"}).point
    assert strategy.refuse(point) == "--option accumulate=4: does not divide the batch of 6 per device"
    assert strategy.refuse(replace(point, options={"accumulate": "3"})) is None
    assert strategy.refuse(changed(point, options={}, memory_format="channels_last")) is None


def test_xla_compiles_the_loop() -> None:
    assert STRATEGY.refuse(changed(plain_task().point, compile=True)) is None


# MultiWorkerMirroredStrategy before a worker starts: environment, what is missing, options.

MULTIWORKER_STRATEGY = frameworks.load("tensorflow:ring")


@pytest.mark.parametrize("kind", ["exchange", "comm"])
def test_the_addresses_choose_the_network(kind: Kind) -> None:
    _, task = paper_tasks.tasks("tensorflow:ring", kind, 2, ports=(5001, 5002))
    task = placed(task, ("10.0.0.1", "10.0.0.2"), "ib0")
    asked = MULTIWORKER_STRATEGY.environ(task, {})
    assert json.loads(asked.pop("TF_CONFIG")) == {
        "cluster": {"worker": ["10.0.0.1:5001", "10.0.0.2:5002"]},
        "task": {"type": "worker", "index": 1},
    }
    assert asked == plain.ENVIRON


def test_nccl_gets_the_interface() -> None:
    (task,) = paper_tasks.tasks("tensorflow:nccl", "exchange", 1, ports=(5001,), device="cuda")
    asked = MULTIWORKER_STRATEGY.environ(placed(task, ["10.0.0.1"], "ib0"), {})
    assert asked["NCCL_SOCKET_IFNAME"] == "=ib0"


def test_devices_and_traits() -> None:
    assert MULTIWORKER_STRATEGY.devices("tensorflow:nccl") == ("cuda",)
    assert MULTIWORKER_STRATEGY.devices("tensorflow:ring") == ("cpu", "cuda", "emulated")
    ring = Traits(rank_ports=True, is_open=True, accuracy=("evaluate", "rate"))
    assert MULTIWORKER_STRATEGY.traits("tensorflow:ring") == ring
    assert MULTIWORKER_STRATEGY.traits("tensorflow:nccl") == replace(ring, nccl=True)


def test_there_are_no_helpers() -> None:
    assert MULTIWORKER_STRATEGY.helpers(one_task("tensorflow:ring", "exchange", ports=(5001,))) == []


def test_it_may_be_compiled() -> None:
    point = one_task("tensorflow:ring", "exchange", ports=(5001,)).point
    assert MULTIWORKER_STRATEGY.refuse(changed(point, compile=True)) is None


def test_options_are_read_from_words() -> None:
    given = {"bytes_per_pack": "1000000", "accumulate": "2"}
    assert read_options(MULTIWORKER_STRATEGY.options, given) == {"bytes_per_pack": 1_000_000, "accumulate": 2}
    assert read_options(MULTIWORKER_STRATEGY.options, {}) == {"bytes_per_pack": 0, "accumulate": 1}
    for wrong in ({"accumulate": "0"}, {"accumulate": "1.5"}, {"bytes_per_pack": "-1"}, {"bytes_per_pack": "x"}):
        with pytest.raises(UsageError, match=f"--option {next(iter(wrong))}="):
            read_options(MULTIWORKER_STRATEGY.options, wrong)


# ParameterServerStrategy before a worker starts: environment, helpers, options.

PS_STRATEGY = frameworks.load("tensorflow:ps")


def tasks_of(size: int = 2, *, servers: int = 1, **fields: Any) -> list[Task]:
    return paper_tasks.tasks(
        "tensorflow:ps", "exchange", size, servers=servers, **{"ports": count(5000), **fields}
    )


def test_environ_gives_each_process_its_place() -> None:
    task, _ = tasks_of(ports=(5000, 5001, 5002, 5003, 5004), servers=2)
    beside = [
        Server(launch_rank=0, host="a", place=Place(address=f"10.0.0.{9 + i}", interface="ib0"), port=600 + i)
        for i in (0, 1)
    ]
    task = replace(placed(task, ("10.0.0.1", "10.0.0.2"), "ib0"), servers=tuple(beside))
    cluster = {
        "chief": ["10.0.0.1:5000"],
        "worker": ["10.0.0.1:5001", "10.0.0.2:5002"],
        "ps": ["10.0.0.9:600", "10.0.0.10:601"],
    }
    places = {
        "worker": ("chief", 0),
        "server-1": ("ps", 1),
        "trainer-0": ("worker", 0),
        "trainer-1": ("worker", 1),
    }
    for role, (kind, index) in places.items():
        asked = PS_STRATEGY.environ(replace(task, role=role), {})
        assert json.loads(asked.pop("TF_CONFIG")) == {"cluster": cluster, "task": {"type": kind, "index": index}}
        assert asked == {**plain.ENVIRON, "GRPC_FAIL_FAST": "use_caller"}


def test_helpers_are_the_servers_and_a_trainer_for_each_rank() -> None:
    task, *_ = tasks_of(3, servers=2)
    assert PS_STRATEGY.helpers(task) == [
        Helper(name="server-0", server=0),
        Helper(name="server-1", server=1),
        Helper(name="trainer-0", rank=0, computes=True),
        Helper(name="trainer-1", rank=1, computes=True),
        Helper(name="trainer-2", rank=2, computes=True),
    ]


def test_traits_and_devices() -> None:
    wanted = Traits(drives="point", ports=1, rank_ports=True, servers=True, is_open=True, synchronous=False)
    assert PS_STRATEGY.traits("tensorflow:ps") == wanted
    assert PS_STRATEGY.devices("tensorflow:ps") == ("cpu", "cuda")


def test_xla_does_not_reach_the_servers() -> None:
    point = tasks_of()[0].point
    assert PS_STRATEGY.refuse(point) is None
    assert (PS_STRATEGY.refuse(changed(point, compile=True)) or "").startswith(
        "--compile: TensorFlow's XLA cannot"
    )


def test_ps_options_are_read_from_words() -> None:
    given = {"partition_min_bytes": "65536", "accumulate": "2"}
    assert read_options(PS_STRATEGY.options, given) == {"partition_min_bytes": 65_536, "accumulate": 2}
    assert read_options(PS_STRATEGY.options, {}) == {"partition_min_bytes": 0, "accumulate": 1}
    with pytest.raises(UsageError, match="--option partition_min_bytes=-1"):
        read_options(PS_STRATEGY.options, {"partition_min_bytes": "-1"})
