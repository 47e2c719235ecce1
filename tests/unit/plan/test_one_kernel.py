"""Hosts of one kernel: containers, pods and nodes of a lab. Those that share cores share them out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from scaling.plan.placement import oversubscribed, place_ranks
from tests.support.inline import enrol, host
from tests.support.points import TASK

FIRST, SECOND = tuple((core,) for core in range(8)), tuple((core,) for core in range(8, 16))


@pytest.mark.parametrize(
    ("pods", "ranks", "machines", "shared"),
    [
        ((FIRST, SECOND), 8, 2, False),  # a cpuset each
        ((FIRST, FIRST), 4, 1, False),  # a quota of 8 each, and no cpusets: the first 8 of all
        ((FIRST, FIRST), 8, 1, True),
        ((FIRST, FIRST[:4]), 4, 1, False),  # quotas of 8 and of 4
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
    assert oversubscribed(point, slots) is shared


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
    assert oversubscribed(point, slots) is shared
    assert {slot.cpus for slot in slots} == cpus
