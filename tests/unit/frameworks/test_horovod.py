"""Horovod's agent's side: environment, options, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.frameworks.horovod import strategy as hvd
from scaling.frameworks.horovod.strategy import Slot, slots
from scaling.records.task import Clocks, Task
from tests.support.paper_tasks import tasks
from tests.support.points import placed

STRATEGIES = {name: frameworks.load(name) for name in frameworks.NAMES if name.endswith(":horovod")}
every_binding = pytest.mark.parametrize("name", STRATEGIES)


def binding_missing(framework: str) -> str | None:
    """What the strategies have in common: the framework itself is not looked for."""
    strategy = STRATEGIES[f"{framework}:horovod"]
    assert isinstance(strategy, hvd.Horovod)
    return strategy.binding_missing("")


def on_two_hosts(name: str = "torch:horovod", **fields: Any) -> list[Task]:
    hosts = ("node1", "node1", "node2", "node2")
    given: dict[str, Any] = {"kind": "exchange", **fields}
    return [
        replace(
            placed(task, ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"], "ib0"),
            hosts=hosts, local_rank=task.rank % 2, local_world_size=2,
            clocks=Clocks(startup_s=300.0, stall_s=120.0, deadline_s=1800.0),
        )
        for task in tasks(name, size=4, ports=(5001,), **given)
    ]  # fmt: skip


# ---------------------------------------------------------------- before the worker


def test_options_reach_horovod() -> None:
    given = {"fusion_threshold_mb": "0.5", "cycle_time_ms": "2.5", "cache_capacity": "0", "accumulate": "2"}
    asked = STRATEGIES["torch:horovod"].environ(on_two_hosts(options=given)[0], {})
    assert asked["HOROVOD_FUSION_THRESHOLD"] == "524288"
    assert asked["HOROVOD_CYCLE_TIME"] == "2.5"
    assert asked["HOROVOD_CACHE_CAPACITY"] == "0"


def test_a_timeline_that_is_begun_later_is_announced_at_the_start() -> None:
    task = on_two_hosts()[0]
    asked, traced = (STRATEGIES["torch:horovod"].environ(one, {}) for one in (task, replace(task, is_traced=True)))
    assert traced == {**asked, "HOROVOD_TIMELINE": "DYNAMIC"}


def test_ranks_dealt_out_over_hosts() -> None:
    found = slots(("a", "b", "a"))
    assert found == (
        Slot(hostname="a", rank=0, size=3, local_rank=0, local_size=2, cross_rank=0, cross_size=2),
        Slot(hostname="b", rank=1, size=3, local_rank=0, local_size=1, cross_rank=1, cross_size=2),
        Slot(hostname="a", rank=2, size=3, local_rank=1, local_size=2, cross_rank=0, cross_size=1),
    )


# ---------------------------------------------------------------- what is missing


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Horovod without any binding; yields its folder."""
    spec = ModuleSpec("horovod", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(hvd, "find_spec", lambda _: spec)
    yield tmp_path


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "mxnet"])
def test_a_binding_is_missing(framework: str, installed: Path) -> None:
    reason = binding_missing(framework)
    assert reason == f"horovod is built without {framework}: ./launch/install horovod"
    (installed / framework).mkdir()
    (installed / framework / "mpi_lib.cpython-311-x86_64-linux-gnu.so").write_bytes(hvd.OBEYS)
    assert binding_missing(framework) is None


def test_pytorchs_binding_has_a_name_of_its_own(installed: Path) -> None:
    (installed / "torch").mkdir()
    (installed / "torch" / "mpi_lib_v2.cpython-311-x86_64-linux-gnu.so").write_bytes(hvd.OBEYS)
    assert binding_missing("torch") is None


def test_a_build_that_obeys_no_network_says_where_it_listens(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Horovod's own build takes the address of the host's name, and faults where there is none."""
    (installed / "torch").mkdir()
    library = installed / "torch" / "mpi_lib_v2.so"
    library.write_bytes(b"Gloo")
    strategy = STRATEGIES["torch:horovod"]
    monkeypatch.setattr(hvd, "address_of_name", lambda: "10.0.0.1")
    assert (binding_missing("torch"), strategy.name_address("torch:horovod")) == (None, "10.0.0.1")
    monkeypatch.setattr(hvd, "address_of_name", lambda: "")
    reason = binding_missing("torch") or ""
    assert reason.startswith("horovod listens at the address of the host's name, and ")
    assert "/etc/hosts, or pip uninstall horovod and ./launch/install horovod" in reason
    library.write_bytes(hvd.OBEYS)
    assert (binding_missing("torch"), strategy.name_address("torch:horovod")) == (None, None)


def test_the_build_says_what_is_looked_for() -> None:
    """./launch/install compiles the message into the binding."""
    cmake = Path(__file__).parents[3] / "launch/horovod_project.cmake"
    assert hvd.OBEYS.decode() in cmake.read_text()
