"""GPUs through the real nvidia-ml-py and ctypes, over a libnvidia-ml.so.1 that is ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import nvml_library
from tests.support.nvml_library import Ask


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    with nvml_library.asking(nvml_library.build(tmp_path_factory.mktemp("nvml"))) as asking:
        yield asking


def column(found: dict[str, Any], name: str) -> list[Any]:
    return [gpu[name] for gpu in found["gpus"]]


def samples(found: dict[str, Any]) -> list[list[Any]]:
    return [sample[1:] for sample in found["telemetry"][0]["samples"]]


def test_eight_gpus_behind_nvswitches(ask: Ask) -> None:
    found = ask("a100")
    assert (len(found["gpus"]), found["driver"], found["reachable"]) == (8, "550.54.15", 8)
    first = found["gpus"][0]
    assert (first["name"], first["uuid"]) == ("NVIDIA A100-SXM4-80GB", "GPU-00000001-0000")
    assert (first["memory_bytes"], first["power_limit_w"], first["max_sm_clock_mhz"]) == (80 << 30, 400.0, 1410)
    assert column(found, "compute_capability") == [[8, 0]] * 8
    assert column(found, "links")[5] == ["NV12"] * 5 + ["self"] + ["NV12"] * 2
    assert column(found, "p2p") == [[True] * 8] * 8


def test_the_cores_near_a_gpu_are_those_that_the_process_may_use(ask: Ask) -> None:
    """The library says: CPUs of even numbers near the first four, of odd ones near the others."""
    found = ask("h100")
    near = [{cpu for core in cores for cpu in core} for cores in column(found, "cores")]
    mine = {cpu for cpu in os.sched_getaffinity(0) if cpu < 64}
    assert near == [{cpu for cpu in mine if cpu % 2 == 0}] * 4 + [{cpu for cpu in mine if cpu % 2}] * 4


def test_readings_of_a_card_at_its_power_limit(ask: Ask) -> None:
    found = ask("a100")
    assert samples(found) == [[97, 398.5, 1200, 1 << 30, 66, ["sw power cap"], 0]] * 2
    telemetry = found["telemetry"][3]
    assert (telemetry["max_sm_clock_mhz"], telemetry["energy_j"]) == (1410, 1.0)


def test_readings_of_a_hot_card(ask: Ask) -> None:
    assert samples(ask("hot"))[0][5] == ["hw slowdown", "hw thermal"]


def test_geforce_cards_have_no_peer_access_and_no_nvlink(ask: Ask) -> None:
    found = ask("geforce")
    assert column(found, "links") == [["self", "PHB"], ["PHB", "self"]]
    assert column(found, "p2p") == [[True, False], [False, True]]


def test_slices_of_a_gpu_beside_a_whole_one(ask: Ask) -> None:
    found = ask("mig")
    assert column(found, "uuid") == ["MIG-0-0", "MIG-0-1", "GPU-00000002-0000"]
    assert column(found, "parent") == ["GPU-00000001-0000", "GPU-00000001-0000", ""]
    assert column(found, "memory_bytes") == [40 << 30, 40 << 30, 80 << 30]
    assert column(found, "compute_capability") == [[8, 0]] * 3
    assert column(found, "cores")[0] == column(found, "cores")[2], "near as the GPU itself"
    assert samples(found)[0] == [None, None, None, 1 << 30, None, [], 0], "what a slice tells of itself"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("MIG-0-1", ["MIG-0-1"]),
        ("0", ["MIG-0-0", "MIG-0-1"]),
        ("1", ["GPU-00000002-0000"]),
        ("GPU-00000002", ["GPU-00000002-0000"]),
        ("MIG-9-9,1", []),
    ],
)
def test_visible_devices_by_every_kind_of_name(ask: Ask, visible: str, expected: list[str]) -> None:
    assert column(ask("mig", visible=visible), "uuid") == expected


def test_a_driver_that_answers_nothing_that_it_may_refuse(ask: Ask) -> None:
    found = ask("bare")
    assert column(found, "name") == ["Tesla K80"] * 2
    assert column(found, "links") == [["self", "?"], ["?", "self"]]
    for name, unknown in (
        ("memory_bytes", 0),
        ("power_limit_w", None),
        ("cores", []),
        ("compute_capability", None),
    ):
        assert column(found, name) == [unknown] * 2
    assert [(one["samples"], one["energy_j"]) for one in found["telemetry"]] == [([], None)] * 2


def test_a_driver_without_newer_functions(tmp_path: Path) -> None:
    """No CPU affinity by scope, no event reasons by that name, no MIG."""
    old = nvml_library.build(tmp_path, "-DOLD")
    with nvml_library.asking(old) as ask:
        found = ask("a100")
        assert samples(found)[0][5] == ["sw power cap"]
        assert column(found, "cores") == column(ask("h100"), "cores") != [[]] * 8
        assert column(ask("mig"), "parent") == ["", ""]


def test_check_has_its_verdicts_by_a_driver_without_newer_functions(tmp_path: Path) -> None:
    old = nvml_library.build(tmp_path, "-DOLD")
    done = subprocess.run(
        [sys.executable, "-m", "scaling", "check", "--no-all-reduce", "--no-device-rates"],
        env=nvml_library.environ(old, "a100"), cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert "Traceback" not in done.stderr and done.returncode < 2, done.stderr
    assert "8 x NVIDIA A100-SXM4-80GB" in done.stdout, done.stdout


def test_gpus_that_a_cgroup_keeps_from_the_process_do_not_count(ask: Ask) -> None:
    found = ask("cgroup")
    assert (column(found, "uuid"), found["reachable"]) == (["GPU-00000003-0000"], 1)


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ("mismatch", "unusable: RM has detected an NVML/RM version mismatch."),
        ("unloaded", "unusable: Driver Not Loaded"),
    ],
)
def test_a_driver_that_does_not_work_is_told_in_its_words(ask: Ask, machine: str, said: str) -> None:
    found = ask(machine)
    assert (found["driver"], found["gpus"], found["missing"]) == (said, [], {})


def test_an_agent_initialises_nvml_once(ask: Ask, tmp_path: Path) -> None:
    """Enrolment asks for the host, each strategy for what it needs, and a probe for each GPU: without persistence
    mode each would wait for all GPUs to come up."""
    ask("a100", log=tmp_path / "log")
    assert (tmp_path / "log").read_text().splitlines() == ["init"]


def test_strategies_are_asked_about_the_gpus_that_are_there(ask: Ask) -> None:
    assert ask("mismatch")["missing"] == {}
    missing = ask("a100")["missing"]
    assert {name.partition(":")[0] for name in missing} <= {"torch", "tensorflow", "mxnet", "jax"}


def test_what_the_library_lacks_costs_one_fact(ask: Ask) -> None:
    """No list of processes: nvidia-ml-py raises NVMLLibraryMismatchError, which is no NVMLError."""
    health = ask("a100")["health"]
    assert [one["name"] for one in health] == ["NVIDIA A100-SXM4-80GB"] * 8
    assert [one["sm_mhz_max"] for one in health] == [1410] * 8
    assert [one["processes"] for one in health] == [[]] * 8
