"""Devices of a plan: which GPU is whose, CPUs near GPUs, the CPU as a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.agent import child
from scaling.agent.environment import child_environ
from scaling.frameworks.base import Traits
from scaling.hosts import gpus
from scaling.hosts.gpus import gather_gpus
from scaling.plan import plan
from scaling.plan.config import SweepConfig
from scaling.plan.placement import Slot, place_ranks, slots_of
from scaling.plan.plan import Plan
from scaling.plan.tasks import rank_tasks, worker_tasks
from scaling.records.events import Finished
from scaling.records.host import Gpu, HostInfo, Nic
from scaling.records.messages import Enrol
from scaling.records.network import ALONE
from scaling.records.point import Hardware, Point
from scaling.report.formats import terminal
from scaling.run.enrolment import by_name
from scaling.text import ranges
from tests.support import topologies
from tests.support.fake_nvml import Install
from tests.support.inline import Launch, enrol, host
from tests.support.plans import gpu_node, one_each, slices
from tests.support.points import TASK, changed, make_point
from tests.support.topologies import MATRICES

# What is decided from the GPUs that ranks see; tests/golden/plans.txt and refusals.txt have the rest.


def made(hosts: Sequence[HostInfo], strategy: str = "fake:a", **fields: Any) -> Plan:
    asked: dict[str, Any] = {"strategy": (strategy,), **fields}
    return plan.make(SweepConfig(**asked), [enrol(one) for one in hosts])


def test_the_header_counts_the_gpus_of_all_ranks() -> None:
    told: list[Enrol] = [enrol(one) for one in one_each(1)]
    joined = by_name(told)["n1"]
    assert [gpu.uuid for gpu in joined.gpus] == [f"GPU-n1-{number}" for number in range(4)]
    whole = gpu_node("n1", "0", "1", "2", "3")
    assert by_name([enrol(whole)] * 4)["n1"] is whole


def test_each_worker_is_shown_its_own_slice_alone() -> None:
    """CUDA shows a process one slice, so the second is number 0 of its process as well."""
    found = made([slices("n1", 3)] * 2)
    assert [slot.gpu for slot in found.slots] == ["MIG-n1-0", "MIG-n1-1"]
    point = found.cells[-1]
    tasks = rank_tasks(point, found.slots, (), {}, attempt=1, seed=1, logs="logs")
    assert [(task.device_index, task.device_indices, task.shown_gpu) for task in tasks] == [
        (0, (0,), "MIG-n1-0"),
        (0, (0,), "MIG-n1-1"),
    ]
    shown = [child_environ({"CUDA_VISIBLE_DEVICES": "0"}, task, {})["CUDA_VISIBLE_DEVICES"] for task in tasks]
    assert shown == ["MIG-n1-0", "MIG-n1-1"]
    assert "2 ranks on slices of GPUs (MIG)" in found.why


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("mxnet:dist_sync", [(0, "GPU-n1-0"), (0, "GPU-n1-1")]),
        ("mxnet:plain", [(0, "GPU-n1-0"), (0, "GPU-n1-1")]),
        ("mxnet:device", [(0, ""), (1, "")]),
        ("torch:nccl", [(0, ""), (1, "")]),
    ],
)
def test_a_framework_that_uses_gpu_0_as_well_is_shown_its_own_alone(
    strategy: str, expected: list[tuple[int, str]]
) -> None:
    """MXNet's kvstores pin memory for GPU 0. One process for all GPUs of a node needs them all."""
    found = made([gpu_node("n1", "0", "1")] * 2)
    point = replace(found.cells[-1], strategy=strategy, world_size=2)
    tasks = rank_tasks(point, found.slots, (), {}, attempt=1, seed=1, logs="logs")
    assert [(task.device_index, task.shown_gpu) for task in tasks] == expected


