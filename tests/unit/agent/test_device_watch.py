"""Whose GPUs an agent reads while windows are measured: a rank's, a node's, a computing helper's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.agent.supervisor import Supervisor
from scaling.frameworks.base import Helper, Traits
from scaling.plan.placement import Slot
from scaling.plan.tasks import helper_task, rank_tasks, worker_tasks
from scaling.records.events import Announce, Exit, Ready, Window
from scaling.records.task import Clocks, Finish, Run, Task
from scaling.records.telemetry import Sample, Telemetry
from tests.support.fake_nvml import FakeGpu, Install, installer
from tests.support.points import make_point

POINT = make_point(
    strategy="fake:a", kind="exchange", world_size=3, round=0, model="digits-cnn", data="digits",
    device="cuda", batch_rule="weak", batch_size=32,
)  # fmt: skip
READY = Ready(import_s=1.0, build_s=1.0, parameters=1, gradient_bytes=4, device_name="x")
MEASURE = Run(windows=1, steps=1, measured=True)
WINDOW = Window(index=0, measured=True, steps=1, samples=1, start_s=0.0, end_s=1.0, end_unix_s=0.0)
THERMAL = 0x20
USED_J = (0.5, 2.0, 8.0, 32.0)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    yield from installer(monkeypatch)


@pytest.fixture
def gpus(install: Install) -> list[FakeGpu]:
    """Four of one host, of which the third is throttled; a point of three ranks takes the first three."""
    four = [FakeGpu(uuid=f"GPU-{bus}", bus=bus, throttle=THERMAL if bus == 2 else 0) for bus in range(4)]
    install(*four)
    return four


def tasks() -> tuple[Task, ...]:
    slots = [
        Slot(launch_rank=rank, host="node1", local_rank=rank, cpus=(), threads=1, device_index=rank)
        for rank in range(3)
    ]
    made = rank_tasks(POINT, slots, slots[:1], {}, attempt=1, retry=0, seed=1, clocks=Clocks(), logs="logs")
    return tuple(replace(task, counts_traffic=False) for task in made)


def watched(task: Task, gpus: Sequence[FakeGpu]) -> Telemetry:
    """What its agent read beside a child of this task, while each GPU used its energy of USED_J."""
    child: Any = SimpleNamespace(task=task, pid=os.getpid(), tell=lambda _: None, resume=lambda: None, reap=Exit)
    supervisor = Supervisor(child, {}, 0.0)
    is_worker = task.role == "worker"
    supervisor.heard(READY if is_worker else Announce(values={}), 1.0)
    (supervisor.tell if is_worker else supervisor.overhear)(MEASURE, 2.0)
    for gpu, used_j in zip(gpus, USED_J, strict=True):
        gpu.energy_mj += round(1000 * used_j)
    if is_worker:
        supervisor.heard(WINDOW, 3.0)
    else:
        supervisor.overhear(Finish(), 3.0)
    return supervisor.ended().telemetry


def read(telemetry: Telemetry) -> set[int | None]:
    return {sample.device_index for sample in telemetry.samples}


def throttled(telemetry: Telemetry) -> set[tuple[int | None, str]]:
    return {(sample.device_index, reason) for sample in telemetry.samples for reason in sample.throttle}


def test_a_rank_s_worker_is_watched_on_its_own_gpu(gpus: list[FakeGpu]) -> None:
    telemetry = watched(worker_tasks(tasks(), Traits())[1], gpus)
    assert (read(telemetry), telemetry.energy_j, throttled(telemetry)) == ({1}, 2.0, set())


def test_a_worker_that_drives_a_node_is_watched_on_all_its_gpus(gpus: list[FakeGpu]) -> None:
    (task,) = worker_tasks(tasks(), Traits(drives="node"))
    telemetry = watched(task, gpus)
    assert (read(telemetry), telemetry.energy_j) == ({0, 1, 2}, 10.5)
    assert throttled(telemetry) == {(2, "sw thermal")}
    assert [sample.device_index for sample in telemetry.samples] == [0, 0, 1, 1, 2, 2]


def test_a_part_of_the_energy_does_not_pass_for_the_whole(gpus: list[FakeGpu]) -> None:
    gpus[1].lacks = frozenset({"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"})
    (task,) = worker_tasks(tasks(), Traits(drives="node"))
    telemetry = watched(task, gpus)
    assert (read(telemetry), telemetry.energy_j) == ({0, 1, 2}, None)


def test_nor_where_a_gpu_cannot_be_reached(gpus: list[FakeGpu], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    (task,) = worker_tasks(tasks(), Traits(drives="node"))
    telemetry = watched(task, gpus)
    assert (read(telemetry), telemetry.energy_j) == ({0, 1}, None)


def test_helpers_that_compute_are_watched_on_their_gpus_and_their_coordinator_is_not(gpus: list[FakeGpu]) -> None:
    """So that no GPU counts twice."""
    (coordinator,) = worker_tasks(tasks(), Traits(drives="point"))
    helpers = [helper_task(tasks(), Helper(name=f"trainer-{r}", rank=r, computes=True)) for r in range(3)]
    alone = watched(coordinator, gpus)
    assert (alone.samples, alone.energy_j) == ((), None)
    found = [watched(helper, gpus) for helper in helpers]
    assert [read(telemetry) for telemetry in found] == [{0}, {1}, {2}]
    assert [telemetry.energy_j for telemetry in found] == [0.5, 2.0, 8.0]
    assert [throttled(telemetry) for telemetry in found] == [set(), set(), {(2, "sw thermal")}]


@pytest.mark.parametrize("helper", [Helper(name="server-0", server=0), Helper(name="scheduler")])
def test_a_server_is_watched_for_its_cpu_alone(gpus: list[FakeGpu], helper: Helper) -> None:
    telemetry = watched(helper_task(tasks(), helper), gpus)
    assert (telemetry.samples, telemetry.energy_j) == ((), None)
    assert telemetry.cpu_percent is not None


def test_a_sample_of_an_older_record_names_no_device() -> None:
    old = b'[1.5,98.0,650.5,1755.0,1024,61.0,["sw thermal"]]'
    sample = msgspec.json.decode(old, type=Sample)
    assert (sample.device_index, sample.temperature_c, sample.throttle) == (None, 61.0, ("sw thermal",))
