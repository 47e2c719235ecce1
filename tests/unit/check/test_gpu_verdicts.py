"""GPUs' health and drivers -> verdicts: each planted fault is named, alone, with its GPU and its mend."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scaling.records.host import GpuHost, Hca
from scaling.tools.check.verdicts.devices import ALIKE, FAULTS
from tests.support.check_facts import FOUR, facts, gpu, gpu_facts, ok, only, to_mend

CARD = {name: {"hcas": (Hca(name="mlx5_0", port=1, link_layer="InfiniBand", active=True),)} for name in FOUR}


def test_sound_gpus_have_nothing_to_mend() -> None:
    found = gpu_facts()
    assert to_mend(found) == []
    assert ok(found, "gpu health") == [
        "compute capability 8.0, PCIe 4 x16, 1410 MHz, 400 W, ECC on, persistence on on node1, node2, node3, node4"
    ]
    assert ok(found, "gpu driver") == ["550.54, CUDA 12.4 on node1, node2, node3, node4"]


def test_what_nvml_does_not_tell_is_not_blamed() -> None:
    unknown = dict.fromkeys((
        "is_persistent", "is_mig", "is_ecc", "uncorrected_errors", "is_repair_pending", "is_repair_failed",
        "pcie_generation", "pcie_generation_max", "pcie_generation_own", "pcie_width", "pcie_width_max",
        "sm_mhz_max", "application_sm_mhz", "default_sm_mhz", "power_limit_w", "default_power_limit_w",
    ))  # fmt: skip
    silent = {**unknown, "compute_mode": "", "compute_capability": ""}
    found = gpu_facts({(node, index): silent for node in FOUR for index in range(2)})
    assert to_mend(found) == []
    assert ok(found, "gpu health") == ["NVML reports nothing on node1, node2, node3, node4"]
    assert to_mend(gpu_facts({("node2", 1): silent})) == []


def test_gpus_that_do_not_answer_are_an_error_even_where_none_does() -> None:
    driver = GpuHost(lost=("GPU 0: GPU is lost", "GPU 1: Unknown Error"))
    verdict = only(facts(each=2, told={"node2": {"driver": driver}}))
    assert (verdict.level, verdict.topic) == ("error", "gpu health")
    assert verdict.text.endswith("do not answer: GPU 0: GPU is lost, GPU 1: Unknown Error on node2")
    assert "dmesg" in verdict.mend


def test_switches_without_redirects_are_reported() -> None:
    found = gpu_facts({(node, index): {"acs_redirects": ()} for node in FOUR for index in range(2)})
    assert to_mend(found) == []
    (text,) = ok(found, "gpu health")
    assert ", PCIe 4 x16, no ACS redirects, 1410 MHz" in text


PLANTED: list[tuple[dict[str, Any], str, str, str]] = [
    ({"fabric": "in progress"}, "error", "NVLink's fabric is not set up", "nvidia-fabricmanager"),
    ({"fabric": "completed", "fabric_fault": "Unknown Error"}, "error", "NVLink's fabric", "nvidia-fabricmanager"),
    ({"compute_mode": "Prohibited"}, "error", "the compute mode forbids all processes", "nvidia-smi -c DEFAULT"),
    ({"is_repair_failed": True}, "error", "memory is broken", "replaced"),
    ({"uncorrected_errors": 7}, "error", "uncorrected memory errors", "nvidia-smi -r"),
    ({"is_repair_pending": True}, "warning", "broken memory is repaired at the next reset", "nvidia-smi -r"),
    ({"pcie_width": 8}, "warning", "the PCIe link has lost lanes: x8 of x16", "nvidia-smi -q -d PCIE"),
    (
        {"pcie_generation_max": 3},
        "warning",
        "the PCIe slot is slower than the GPU: generation 3 of 4",
        "another slot",
    ),
    (
        {"acs_redirects": ("0000:3a:00.0",)},
        "warning",
        "ACS sends its traffic to other GPUs and RDMA cards through the root complex: 0000:3a:00.0",
        "setpci -s PORT ECAP_ACS+6.w=0000",
    ),
    ({"processes": ("python3",)}, "warning", "other processes use the GPU: python3", "--exclusive"),
    ({"compute_mode": "Exclusive_Process"}, "warning", "only one process at a time", "nvidia-smi -c DEFAULT"),
    ({"is_mig": True}, "warning", "MIG divides the GPU", "nvidia-smi -mig 0"),
    (
        {"application_sm_mhz": 1005},
        "warning",
        "clocks differ from the default: 1005 MHz, by default 1155",
        "nvidia-smi -rac",
    ),
    ({"is_persistent": False}, "warning", "persistence mode is off", "nvidia-smi -pm 1"),
    ({"sm_mhz_max": 1200}, "warning", "GPUs of one kind differ in the highest clock: 1410 MHz on", "CLOCK"),
    ({"is_ecc": False}, "warning", "GPUs of one kind differ in ECC", "nvidia-smi -e 1"),
]


@pytest.mark.parametrize(("changes", "level", "text", "mend"), PLANTED)
def test_each_fault_is_named_with_its_gpu(changes: dict[str, Any], level: str, text: str, mend: str) -> None:
    verdict = only(gpu_facts({("node3", 1): changes}))
    assert (verdict.level, verdict.topic) == (level, "gpu health")
    assert verdict.text.startswith(text)
    assert "node3 GPU 1" in verdict.text
    assert mend in verdict.mend
    assert ok(gpu_facts({("node3", 1): changes}), "gpu health") == []


def test_a_slot_with_fewer_lanes_shows_beside_the_others() -> None:
    """NVML's most is that of GPU and slot together: alone such a GPU looks well."""
    verdict = only(gpu_facts({("node3", 0): {"pcie_width": 8, "pcie_width_max": 8}}))
    assert verdict.text == (
        "GPUs of one kind differ in PCIe lanes: x16 on node1, node2, node3 GPU 1, node4; x8 on node3 GPU 0"
    )


