"""ParameterServerStrategy before a worker starts: environment, helpers, options."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import UsageError
from scaling.frameworks.base import Helper, Traits, read_options
from scaling.frameworks.tf import plain
from scaling.records.network import Place
from scaling.records.task import Server, Task
from tests.support import paper_tasks
from tests.support.points import changed, placed

STRATEGY = frameworks.load("tensorflow:ps")


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
        asked = STRATEGY.environ(replace(task, role=role), {})
        assert json.loads(asked.pop("TF_CONFIG")) == {"cluster": cluster, "task": {"type": kind, "index": index}}
        assert asked == {**plain.ENVIRON, "GRPC_FAIL_FAST": "use_caller"}


def test_helpers_are_the_servers_and_a_trainer_for_each_rank() -> None:
    task, *_ = tasks_of(3, servers=2)
    assert STRATEGY.helpers(task) == [
        Helper(name="server-0", server=0),
        Helper(name="server-1", server=1),
        Helper(name="trainer-0", rank=0, computes=True),
        Helper(name="trainer-1", rank=1, computes=True),
        Helper(name="trainer-2", rank=2, computes=True),
    ]


def test_traits_and_devices() -> None:
    wanted = Traits(drives="point", ports=1, rank_ports=True, servers=True, is_open=True, synchronous=False)
    assert STRATEGY.traits("tensorflow:ps") == wanted
    assert STRATEGY.devices("tensorflow:ps") == ("cpu", "cuda")


def test_xla_does_not_reach_the_servers() -> None:
    point = tasks_of()[0].point
    assert STRATEGY.refuse(point) is None
    assert (STRATEGY.refuse(changed(point, compile=True)) or "").startswith("--compile: TensorFlow's XLA cannot")


def test_options_are_read_from_words() -> None:
    given = {"partition_min_bytes": "65536", "accumulate": "2"}
    assert read_options(STRATEGY.options, given) == {"partition_min_bytes": 65_536, "accumulate": 2}
    assert read_options(STRATEGY.options, {}) == {"partition_min_bytes": 0, "accumulate": 1}
    with pytest.raises(UsageError, match="--option partition_min_bytes=-1"):
        read_options(STRATEGY.options, {"partition_min_bytes": "-1"})
