"""Hosts of one kernel: containers, pods and nodes of a lab. Those that share cores share them out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from scaling.plan.placement import crowding, place_ranks
from tests.support.inline import enrol, host
from tests.support.points import TASK

FIRST, SECOND = tuple((core,) for core in range(8)), tuple((core,) for core in range(8, 16))


@pytest.mark.parametrize(
    ("pods", "ranks", "machines", "shared"),
    [
        ((FIRST, SECOND), 8, 2, False),  # a cpuset each
        ((FIRST, FIRST), 4, 1, False),  # the same cpuset
        ((FIRST, FIRST), 8, 1, True),
        ((FIRST, FIRST[:4]), 4, 1, False),  # one within the other
        ((FIRST, FIRST[:4]), 8, 1, True),
        ((FIRST[:4], FIRST[3:6], SECOND), 2, 2, False),
    ],
)
def test_pods_that_share_cores_are_one_machine(
    pods: Sequence[tuple[tuple[int, ...], ...]], ranks: int, machines: int, shared: bool
) -> None:
    hosts = [host(f"pod{index}", boot_id="kernel", cores=0) for index in range(len(pods))]
    enrolled = [
        enrol(replace(one, cores=cores)) for one, cores in zip(hosts, pods, strict=True) for _ in range(ranks)
    ]
    slots = place_ranks(enrolled, None)
    assert [slot.launch_rank for slot in slots] == list(range(len(enrolled)))
    assert len({slot.machine for slot in slots}) == machines
    point = replace(TASK.point, world_size=len(enrolled), kind="exchange")
    assert bool(crowding(point, slots)) is shared


@pytest.mark.parametrize(
    ("threads", "shared", "cpus"),
    [
        # mpirun --bind-to hwthread: cores of two threads, of which every rank may use one.
        ((0, 1), False, {(0,), (1,)}),
        ((0, 2), True, {(0, 2)}),
        ((0, 1, 2, 3), True, {(0, 2), (1, 3)}),
    ],
)
def test_hardware_threads_of_one_core_are_no_cores(
    threads: Sequence[int], shared: bool, cpus: set[tuple[int, ...]]
) -> None:
    enrolled = [
        enrol(replace(host("node", cores=0), cores=((thread,),), core_ids=(thread % 2,))) for thread in threads
    ]
    slots = place_ranks(enrolled, None)
    point = replace(TASK.point, world_size=len(threads), kind="exchange")
    assert bool(crowding(point, slots)) is shared
    assert {slot.cpus for slot in slots} == cpus


@pytest.mark.parametrize(
    ("quotas", "threads", "crowded"),
    [
        # Two ranks, each bound to a core of its own of eight: a cgroup's quota caps their sum.
        (({"a": 1.0}, {"a": 1.0}), 1, {1: False, 2: True}),
        (({"a": 0.5}, {"a": 0.5}), 1, {1: True, 2: True}),
        (({"a": 1.9}, {"a": 1.9}), 1, {1: False, 2: True}),
        (({"a": 2.0}, {"a": 2.0}), 1, {1: False, 2: False}),
        (({"a": 6.0}, {"a": 6.0}), 3, {1: False, 2: False}),
        (({"a": 1.0}, {"b": 1.0}), 1, {1: False, 2: False}),  # a container each
        (({"a": 1.0, "pod": 1.5}, {"b": 1.0, "pod": 1.5}), 1, {1: False, 2: True}),  # in one pod
        (({}, {}), 4, {1: False, 2: False}),
    ],
)
def test_ranks_of_a_cgroup_share_its_quota(
    quotas: tuple[dict[str, float], ...], threads: int, crowded: dict[int, bool]
) -> None:
    cores = (FIRST[:4], FIRST[4:])
    enrolled = [
        enrol(replace(host("node", cores=0), cores=own, cpu_quotas=quota))
        for own, quota in zip(cores, quotas, strict=True)
    ]
    slots = place_ranks(enrolled, None)
    assert {slot.threads for slot in slots} == {threads}
    for size, expected in crowded.items():
        point = replace(TASK.point, world_size=size, kind="exchange")
        assert bool(crowding(point, slots[:size])) is expected
    each = replace(TASK.point, world_size=2, kind="each")
    assert bool(crowding(each, slots)) is crowded[1]


def test_a_row_says_the_quota_that_its_ranks_exceed() -> None:
    enrolled = [enrol(replace(host("node", cores=0), cores=(core,), cpu_quotas={"a": 1.0})) for core in FIRST[:2]]
    slots = place_ranks(enrolled, None)
    assert "quota" in crowding(replace(TASK.point, world_size=2, kind="exchange"), slots)