def test_a_power_limit_of_one_is_named_and_that_of_all_too() -> None:
    capped, differ = to_mend(gpu_facts({("node2", 0): {"power_limit_w": 250.0}}))
    assert capped.text == "the power limit is below the default: 250 of 400 W on node2 GPU 0"
    assert differ.text.startswith("GPUs of one kind differ in the power limit: 400 W on node1, node2 GPU 1, ")
    every = gpu_facts({(node, index): {"power_limit_w": 250.0} for node in FOUR for index in range(2)})
    assert only(every).text.endswith("250 of 400 W on node1, node2, node3, node4")


def test_every_fault_and_every_difference_has_a_test() -> None:
    """Two have one of their own above."""
    begun = [text.partition(":")[0] for _, _, text, _ in PLANTED]
    alike = [f"GPUs of one kind differ in {like.what}" for like in ALIKE]
    untested = [
        text
        for text in [*(fault.text for fault in FAULTS), *alike]
        if not any(text.startswith(start) for start in begun)
    ]
    assert untested == [
        "the power limit is below the default",
        "GPUs of one kind differ in PCIe lanes",
        "GPUs of one kind differ in the power limit",
    ]


def test_gpus_of_other_kinds_are_not_compared() -> None:
    other = {"name": "NVIDIA A40", "sm_mhz_max": 1740, "power_limit_w": 300.0, "default_power_limit_w": 300.0}
    (verdict,) = to_mend(gpu_facts({(node, 1): other for node in FOUR}))
    assert (verdict.level, verdict.topic) == ("warning", "gpus")
    assert verdict.text.startswith("GPUs of several kinds: 1 x NVIDIA A100-SXM4-80GB + 1 x NVIDIA A40 on every")
    assert "CUDA_VISIBLE_DEVICES" in verdict.mend


def test_gpus_that_only_some_ranks_see_are_counted_together() -> None:
    sound = gpu_facts({("node2", 1): {"uncorrected_errors": 1}})
    shown = [
        replace(rank, driver=replace(rank.driver, gpus=rank.driver.gpus[number % 2 : number % 2 + 1]))
        for number, rank in enumerate(sound.ranks)
    ]
    assert "1 on node2 GPU 1" in only(replace(sound, ranks=tuple(shown))).text


# ---------------------------------------------------------------- which, and how they reach each other


