"""Which CPUs a GPU's worker gets, on the topologies of real machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from msgspec.structs import replace

from scaling.frameworks.base import Traits
from scaling.hosts import gpus
from scaling.hosts.gpus import gather_gpus
from scaling.plan.placement import Slot, place_ranks
from scaling.plan.tasks import rank_tasks, worker_tasks
from scaling.records.host import Gpu, HostInfo
from scaling.text import ranges
from tests.support import topologies
from tests.support.fake_nvml import Install, installer
from tests.support.inline import enrol, host
from tests.support.points import make_point
from tests.support.topologies import MATRICES


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    yield from installer(monkeypatch)


@pytest.fixture
def machine(request: pytest.FixtureRequest, install: Install, monkeypatch: pytest.MonkeyPatch) -> HostInfo:
    apart = topologies.threads_apart(request.param)

    def cores(cpus: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        by_core: dict[int, list[int]] = {}
        for cpu in sorted(cpus):
            by_core.setdefault(cpu % apart, []).append(cpu)
        return tuple(map(tuple, by_core.values()))

    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(2 * apart)))
    monkeypatch.setattr(gpus, "_grouped", cores)
    install(*topologies.fake_gpus(request.param))
    return host(cores=2, gpus=gather_gpus().gpus)


def placed(hosts: Iterable[HostInfo], cpus_per_rank: int | None = None) -> tuple[Slot, ...]:
    return place_ranks([enrol(one) for one in hosts], cpus_per_rank)


@pytest.mark.parametrize("machine", MATRICES, indirect=True)
def test_links_are_those_that_were_printed(machine: HostInfo, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["machine"]
    assert [gpu.links for gpu in machine.gpus] == topologies.matrix(name)
    assert [ranges(cpu for core in gpu.cores for cpu in core) for gpu in machine.gpus] == topologies.near(name)


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (
            "8 x H100",
            [
                "0-13,112-125", "14-27,126-139", "28-41,140-153", "42-55,154-167",
                "56-69,168-181", "70-83,182-195", "84-97,196-209", "98-111,210-223",
            ],
        ),
        ("4 x L40S", ["0-47,192-239", "48-95,240-287", "96-143,288-335", "144-191,336-383"]),
        ("5 x GeForce", ["8-15,24-31", "0-1,16-17", "2-3,18-19", "4-5,20-21", "6-7,22-23"]),
        ("2 x A100", ["48-55,176-183", "56-63,184-191"]),
        ("4 x T4", ["0-15,32-47", "16-20,48-52", "21-25,53-57", "26-30,58-62"]),
        (
            "8 x V100",
            [
                "0-5,48-53", "6-11,54-59", "12-17,60-65", "18-23,66-71",
                "24-29,72-77", "30-35,78-83", "36-41,84-89", "42-47,90-95",
            ],
        ),
    ],
    indirect=["machine"],
)  # fmt: skip
def test_a_numa_node_is_divided_among_its_gpus(machine: HostInfo, expected: list[str]) -> None:
    slots = placed([machine] * len(machine.gpus))
    assert [ranges(slot.near) for slot in slots] == expected
    assert [slot.near_cores for slot in slots] == [len(topologies.cpus(text)) // 2 for text in expected]


@pytest.mark.parametrize("machine", ["8 x H100"], indirect=True)
def test_a_rank_that_sees_its_own_gpu_alone_gets_the_same(machine: HostInfo) -> None:
    """As under a batch system that shows each rank one GPU."""
    all_seen = placed([machine] * 8)
    alone = placed([replace(machine, gpus=(gpu,)) for gpu in machine.gpus])
    assert [slot.near for slot in alone] == [slot.near for slot in all_seen]
    assert [slot.device_index for slot in alone] == [0] * 8


@pytest.mark.parametrize("machine", ["8 x H100"], indirect=True)
def test_two_hosts_are_divided_by_themselves(machine: HostInfo) -> None:
    hosts = [replace(machine, hostname=name, boot_id=name) for name in ("a", "b") for _ in range(4)]
    slots = placed(hosts)
    assert [ranges(slot.near) for slot in slots[:4]] == [ranges(slot.near) for slot in slots[4:]]
    assert ranges(slots[0].near) == "0-13,112-125"


@pytest.mark.parametrize("machine", ["8 x H100"], indirect=True)
def test_as_many_cores_as_were_asked_for(machine: HostInfo) -> None:
    one = replace(machine, cores=tuple((cpu, cpu + 112) for cpu in range(112)))
    slots = placed([one] * 8, 2)
    assert [ranges(slot.near) for slot in slots[3:6]] == ["6-7,118-119", "56-57,168-169", "58-59,170-171"]


def near_zero(count: int, cores: int) -> list[HostInfo]:
    found = tuple(
        Gpu(index=n, name="T", uuid=f"GPU-{n}", memory_bytes=1, cores=tuple((core,) for core in range(cores)))
        for n in range(count)
    )
    return [host(cores=2, gpus=found)] * count


def test_more_ranks_than_cores_share_them_all() -> None:
    """A core each, and none for the last, would be worse."""
    assert [slot.near for slot in placed(near_zero(3, 2))] == [(0, 1)] * 3


@pytest.mark.parametrize("machine", ["8 x H100"], indirect=True)
def test_cpus_of_one_socket_alone_pin_nobody(machine: HostInfo) -> None:
    """As where a batch system grants eight cores and eight GPUs: those on the other socket are near none of
    them."""
    granted = tuple(replace(gpu, cores=tuple(core for core in gpu.cores if core[0] < 8)) for gpu in machine.gpus)
    assert {slot.near for slot in placed([replace(machine, gpus=granted)] * 8)} == {()}
    first = placed([replace(machine, gpus=granted)] * 4)
    assert [ranges(slot.near) for slot in first] == ["0-1,112-113", "2-3,114-115", "4-5,116-117", "6-7,118-119"]


def tasks_of(slots: Iterable[Slot], device: str) -> list[tuple[tuple[int, ...], int]]:
    slots = list(slots)
    point = make_point(
        strategy="fake:a", kind="exchange", world_size=len(slots), round=0, model="m", data="d", device=device,
        batch_rule="weak", batch_size=1,
    )  # fmt: skip
    made = rank_tasks(point, slots, (), {}, attempt=1, seed=1, logs="logs")
    node = worker_tasks(made, Traits(drives="node"))
    assert node[0].cpus == tuple(cpu for task in made for cpu in task.cpus)
    return [(task.cpus, task.threads) for task in made]


def test_workers_on_gpus_are_pinned_near_them_and_no_others() -> None:
    slots = [replace(slot, threads=5) for slot in placed(near_zero(2, 4))]
    assert tasks_of(slots, "cuda") == [((0, 1), 2), ((2, 3), 2)], "and have no more threads than cores"
    assert tasks_of(slots, "emulated") == [((), 5), ((), 5)]
    assert tasks_of(slots, "cpu") == [((0,), 5), ((1,), 5)]


def test_without_knowledge_of_what_is_near_the_launcher_s_binding_stays() -> None:
    bare = [replace(one, gpus=tuple(replace(gpu, cores=()) for gpu in one.gpus)) for one in near_zero(2, 4)]
    assert tasks_of(placed(bare), "cuda") == [((), 1), ((), 1)]