def test_whole_gpus_stay_visible() -> None:
    found = made([gpu_node("n1", "0", "1")] * 2)
    tasks = rank_tasks(found.cells[-1], found.slots, (), {}, attempt=1, seed=1, logs="logs")
    assert [(task.device_index, task.shown_gpu) for task in tasks] == [(0, ""), (1, "")]
    assert child_environ({"CUDA_VISIBLE_DEVICES": "0,1"}, tasks[0], {})["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "CUDA_VISIBLE_DEVICES" not in child_environ({}, tasks[0], {})


# Which CPUs a GPU's worker gets, on the topologies of real machines.


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
def test_cpus_of_one_socket_pin_no_rank(machine: HostInfo) -> None:
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


# The CPU beside GPUs: all cores of the first host, in fp32, apart from all else.


def beside_node(name: str, count: int = 2, cores: int = 8) -> HostInfo:
    found = tuple(
        Gpu(index=n, name="NVIDIA H100", uuid=f"GPU-{name}-{n}", memory_bytes=80 << 30, compute_capability=(9, 0))
        for n in range(count)
    )
    nic = Nic(name="eth0", address=f"10.0.0.{name[1:]}", netmask="255.255.255.0", up=True, mtu=1500)
    return host(
        name, cores=cores, gpus=found, boot_id=name, nics=(nic,), gpu_driver="580.95.05", memory_bytes=1 << 40
    )


TWO_NODES = [beside_node("n1")] * 2 + [beside_node("n2")] * 2


def beside_made(strategy: str = "torch:gloo", **fields: Any) -> Plan:
    asked = SweepConfig(strategy=(strategy,), baseline_device="cpu", **fields)
    return plan.make(asked, [enrol(one) for one in TWO_NODES])


def on_cpu(found: Plan) -> list[Point]:
    return [point for point in found.cells if point.hardware.device == "cpu"]


def test_it_is_the_plain_loop_on_all_cores_of_one_host_in_fp32() -> None:
    found = beside_made(batch_size=64)
    (point,) = on_cpu(found)
    assert (point.strategy, point.kind, point.world_size) == ("torch:plain", "solo", 1)
    assert point.hardware == Hardware(device="cpu", cores=8)
    assert point.hardware.label == "cpu (8 cores)"
    assert (point.workload.batch_size, point.workload.precision) == (64, "fp32")
    assert found.config.precision == "bf16"
    (task,) = rank_tasks(point, slots_of(point, found.slots), (), {"n1": ALONE}, attempt=1, logs="",
                         seed=1)  # fmt: skip
    assert (task.cpus, task.threads, task.hosts) == (tuple(range(8)), 8, ("n1",))
    assert found.hardware.device == "cuda"


def test_ranks_on_gpus_keep_their_share_of_the_cores() -> None:
    found = beside_made()
    (gpu, *_) = (point for point in found.cells if point.hardware.device == "cuda")
    assert all(slot.threads == 4 for slot in slots_of(gpu, found.slots))


def test_workers_on_gpus_are_never_forks_of_a_server_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Server:
        ready = True

        def fork(self, *_: object) -> str:
            return "forked"

    monkeypatch.setattr(child, "fresh", lambda *_: "fresh")
    starter, point = child.Starter({}), changed(TASK.point, strategy="torch:plain")
    both = [replace(TASK, point=changed(point, device=device)) for device in ("cpu", "cuda")]
    starter._servers[starter._key(both[0])] = Server()  # type: ignore[assignment]
    assert [str(starter.start(task, {}, child.Fds(0, 0, 0))) for task in both] == ["forked", "fresh"]


def test_the_table_says_how_many_times_as_fast_gpus_are(tmp_path: Path) -> None:
    """By the script: 20 ms a step, ten times that on the CPU, half as much again of exchange."""
    launch = Launch(2, [beside_node("n1")] * 2)
    option = ["step_s=0.02", "cpu_times=10", "fake:a.exchange_s=0.01"]
    found = launch.sweep(tmp_path, device="cuda", baseline_device="cpu", option=option, batch_size=32)
    assert all(isinstance(record.outcome, Finished) for record in found.records)
    text = terminal.render(found.header, found.records, color=False)
    assert "devices   cuda: 2 x NVIDIA H100; also Test CPU, all 8 cores" in text
    table = text.partition("GPUs over the CPU: fake")[2].partition("\n\n")[0]
    rows = [" ".join(line.split()) for line in table.splitlines() if line.strip()][2:]
    assert rows == [
        "cpu (8 cores) - fp32 160.0 ± 0.0 1.00",
        "fake:plain, alone 1 bf16 1600 ± 0 10.00 ± 0.00",
        "fake:a 1 bf16 1600 ± 0 10.00 ± 0.00",
        "fake:a 2 bf16 2133 ± 0 13.33 ± 0.00",
    ], text


def test_a_cpu_that_runs_out_of_memory_is_no_number_but_oom(tmp_path: Path) -> None:
    launch = Launch(1, [beside_node("n1")])
    option = ["fail=oom", "fail_kind=solo", "fail_cores=8"]
    found = launch.sweep(tmp_path, device="cuda", baseline_device="cpu", option=option, batch_size=32, rounds=1)
    text = terminal.render(found.header, found.records, color=False)
    table = text.partition("GPUs over the CPU: fake")[2].partition("\n\n")[0]
    cpu, *others = (" ".join(line.split()) for line in table.splitlines() if "fp32" in line or "bf16" in line)
    assert cpu.startswith("cpu (8 cores) - fp32 OOM [")
    assert all(line.endswith(" -") for line in others)
    (baseline,) = (line for line in text.splitlines() if "fake:plain, cpu (8 cores)" in line)
    assert "OOM" in baseline
