"""What a child's environment holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

import scaling
from scaling import frameworks
from scaling.agent.environment import KEPT_HEAP, child_environ, granted
from scaling.hosts import allocator
from scaling.records.network import Place
from scaling.records.point import Device, Kind, Point
from scaling.records.task import CHILD_MARK, Server
from tests.support.points import TASK, changed


def test_a_worker_does_not_see_the_launcher() -> None:
    base = {
        "OMPI_COMM_WORLD_RANK": "1",
        "PMIX_RANK": "1",
        "PMI_SIZE": "2",
        "PRTE_X": "",
        "HYDRA_X": "",
        "HOME": "/h",
    }
    environ = child_environ(base, TASK, {"MASTER_ADDR": "127.0.0.1"})
    assert environ["HOME"] == "/h"
    assert environ["MASTER_ADDR"] == "127.0.0.1"
    assert environ["OMP_NUM_THREADS"] == "3"
    assert not [key for key in environ if key.startswith(("OMPI_", "PMI", "PRTE_", "HYDRA_"))]


def test_the_mark_is_this_process() -> None:
    assert CHILD_MARK not in os.environ


def test_it_finds_this_package_before_what_the_agent_finds() -> None:
    package = str(Path(scaling.__file__).parents[1])
    found = child_environ({"PYTHONPATH": f"/a:{package}::/b"}, TASK, {})["PYTHONPATH"]
    assert found == f"{package}:/a:/b"


def test_threads_are_placed_by_the_task_alone() -> None:
    base = {"OMP_THREAD_LIMIT": "1", "OMP_PROC_BIND": "true", "KMP_AFFINITY": "compact", "OMP_NUM_THREADS": "9"}
    environ = child_environ(base, TASK, {})
    assert {name for name in environ if name.startswith(("OMP_", "KMP_"))} == {"OMP_NUM_THREADS"}
    assert environ["OMP_NUM_THREADS"] == "3"


def test_what_a_strategy_asks_is_not_dropped() -> None:
    environ = child_environ({"PORT": "tcp://10.0.0.1:80", "DMLC_LOCAL": "1"}, TASK, {"PORT": "5000"})
    assert environ["PORT"] == "5000"
    assert "DMLC_LOCAL" not in environ


# ---------------------------------------------------------------- proxies

NO_PROXY = ("no_grpc_proxy", "no_proxy", "NO_PROXY")
ON_TWO = replace(
    TASK,
    places=tuple(Place(address=address, interface="eth0") for address in ("10.0.0.1", "10.0.0.2")),
    place=Place(address="10.0.0.2", interface="eth0"),
    servers=(Server(launch_rank=0, host="s", place=Place(address="10.0.0.9", interface="eth0")),),
)


@pytest.mark.parametrize("proxy", ["http_proxy", "https_proxy", "grpc_proxy", "HTTPS_PROXY"])
@pytest.mark.parametrize("role", ["worker", "server-0"])
def test_no_proxy_is_asked_for_the_processes_of_a_point(proxy: str, role: str) -> None:
    environ = child_environ({proxy: "http://proxy:3128"}, replace(ON_TWO, role=role), {})
    assert [environ[name] for name in NO_PROXY] == ["10.0.0.2,10.0.0.1,10.0.0.9"] * 3


def test_hosts_that_the_user_reaches_without_a_proxy_stay_so() -> None:
    base = {"http_proxy": "p", "NO_PROXY": "a,b", "no_grpc_proxy": "c"}
    environ = child_environ(base, ON_TWO, {})
    own = "10.0.0.2,10.0.0.1,10.0.0.9"
    assert [environ[name] for name in NO_PROXY] == [f"c,{own}", f"a,b,{own}", f"a,b,{own}"]


def test_without_a_proxy_nothing_is_said_of_any() -> None:
    assert not [name for name in child_environ({}, ON_TWO, {}) if name in NO_PROXY]


# ---------------------------------------------------------------- the heap


def heap(base: dict[str, str], **task: Any) -> dict[str, str]:
    environ = child_environ(base, replace(TASK, **task), {})
    return {name: value for name, value in environ.items() if name.startswith("MALLOC_")}


def on(device: Device) -> Point:
    return changed(TASK.point, device=device)


def test_a_cpu_worker_keeps_its_heap() -> None:
    assert heap({}) == KEPT_HEAP
    assert heap({}, role="server-0") == KEPT_HEAP
    assert heap({}, point=on("emulated")) == KEPT_HEAP


def test_the_threshold_is_one_that_glibc_takes() -> None:
    """It ignores a larger one: HEAP_MAX_SIZE / 2 on 64 bits, mallopt(3)."""
    assert int(KEPT_HEAP["MALLOC_MMAP_THRESHOLD_"]) <= 32 << 20
    assert int(KEPT_HEAP["MALLOC_TRIM_THRESHOLD_"]) < 1 << 31


@pytest.mark.parametrize("strategy", ["torch:gloo", "tensorflow:ring", "mxnet:dist_sync", "torch:horovod"])
@pytest.mark.parametrize("kind", get_args(Kind))
def test_all_frameworks_and_kinds_are_alike(strategy: str, kind: Kind) -> None:
    """Or what one of them saves would look like what another loses."""
    for name in (strategy, frameworks.load(strategy).baseline):
        assert heap({}, point=changed(TASK.point, strategy=name, kind=kind)) == KEPT_HEAP


@pytest.mark.parametrize(
    "task",
    [
        {"malloc": "system"},
        {"point": on("cuda")},
    ],
    ids=["asked", "cuda"],
)
def test_where_it_would_not_help_nothing_is_set(task: dict[str, Any]) -> None:
    assert heap({}, **task) == {}


@pytest.mark.parametrize("role", ["worker", "server-0"])
def test_another_allocator_is_told_nothing(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "in_use", lambda: "jemalloc")
    assert heap({}, role=role) == {}


def test_what_the_user_has_set_wins() -> None:
    own = {"MALLOC_TRIM_THRESHOLD_": "7", "MALLOC_ARENA_MAX": "1"}
    assert heap(own) == {**KEPT_HEAP, **own}
    assert heap(own, malloc="system") == own


@pytest.mark.parametrize("library", ["/usr/lib/libfoo.so", "/nowhere/libjemalloc.so.2"])
def test_what_ld_preload_only_names_changes_nothing(library: str) -> None:
    assert heap({"LD_PRELOAD": library}) == KEPT_HEAP


# ---------------------------------------------------------------- NCCL's log

ASKED = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/logs/a.nccl.%p", "NCCL_NET": "IB"}


def test_a_log_of_nccls_that_the_user_has_set_is_his_as_a_whole() -> None:
    for own in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"):
        assert granted({own: "x"}, ASKED) == {"NCCL_NET": "IB"}, own


def test_what_else_a_strategy_asks_wins() -> None:
    assert granted({"NCCL_NET": "Socket"}, ASKED) == ASKED


def test_the_driver_keeps_all_kernels_that_it_compiles() -> None:
    def cache(base: dict[str, str], device: Device) -> str | None:
        return child_environ(base, replace(TASK, point=on(device)), {}).get("CUDA_CACHE_MAXSIZE")

    assert cache({}, "cuda") == str(4 << 30)
    assert cache({"CUDA_CACHE_MAXSIZE": "7"}, "cuda") == "7"
    assert cache({}, "cpu") is None
