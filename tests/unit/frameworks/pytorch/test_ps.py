"""Parameter servers for PyTorch on the agent's side: where servers are, what they and workers are told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.frameworks.base import read_options
from scaling.frameworks.pytorch import ps
from scaling.plan import tasks
from scaling.records.network import Place
from scaling.records.task import Server
from tests.support import paper_tasks
from tests.support.points import changed, placed


def test_traits() -> None:
    for name, synchronous in (("torch:ps-sync", True), ("torch:ps-async", False)):
        found = ps.STRATEGY.traits(name)
        assert (found.servers, found.ports, found.rank_ports) == (True, 0, False)
        assert (found.drives, found.synchronous) == ("device", synchronous)


def test_a_helper_for_each_server_and_everybodys_own_interface() -> None:
    places = [
        Server(
            launch_rank=index,
            host=f"n{index}",
            place=Place(address=f"10.0.0.{index}", interface=f"ib{index}"),
            port=5000,
        )
        for index in range(3)
    ]
    (task,) = paper_tasks.tasks("torch:ps-sync", "exchange", 1)
    task = replace(placed(task, ["10.0.0.1"], "eth7"), servers=tuple(places))
    found = [(helper.name, helper.server, helper.computes) for helper in ps.STRATEGY.helpers(task)]
    assert found == [("server-0", 0, False), ("server-1", 1, False), ("server-2", 2, False)]
    assert ps.STRATEGY.environ(task, {}) == {"GLOO_SOCKET_IFNAME": "eth7"}
    for index, helper in enumerate(ps.STRATEGY.helpers(task)):
        assert ps.STRATEGY.environ(tasks.helper_task([task], helper), {}) == {"GLOO_SOCKET_IFNAME": f"ib{index}"}


def test_what_it_cannot_do() -> None:
    (task,) = paper_tasks.tasks("torch:ps-sync", "exchange", 1, options={"accumulate": "3"})
    assert (ps.STRATEGY.refuse(task.point) or "").startswith("--option accumulate=3: does not divide")
    point = replace(task.point, options={})
    for precision, reason in {"fp32": None, "tf32": None, "bf16": None, "fp16": "--precision fp16: "}.items():
        found = ps.STRATEGY.refuse(changed(point, precision=precision))
        assert (found is None) == (reason is None)
        assert (found or "").startswith(reason or "")


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("bucket_cap_mb=0", "number from 0.000001 to"),
        ("bucket_cap_mb=-1", "number from 0.000001 to"),
        ("bucket_cap_mb=inf", "number from 0.000001 to"),
        ("bucket_cap_mb=nan", "number from 0.000001 to"),
        ("compression=bf16", "none or fp16"),
        ("accumulate=0", "integer from 1 to"),
    ],
)
def test_options_that_are_none(option: str, expected: str) -> None:
    key, _, value = option.partition("=")
    with pytest.raises(UsageError, match=f"--option {option}: expected {expected}"):
        read_options(ps.STRATEGY.options, {key: value})


def test_what_workers_and_servers_agree_on() -> None:
    (task,) = paper_tasks.tasks(
        "torch:ps-async", "exchange", 1, options={"bucket_cap_mb": "3", "compression": "fp16"}
    )
    assert ps.terms(changed(task.point, shrink=2.0)) == ps.Terms(cap_mb=1.5, half=True, synchronous=False)
