"""Parameter servers, tasks of ranks, addresses of names, energy counters and ignored flags of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.agent import watch
from scaling.frameworks.base import Helper, Traits
from scaling.plan import config, placement, plan
from scaling.plan.placement import Slot, crowding, place_ranks
from scaling.plan.tasks import helper_task, rank_tasks, wanted_ports, with_ports, worker_tasks
from scaling.records.events import Failed, Finished
from scaling.records.host import Gpu, HostInfo, Nic
from scaling.records.network import ALONE, Place
from scaling.records.point import Device, Kind
from scaling.records.run import PointRecord
from scaling.records.task import Clocks, Task
from scaling.run import flags, invocation
from tests.support.inline import Launch, enrol, host
from tests.support.points import POINT, make_point
from tests.support.powercap import Powercap

# Parameter servers and other helpers: how many, beside which agent, with which ports; what one worker that drives
# all devices is given; asynchronous points.

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
    wanted, numbers = wanted_ports(tasks, traits), count(5000)
    held = {slot: tuple(next(numbers) for _ in range(one.count)) for slot, one in enumerate(wanted)}
    return with_ports(tasks, traits, held)


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
    assert {one.launch_rank for one in wanted_ports(tasks, Traits(rank_ports=True))} == {0, 1, 2, 3}


def test_a_strategy_without_ports_gets_none() -> None:
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


# What ranks, workers and helpers of a point are told, from its slots alone.

PLACES = {f"node{n}": Place(address=f"10.0.0.{n}", interface="ib0") for n in (1, 2, 3)}


def slot(rank: int, host: str, local_rank: int) -> Slot:
    cpus = (2 * local_rank, 2 * local_rank + 1)
    return Slot(launch_rank=rank, host=host, local_rank=local_rank, cpus=cpus, threads=2, device_index=local_rank)


# Six ranks of a launch, two on each of three nodes.
SLOTS = tuple(slot(rank, f"node{1 + rank // 2}", rank % 2) for rank in range(6))


def tasks(slots: Sequence[Slot], servers: Sequence[Slot] = (), device: Device = "cpu") -> tuple[Task, ...]:
    point = make_point(
        strategy="some:ex/change", kind="exchange", world_size=len(slots), round=2, model="digits-cnn",
        data="digits", device=device, batch_rule="weak", batch_size=32,
    )  # fmt: skip
    return rank_tasks(
        point, slots, servers, PLACES, attempt=7, retry=1, seed=3, clocks=Clocks(stall_s=9.0), logs="run/logs"
    )


def test_ranks_count_inside_the_point_and_agents_in_the_launch() -> None:
    spread = tasks([SLOTS[2], SLOTS[4], SLOTS[3]])
    assert [(task.rank, task.launch_rank) for task in spread] == [(0, 2), (1, 4), (2, 3)]
    assert [(task.local_rank, task.local_world_size) for task in spread] == [(0, 2), (0, 1), (1, 2)]
    assert {task.hosts for task in spread} == {("node2", "node3", "node2")}
    assert {task.addresses for task in spread} == {("10.0.0.2", "10.0.0.3", "10.0.0.2")}
    assert [task.place.address for task in spread] == ["10.0.0.2", "10.0.0.3", "10.0.0.2"]
    assert spread[1].log == "run/logs/0007-some-ex-change-exchange-n3-r2.1.log"
    assert {(task.retry, task.seed, task.clocks.stall_s) for task in spread} == {(1, 3, 9.0)}


def test_ranks_of_one_host_meet_on_its_loopback_unless_a_server_is_elsewhere() -> None:
    assert {task.place for task in tasks(SLOTS[:2])} == {ALONE}
    served = tasks(SLOTS[:2], [SLOTS[4]])
    assert {task.place for task in served} == {PLACES["node1"]}
    assert {server.place for server in served[0].servers} == {PLACES["node3"]}


@pytest.mark.parametrize(("device", "cpus"), [("cpu", [(0, 1), (2, 3)]), ("cuda", [(), ()])])
def test_on_gpus_that_are_near_no_known_cpus_workers_keep_the_launcher_s_binding(
    device: Device, cpus: list[tuple[int, ...]]
) -> None:
    found = tasks(SLOTS[:2], device=device)
    assert [task.cpus for task in found] == cpus
    assert [(task.device_index, task.device_indices) for task in found] == [(0, (0,)), (1, (1,))]


def test_traffic_is_counted_beside_one_child_of_each_host_of_several() -> None:
    assert [task.counts_traffic for task in tasks(SLOTS[:2])] == [False, False]
    across = tasks(SLOTS[:4], [SLOTS[0], SLOTS[4]])
    assert [task.counts_traffic for task in across] == [True, False, True, False]
    shared, apart = (helper_task(across, Helper(name=f"server-{n}", server=n)) for n in (0, 1))
    assert (shared.counts_traffic, apart.counts_traffic) == (False, True)
    assert not helper_task(across, Helper(name="scheduler")).counts_traffic


def test_one_worker_may_drive_all_devices_of_its_host_or_none_itself() -> None:
    ranks = tasks(SLOTS[:2])
    assert worker_tasks(ranks, Traits()) == ranks
    (node,) = worker_tasks(ranks, Traits(drives="node"))
    assert (node.rank, node.cpus, node.device_indices) == (0, (0, 1, 2, 3), (0, 1))
    (coordinator,) = worker_tasks(tasks(SLOTS[:4]), Traits(drives="point"))
    assert (coordinator.rank, coordinator.cpus, coordinator.device_indices) == (0, (0, 1, 2, 3), ())


def test_a_helper_has_its_rank_s_device_only_where_it_computes() -> None:
    ranks = tasks(SLOTS[:2], [SLOTS[1]])
    trainer = helper_task(ranks, Helper(name="trainer-1", rank=1, computes=True))
    assert (trainer.role, trainer.cpus, trainer.device_indices) == ("trainer-1", (2, 3), (1,))
    for helper in (Helper(name="scheduler"), Helper(name="server-0", server=0)):
        task = helper_task(ranks, helper)
        assert (task.role, task.cpus, task.device_indices) == (helper.name, (), ())
        assert task.log.endswith(f".0.log.{helper.name}")


@pytest.mark.parametrize(
    ("kind", "crowded"), [("exchange", True), ("together", True), ("comm", True), ("each", False)]
)
def test_two_ranks_on_a_cpu_are_oversubscribed_unless_they_take_turns(kind: Kind, crowded: bool) -> None:
    hardware = replace(POINT.hardware, device="cpu")
    point = replace(POINT, kind=kind, world_size=2, hardware=hardware)
    assert bool(crowding(point, [SLOTS[0], replace(SLOTS[1], cpus=SLOTS[0].cpus)])) is crowded
    assert not crowding(point, SLOTS[:2])


# Beside which child a machine's energy is read: one of each machine that no other host of the launch shares.

COUNTED_ENERGY_POINT = make_point(
    strategy="fake:a", kind="exchange", world_size=4, round=0, model="digits-cnn", data="digits",
    device="cpu", batch_rule="weak", batch_size=32,
)  # fmt: skip


def counting(*kernels: str) -> list[bool]:
    hosts = [host(f"node{at}", boot_id=kernel) for at, kernel in enumerate(kernels) for _ in range(2)]
    slots = place_ranks([enrol(one) for one in hosts], None)
    places = {slot.host: ALONE for slot in slots}
    tasks = rank_tasks(COUNTED_ENERGY_POINT, slots, (), places, attempt=1, seed=1, logs="logs")
    return [task.counts_energy for task in tasks]


@pytest.mark.parametrize(
    ("kernels", "found"),
    [
        (("a",), [True, False]),
        (("a", "b"), [True, False, True, False]),
        (("a", "a"), [False] * 4),  # a lab, or containers
        (("a", "a", "b"), [False] * 4 + [True, False]),
        (("",), [False] * 2),
    ],
)
def test_one_child_of_each_machine_that_is_its_hosts_alone(kernels: tuple[str, ...], found: list[bool]) -> None:
    assert counting(*kernels) == found


def test_a_sweep_records_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Powercap(tmp_path / "powercap")
    monkeypatch.setattr(watch, "POWERCAP", tree.root)
    launch = Launch(2, [host(boot_id="a")] * 2)
    found = launch.sweep(tmp_path, strategy=["fake:a"], rounds=1, windows=3, kinds=["exchange"], window_s=0.01)

    def read(record: PointRecord) -> list[bool]:
        return [rank.telemetry.machine_energy is not None for rank in record.ranks]

    assert [read(record) for record in found.of()] == [[True]] and read(*found.of(size=2)) == [True, False]
    (energy,) = [rank.telemetry.machine_energy for rank in found.of()[0].ranks]
    assert energy is not None and energy.joules == 0.0 and energy.seconds > 0


# Flags that change nothing on the devices that were found.

GIB = 1 << 30
ON_CPU = host(cores=2, memory_bytes=512 * GIB)
ON_GPUS = host(
    cores=2,
    memory_bytes=512 * GIB,
    gpu_driver="580.95.05",
    gpus=tuple(
        Gpu(index=n, name="NVIDIA H100", uuid=f"GPU-{n}", memory_bytes=80 * GIB, compute_capability=(9, 0))
        for n in range(2)
    ),
)


def check(command: str, on: HostInfo, older: dict[str, Any] | None = None) -> plan.Plan:
    """What a command line plans on two ranks of this host, after its flags were looked at."""
    words = command.split()
    asked = flags.parse([*(() if "--strategy" in words else ("--strategy", "torch:gloo")), *words])
    made = plan.make(invocation.resolve(asked, older), [enrol(on)] * 2)
    plan.check_given(made, asked.given)
    return made


def test_what_memory_keeps_apart_is_no_mistake() -> None:
    small = host(cores=2, memory_bytes=GIB)
    assert not check("--interleave --world-sizes 1,2 --kinds exchange", small).side_by_side


def test_unneeded_settings_of_a_file_or_an_older_run_are_allowed(tmp_path: Path) -> None:
    older = {"malloc": "system", "fresh_workers": True, "interleave": True}
    check("--world-sizes 1 --kinds exchange", ON_GPUS, older)
    file = tmp_path / "run.toml"
    file.write_text("malloc = 'system'\nfresh_workers = true\ninterleave = true")
    check(f"--world-sizes 1 --kinds exchange --config {file}", ON_GPUS)