def test_gpus_that_reach_each_other() -> None:
    four = tuple(gpu(index) for index in range(4))
    found = facts(each=4, hosts={name: {"gpus": four, "gpu_driver": "550.1"} for name in FOUR})
    assert to_mend(found) == []
    assert ok(found, "gpus") == ["4 x Tesla P100 on every node"]
    assert ok(found, "gpu topology") == ["every GPU reaches every other one of its node (PIX)"]


def test_a_node_without_gpus() -> None:
    hosts = {name: {"gpus": (gpu(0, of=1),)} for name in FOUR[:3]}
    verdict = only(facts(hosts=hosts))
    assert (verdict.level, verdict.topic) == ("error", "gpus")
    assert "none on node4" in verdict.text


def test_a_node_with_other_gpus() -> None:
    hosts = {name: {"gpus": (gpu(0, of=1),)} for name in FOUR[:3]} | {
        "node4": {"gpus": (gpu(0, of=1, name="K80"),)}
    }
    verdict = only(facts(hosts=hosts))
    assert (verdict.level, verdict.text.split("; ")[-1]) == ("warning", "1 x K80 on node4")


def test_more_ranks_than_gpus() -> None:
    verdict = only(facts(each=2, hosts={name: {"gpus": (gpu(0, of=1),)} for name in FOUR}))
    assert "2 ranks on 1 on node1" in verdict.text


def test_nodes_that_see_the_same_gpu() -> None:
    uuids = {"node1": "GPU-a", "node2": "GPU-a", "node3": "GPU-b", "node4": "GPU-c"}
    hosts = {name: {"gpus": (gpu(0, of=1, uuid=uuid),)} for name, uuid in uuids.items()}
    verdict = only(facts(hosts=hosts))
    assert (verdict.level, verdict.topic) == ("warning", "gpus")
    assert "node1, node2" in verdict.text and "node3" not in verdict.text and "OVERSUBSCRIBED" in verdict.text


def test_gpus_shown_to_one_rank_each_are_counted_together() -> None:
    sound = facts(each=2)
    shown = [replace(rank.host, gpus=(gpu(0, of=1, uuid=f"GPU-{n}"),)) for n, rank in enumerate(sound.ranks)]
    told = tuple(replace(rank, host=host) for rank, host in zip(sound.ranks, shown, strict=True))
    assert to_mend(replace(sound, ranks=told)) == []


def test_pairs_of_gpus_without_peer_access() -> None:
    paired = tuple(gpu(index, peers=(index - index % 2, index - index % 2 + 1)) for index in range(4))
    verdict = only(facts(each=4, hosts={name: {"gpus": paired} for name in FOUR}))
    assert (verdict.level, verdict.topic) == ("warning", "gpu topology")
    assert "0-2 (SYS), 0-3 (SYS), 1-2 (SYS), 1-3 (SYS) on node1" in verdict.text


def test_a_driver_that_does_not_work() -> None:
    hosts = {name: {"gpu_driver": "unusable: Driver/library version mismatch"} for name in FOUR}
    verdict = only(facts(hosts=hosts))
    assert (verdict.level, verdict.topic) == ("error", "gpus")


# ---------------------------------------------------------------- the driver


def test_a_driver_that_is_too_old_for_torch() -> None:
    driver = {"node2": {"cuda": "12.2"}}
    new = {node: {"cuda": "13.0"} for node in FOUR} | driver
    found = gpu_facts(driver=new, told={node: {"built_for_cuda": "13.0"} for node in FOUR})
    verdict = only(found)
    assert (verdict.level, verdict.topic) == ("error", "gpu driver")
    assert verdict.text == "too old for torch: torch needs CUDA 13.0, driver 550.54 supports 12.2 on node2"
    assert "driver 580 or newer" in verdict.mend
    assert "./launch/install --cuda 12 torch" in verdict.mend


@pytest.mark.parametrize(("torch", "runs"), [("12.6", "12.2"), ("11.8", "13.0"), ("13.0", "")])
def test_a_driver_runs_every_release_of_its_major_and_older_ones(torch: str, runs: str) -> None:
    found = gpu_facts(
        driver={node: {"cuda": runs} for node in FOUR}, told={node: {"built_for_cuda": torch} for node in FOUR}
    )
    assert to_mend(found) == []


