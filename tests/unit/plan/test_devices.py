"""What is decided from the GPUs that ranks see: the device of a sweep, whose GPU is whose, what cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.agent.environment import child_environ
from scaling.errors import UsageError
from scaling.plan import placement, plan
from scaling.plan.config import SweepConfig
from scaling.plan.plan import Plan
from scaling.plan.tasks import rank_tasks
from scaling.records.host import Gpu, HostInfo, Nic
from scaling.records.messages import Enrol
from scaling.run.header import by_name
from tests.support.inline import enrol, host

NAME = "NVIDIA H100 80GB HBM3"
MISMATCH = "unusable: RM has detected an NVML/RM version mismatch."


def gpus(*uuids: str, parent: str = "", name: str = NAME) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(index=index, name=name, uuid=uuid, memory_bytes=1, parent=parent) for index, uuid in enumerate(uuids)
    )


def card(name: str) -> tuple[Nic, ...]:
    return (Nic(name="eth0", address=f"10.0.0.{name[1:]}", netmask="255.255.255.0", up=True, mtu=1500),)


def node(
    name: str, *uuids: str, driver: str = "580.95.05", reachable: int | None = None, **changes: Any
) -> HostInfo:
    found = gpus(*(f"GPU-{name}-{uuid}" for uuid in uuids))
    seen = len(uuids) if reachable is None else reachable
    return host(name, gpus=found, gpu_driver=driver, reachable_gpus=seen, boot_id=name, nics=card(name), **changes)


def made(hosts: Sequence[HostInfo], strategy: str = "fake:a", **fields: Any) -> Plan:
    asked: dict[str, Any] = {"strategy": (strategy,), **fields}
    return plan.make(SweepConfig(**asked), [enrol(one) for one in hosts])


def refused(hosts: Sequence[HostInfo], strategy: str = "fake:a", **fields: Any) -> str:
    with pytest.raises(UsageError) as error:
        made(hosts, strategy, **fields)
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------- which device


def cluster(*, broken: str, nodes: int = 4) -> list[HostInfo]:
    return [*(node(f"n{number}", "0") for number in range(1, nodes)), node(f"n{nodes}", driver=broken)]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (MISMATCH, "n4 has no NVIDIA GPU (NVML is unusable: RM has detected an NVML/RM version mismatch.)"),
        ("", "n4 has no NVIDIA GPU, n1 n2 n3 have one per rank"),
        ("580.95.05", "n4 has no NVIDIA GPU (driver 580.95.05 shows none: see CUDA_VISIBLE_DEVICES"),
    ],
)
def test_one_node_without_gpus_is_no_reason_to_measure_cpus(broken: str, said: str) -> None:
    message = refused(cluster(broken=broken))
    assert message.startswith("--device auto: ") and said in message
    assert "nvidia-smi says on n4" in message and message.endswith("use --device cpu")


def test_who_asks_for_cpus_gets_them_whatever_gpus_there_are() -> None:
    found = made(cluster(broken=MISMATCH), device="cpu")
    assert (found.device, found.why) == ("cpu", "--device cpu")


def test_a_rank_without_a_gpu_beside_others_that_have_one() -> None:
    """As where a batch system granted fewer GPUs than tasks."""
    message = refused([node("n1", "0"), node("n1", "1"), node("n1")])
    assert "n1 has no NVIDIA GPU (driver 580.95.05 shows none" in message


def test_gpus_that_were_asked_for_and_are_not_there() -> None:
    message = refused([node("n1", driver=MISMATCH)], device="cuda")
    assert message == f"--device cuda: n1 has no NVIDIA GPU (NVML is {MISMATCH}); use --device cpu"


@pytest.mark.parametrize(
    ("driver", "others", "why"),
    [
        ("", "", "no NVIDIA GPU on n1"),
        (MISMATCH, "", f"no NVIDIA GPU on n1 (NVML is {MISMATCH})"),
        ("", "AMD GPU found, not supported", "no NVIDIA GPU on n1 (AMD GPU found, not supported)"),
    ],
)
def test_hosts_without_any_gpu_measure_cpus_and_say_why(driver: str, others: str, why: str) -> None:
    found = made([node("n1", driver=driver, unsupported_gpus=others)] * 2)
    assert (found.device, found.why) == ("cpu", why)


def test_what_needs_gpus_is_refused_with_what_the_driver_says() -> None:
    message = refused([node("n1", driver=MISMATCH)], strategy="torch:nccl")
    because = f"no NVIDIA GPU on n1 (NVML is {MISMATCH})"
    assert message == f"--strategy torch:nccl: needs cuda, this launch runs on cpu ({because})"


def test_gpus_on_every_host() -> None:
    found = made([node("n1", "0", "1")] * 2 + [node("n2", "0", "1")] * 2)
    assert (found.device, found.why.partition("; ")[0]) == ("cuda", "every host has GPUs")


def test_gpus_of_different_kinds_are_told() -> None:
    slow = host("n2", gpus=gpus("GPU-b", name="Tesla V100-PCIE-32GB"), boot_id="n2", nics=card("n2"))
    assert f"they differ (1 x {NAME}, 1 x Tesla V100-PCIE-32GB)" in made([node("n1", "0"), slow]).why


# ---------------------------------------------------------------- one visible GPU per rank


def one_each(reachable: int) -> list[HostInfo]:
    """Four ranks of a node, each of which sees one of its GPUs and may open so many."""
    return [node("n1", str(number), reachable=reachable) for number in range(4)]


@pytest.mark.parametrize(("reachable", "told"), [(1, True), (4, False)])
def test_gpus_that_ranks_cannot_open_may_hinder_peer_access(reachable: int, *, told: bool) -> None:
    """With all GPUs open and one visible, CUDA still copies between processes directly."""
    why = made(one_each(reachable)).why
    assert ("--gpu-bind=none" in why) is told
    assert ("each rank on n1 may open one GPU alone" in why) is told


def test_one_gpu_and_one_rank_hinder_nobody() -> None:
    assert made([node("n1", "0")]).why.partition("; ")[0] == "every host has GPUs"


@pytest.mark.parametrize("mode", ["local", "device", "nccl"])
def test_one_process_cannot_drive_gpus_that_it_does_not_see(mode: str) -> None:
    message = refused(one_each(4), f"mxnet:{mode}", world_sizes=(2, 4))
    assert message.startswith(f"--strategy mxnet:{mode} at n2: one process drives the devices of one node")
    assert "rank 0 on n1 sees 1 of the 2 GPUs" in message
    assert message.endswith(
        "let every rank see all GPUs of its node (Slurm: --gpu-bind=none and no --gpus-per-task)"
    )


def test_one_process_drives_what_it_sees() -> None:
    found = made([node("n1", "0", "1", "2", "3")] * 4, "mxnet:device", world_sizes=(1, 4))
    assert found.refused == {}
    alone = made(one_each(4), "mxnet:device", world_sizes=(1, 4))
    assert all("sees 1 of the 4 GPUs" in why for why in alone.refused.values()), "a single rank still runs"
    assert {point.world_size for point in alone.cells if point.cell in alone.refused} == {4}


def test_the_header_counts_the_gpus_of_all_ranks() -> None:
    told: list[Enrol] = [enrol(one) for one in one_each(1)]
    joined = by_name(told)["n1"]
    assert [gpu.uuid for gpu in joined.gpus] == [f"GPU-n1-{number}" for number in range(4)]
    whole = node("n1", "0", "1", "2", "3")
    assert by_name([enrol(whole)] * 4)["n1"] is whole


# ---------------------------------------------------------------- GPUs that hosts share


def oversubscribed(found: Plan) -> set[tuple[str, int]]:
    return {
        (cell.kind, cell.world_size)
        for cell in found.cells
        if placement.crowding(cell, placement.slots_of(cell, found.slots))
    }


def test_ranks_of_two_hosts_may_share_a_gpu_and_claim_nothing() -> None:
    """Containers, or nodes of a lab."""
    hosts = [replace(node(name), gpus=gpus("GPU-a")) for name in ("n1", "n2")]
    found = made(hosts, "torch:nccl", world_sizes=(1, 2), kinds=("exchange", "solo", "each", "together"))
    assert oversubscribed(found) == {("exchange", 2), ("together", 2)}
    assert "n1 n2 share a GPU" in found.why
    apart = made([node("n1", "0"), node("n2", "0")], "torch:nccl", world_sizes=(1, 2))
    assert oversubscribed(apart) == set() and "share" not in apart.why


def test_slices_of_one_gpu_on_two_hosts_are_devices_of_their_own() -> None:
    hosts = [replace(node(name), gpus=gpus(f"MIG-{name}", parent="GPU-a")) for name in ("n1", "n2")]
    found = made(hosts, world_sizes=(1, 2))
    assert oversubscribed(found) == set() and "share a GPU" not in found.why


# ---------------------------------------------------------------- slices of a GPU (MIG)


def slices(name: str, count: int, *, of: str = "") -> HostInfo:
    uuids = [f"MIG-{name}{of}-{number}" for number in range(count)]
    return host(name, gpus=gpus(*uuids, parent=f"GPU-{name}{of}"), boot_id=name, reachable_gpus=1, nics=card(name))


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


def test_whole_gpus_stay_visible_as_they_were() -> None:
    found = made([node("n1", "0", "1")] * 2)
    tasks = rank_tasks(found.cells[-1], found.slots, (), {}, attempt=1, seed=1, logs="logs")
    assert [(task.device_index, task.shown_gpu) for task in tasks] == [(0, ""), (1, "")]
    assert child_environ({"CUDA_VISIBLE_DEVICES": "0,1"}, tasks[0], {})["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "CUDA_VISIBLE_DEVICES" not in child_environ({}, tasks[0], {})


@pytest.mark.parametrize("strategy", ["torch:nccl", "torch:horovod", "tensorflow:nccl", "tensorflow:horovod"])
def test_nccl_takes_no_two_slices_of_one_gpu(strategy: str) -> None:
    message = refused([slices("n1", 2)] * 2, strategy, world_sizes=(2,))
    assert "ranks 0 and 1 on n1 are on slices of one GPU (GPU-n1)" in message
    assert message.endswith("take one slice of each GPU, or a strategy without NCCL")


def test_nccl_takes_slices_of_several_gpus_and_one_rank() -> None:
    apart = [slices("n1", 1), slices("n2", 1)]
    assert made(apart, "torch:nccl", world_sizes=(1, 2)).refused == {}
    both = made([slices("n1", 2)] * 2, "torch:nccl", world_sizes=(1, 2))
    assert {(cell.kind, cell.world_size) for cell in both.cells if cell.cell in both.refused} == {("exchange", 2)}
    assert made([slices("n1", 2)] * 2, "torch:gloo").refused == {}


def test_a_process_drives_one_slice_only() -> None:
    message = refused([slices("n1", 2)] * 2, "mxnet:device", world_sizes=(2,))
    assert "sees one slice of a GPU only (n1)" in message
