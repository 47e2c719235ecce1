"""What ranks, workers and helpers of a point are told, from its slots alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from scaling.frameworks.base import Helper, Traits
from scaling.plan.placement import Slot, crowding
from scaling.plan.tasks import helper_task, rank_tasks, worker_tasks
from scaling.records.network import ALONE, Place
from scaling.records.point import Device, Kind
from scaling.records.task import Clocks, Task
from tests.support.points import POINT, make_point

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