def test_torch_without_cuda_beside_gpus() -> None:
    verdict = only(gpu_facts(told={"node4": {"built_for_cuda": ""}}))
    assert (verdict.level, verdict.topic) == ("warning", "gpu driver")
    assert "no CUDA on node4" in verdict.text
    assert to_mend(gpu_facts(told={node: {"built_for_cuda": None} for node in FOUR})) == []  # no torch at all


# ---------------------------------------------------------------- GPUDirect RDMA


@pytest.mark.parametrize(
    ("driver", "kernel", "way"),
    [
        ({"peer_memory": "nvidia_peermem", "is_open": False}, "5.4.0-150", "nvidia_peermem"),
        ({"is_open": True}, "5.15.0-100-generic", "DMA-BUF"),
        ({"is_open": None}, "6.1", ""),
    ],
)
def test_rdma_cards_that_may_reach_the_gpus(driver: dict[str, Any], kernel: str, way: str) -> None:
    hosts = {node: {**CARD[node], "kernel": kernel} for node in FOUR}
    found = gpu_facts(driver=dict.fromkeys(FOUR, driver), hosts=hosts)
    assert to_mend(found) == []
    said = [f"RDMA cards can reach the GPUs: {way} on node1, node2, node3, node4"] if way else []
    assert ok(found, "gpu direct") == said


@pytest.mark.parametrize(
    ("driver", "kernel", "why"),
    [
        ({"is_open": False}, "6.8.0", "no nvidia_peermem, closed kernel modules on node2"),
        ({"is_open": True}, "5.4.0-150", "no nvidia_peermem, the open kernel modules on Linux 5.4.0-150 on node2"),
    ],
)
def test_rdma_cards_that_cannot_reach_the_gpus(driver: dict[str, Any], kernel: str, why: str) -> None:
    drivers = {node: {"peer_memory": "nvidia_peermem"} for node in FOUR} | {"node2": driver}
    verdict = only(gpu_facts(driver=drivers, hosts={**CARD, "node2": {**CARD["node2"], "kernel": kernel}}))
    assert (verdict.level, verdict.topic) == ("warning", "gpu direct")
    assert verdict.text.endswith(why)
    assert verdict.mend.startswith("modprobe nvidia_peermem")


def test_rdma_to_gpus_does_not_matter_without_cards_on_one_node_or_for_geforce() -> None:
    closed = {node: {"is_open": False} for node in FOUR}
    assert to_mend(gpu_facts(driver=closed)) == []
    assert to_mend(gpu_facts(driver=closed, hosts=CARD, nodes=FOUR[:1])) == []
    names = {(node, index): {"name": "NVIDIA GeForce RTX 4090"} for node in FOUR for index in range(2)}
    assert to_mend(gpu_facts(names, driver=closed, hosts=CARD)) == []


# ---------------------------------------------------------------- what a rank reaches


def test_ranks_that_reach_their_own_gpu_alone() -> None:
    sound = gpu_facts()
    shown = []
    for number, rank in enumerate(sound.ranks):
        own = slice(number % 2, number % 2 + 1)
        host = replace(rank.host, gpus=rank.host.gpus[own])
        shown.append(replace(rank, host=host, driver=replace(rank.driver, gpus=rank.driver.gpus[own])))
    # CUDA_VISIBLE_DEVICES alone hides the others from frameworks, not from NCCL.
    assert to_mend(replace(sound, ranks=tuple(shown))) == []
    walled = [replace(rank, driver=replace(rank.driver, reachable=1)) for rank in shown]
    verdict = only(replace(sound, ranks=tuple(walled)))
    assert (verdict.level, verdict.topic) == ("warning", "gpus")
    assert verdict.text.endswith("2 ranks on node1, node2, node3, node4")
    assert "--gpu-bind=none" in verdict.mend


def test_geforce_cards_without_peer_access_are_as_they_are_made() -> None:
    apart = tuple(gpu(index, peers=(index,), name="NVIDIA GeForce RTX 4090") for index in range(4))
    found = facts(each=4, hosts={name: {"gpus": apart} for name in FOUR})
    assert to_mend(found) == []
    assert ok(found, "gpu topology") == [
        "GeForce cards have no peer access by design: NCCL copies through host memory"
    ]
