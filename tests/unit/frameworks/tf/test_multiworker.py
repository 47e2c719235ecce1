"""MultiWorkerMirroredStrategy before a worker starts: environment, what is missing, options."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import UsageError
from scaling.frameworks.base import Traits, read_options
from scaling.frameworks.tf import plain
from scaling.records.point import Kind
from tests.support import paper_tasks
from tests.support.paper_tasks import one_task
from tests.support.points import changed, placed

STRATEGY = frameworks.load("tensorflow:ring")


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
    ring = Traits(rank_ports=True, is_open=True, accuracy=("evaluate", "rate"))
    assert STRATEGY.traits("tensorflow:ring") == ring
    assert STRATEGY.traits("tensorflow:nccl") == replace(ring, nccl=True)


def test_there_are_no_helpers() -> None:
    assert STRATEGY.helpers(one_task("tensorflow:ring", "exchange", ports=(5001,))) == []


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
