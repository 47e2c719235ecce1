"""Parameter servers and other helpers: how many, beside which agent, with which ports; what one worker that
drives all devices is given; asynchronous points."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from scaling.errors import UsageError
from scaling.frameworks.base import Helper, Traits
from scaling.plan import config, placement, plan, ports, validation
from scaling.plan.tasks import helper_task, rank_tasks
from scaling.records.events import Failed, Finished
from scaling.records.host import Nic
from scaling.records.run import PointRecord
from scaling.records.task import Clocks, Task
from tests.support.inline import Launch, enrol, host

QUICK: dict[str, Any] = {"rounds": 1, "windows": 3, "kinds": ["exchange"], "window_s": 0.01}


def four_nodes(ranks_each: int = 2) -> Launch:
    hosts = [
        host(
            f"node{number}",
            cores=4,
            nics=(Nic(name="ib0", address=f"10.0.0.{number}", netmask="255.255.255.0", up=True, mtu=1500),),
        )
        for number in range(1, 5)
        for _ in range(ranks_each)
    ]
    return Launch(len(hosts), hosts)


def servers_of(record: PointRecord) -> list[str]:
    return [helper.host for helper in record.helpers]


@pytest.mark.parametrize(
    ("asked", "size", "hosts"),
    [
        ({}, 2, ["node1"]),
        ({}, 8, ["node1", "node2", "node3", "node4"]),
        ({"servers": 3}, 4, ["node1", "node2", "node1"]),
        ({"server_hosts": "dedicated"}, 4, ["node3", "node4"]),
        ({"server_hosts": "dedicated", "servers": 3}, 2, ["node2", "node3", "node4"]),
        ({"server_hosts": "dedicated", "servers": 3}, 6, ["node4", "node4", "node4"]),
    ],
)
def test_where_servers_run(tmp_path: Path, asked: dict[str, Any], size: int, hosts: list[str]) -> None:
    found = four_nodes().sweep(tmp_path, strategy=["fake:ps"], world_sizes=[size], **asked, **QUICK)
    (record,) = found.of(size=size)
    assert isinstance(record.outcome, Finished)
    assert servers_of(record) == hosts
    assert record.point.servers == len(hosts)
    assert record.nodes == (size + 1) // 2
    assert not record.warnings


def test_without_a_node_left_servers_share_and_the_row_says_so(tmp_path: Path) -> None:
    found = four_nodes().sweep(tmp_path, strategy=["fake:ps"], world_sizes=[8], server_hosts="dedicated", **QUICK)
    (record,) = found.of(size=8)
    assert set(servers_of(record)) == {"node1", "node2", "node3", "node4"}
    assert "no node was left" in record.warnings[0].text


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"strategy": ["fake:a"], "servers": 2}, "--servers: none of fake:a has parameter servers"),
        ({"strategy": ["fake:a"], "server_hosts": "dedicated"}, "--server-hosts: none of fake:a"),
        ({"strategy": ["fake:ps"], "servers": 4, "server_hosts": "dedicated"}, "of 4 hosts at most 3"),
        ({"strategy": ["fake:node"], "world_sizes": [4]}, "4 devices are on 2 nodes"),
    ],
)
def test_what_no_launch_could_run_is_refused(asked: dict[str, Any], words: str) -> None:
    wanted = config.build({"device": "cpu", **asked}, source="test")
    with pytest.raises(UsageError, match=words):
        plan.make(wanted, four_nodes().enrolled)


def test_dedicated_servers_need_a_second_host() -> None:
    wanted = config.build({"device": "cpu", "strategy": ["fake:ps"], "server_hosts": "dedicated"}, source="test")
    with pytest.raises(UsageError, match="this launch has one host"):
        plan.make(wanted, [enrol(host())] * 2)


@pytest.mark.parametrize("text", [0, -1])
def test_how_many_servers_there_cannot_be(text: int) -> None:
    with pytest.raises(UsageError, match=r"--servers .* at least 1, or per-node"):
        validation.validate(config.build({"servers": text}, source="test"))


def test_a_number_of_servers_that_is_none() -> None:
    with pytest.raises(UsageError, match="servers"):
        config.build({"servers": "many"}, source="test")


def test_a_point_larger_than_a_node_is_refused_and_the_others_are_measured(tmp_path: Path) -> None:
    found = four_nodes().sweep(tmp_path, strategy=["fake:node", "fake:a"], world_sizes=[2, 4], **QUICK)
    outcomes = {
        (record.point.strategy, record.point.world_size): record.outcome
        for record in found.of(size=2) + found.of(size=4)
    }
    refused = outcomes.pop(("fake:node", 4))
    assert isinstance(refused, Failed)
    assert refused.cause == "refused"
    assert "4 devices are on 2 nodes" in refused.message
    assert set(map(type, outcomes.values())) == {Finished}


def test_one_worker_drives_the_devices_of_a_node(tmp_path: Path) -> None:
    launch = four_nodes()
    found = launch.sweep(tmp_path, strategy=["fake:node"], world_sizes=[2], **QUICK)
    (record,) = found.of(size=2)
    (rank,) = record.ranks
    assert rank.cpus == (0, 1, 2, 3)
    assert record.hosts == ("node1", "node1")
    steps = sum(window.steps for window in rank.windows)
    assert sum(window.samples for window in rank.windows) == steps * record.point.global_batch_size


def test_asynchronous_ranks_linger_and_tell_their_staleness(tmp_path: Path) -> None:
    found = Launch(3).sweep(tmp_path, strategy=["fake:async"], world_sizes=[3], **QUICK)
    (record,) = found.of(size=3)
    assert not record.synchronous
    assert {window.staleness for rank in record.ranks for window in rank.windows} == {2.0}


def test_digests_of_asynchronous_ranks_may_differ(tmp_path: Path) -> None:
    found = Launch(2).sweep(
        tmp_path, strategy=["fake:async", "fake:a"], world_sizes=[2], option=["fail=digest"], **QUICK
    )
    outcomes = {record.point.strategy: record.outcome for record in found.of(size=2)}
    assert isinstance(outcomes["fake:async"], Finished)
    assert isinstance(outcomes["fake:a"], Failed)


def made(traits: Traits, servers: int = 0) -> tuple[Task, ...]:
    launch = four_nodes()
    settings = config.build({"strategy": ["fake:ps"], "device": "cpu", "servers": servers or 1}, source="test")
    planned = plan.make(settings, launch.enrolled)
    point = next(one for one in planned.cells if one.world_size == 4 and one.kind == "exchange")
    mine = placement.slots_of(point, planned.slots)
    beside = placement.server_slots(point, mine, planned.slots) if servers else ()
    tasks = rank_tasks(
        point, mine, beside, planned.networks[0].places, attempt=1, retry=0, seed=1, clocks=Clocks(), logs="logs"
    )
    wanted, numbers = ports.wanted(tasks, traits), count(5000)
    held = {slot: tuple(next(numbers) for _ in range(one.count)) for slot, one in enumerate(wanted)}
    return ports.assigned(tasks, traits, held)


def test_every_rank_and_server_has_its_port_on_its_own_host() -> None:
    tasks = made(Traits(ports=2, rank_ports=True, servers=True), servers=3)
    assert {task.ports for task in tasks} == {(5000, 5001)}
    assert {task.rank_ports for task in tasks} == {(5002, 5003, 5004, 5005)}
    assert [(one.host, one.address, one.port) for one in tasks[0].servers] == [
        ("node1", "10.0.0.1", 5006),
        ("node2", "10.0.0.2", 5007),
        ("node1", "10.0.0.1", 5008),
    ]
    assert tasks[3].addresses == ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2")
    assert {one.launch_rank for one in ports.wanted(tasks, Traits(rank_ports=True))} == {0, 1, 2, 3}


def test_who_needs_no_ports_gets_none() -> None:
    tasks = made(Traits())
    assert (tasks[0].ports, tasks[0].rank_ports, tasks[0].servers) == ((), (), ())


def test_a_helper_has_no_cpus_of_its_own_unless_it_computes() -> None:
    tasks = made(Traits(servers=True), servers=2)
    server = helper_task(tasks, Helper(name="server-1", server=1))
    assert (server.role, server.cpus, server.launch_rank, server.place.interface) == ("server-1", (), 2, "ib0")
    computing = helper_task(tasks, Helper(name="trainer-3", rank=3, computes=True))
    assert (computing.cpus, computing.launch_rank) == (tasks[3].cpus, 3)
    assert computing.cpus
    assert computing.log.endswith(".3.log.trainer-3")
