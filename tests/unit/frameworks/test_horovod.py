"""Horovod's agent's side: environment, options, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.frameworks.horovod import strategy as hvd
from scaling.frameworks.horovod.strategy import Slot, slots
from tests.support.paper_tasks import tasks

STRATEGIES = {name: frameworks.load(name) for name in frameworks.NAMES if name.endswith(":horovod")}


def binding_missing(framework: str) -> str | None:
    """What the strategies have in common: the framework itself is not looked for."""
    strategy = STRATEGIES[f"{framework}:horovod"]
    assert isinstance(strategy, hvd.Horovod)
    return strategy.binding_missing("")


# ---------------------------------------------------------------- before the worker


def test_options_and_a_timeline_that_is_begun_later_reach_horovod() -> None:
    given = {"fusion_threshold_mb": "0.5", "cycle_time_ms": "2.5", "cache_capacity": "0", "accumulate": "2"}
    (task,) = tasks("torch:horovod", "exchange", 1, options=given)
    asked, traced = (STRATEGIES["torch:horovod"].environ(one, {}) for one in (task, replace(task, is_traced=True)))
    wanted = {"FUSION_THRESHOLD": "524288", "CYCLE_TIME": "2.5", "CACHE_CAPACITY": "0"}
    assert {name: asked[f"HOROVOD_{name}"] for name in wanted} == wanted
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


@pytest.mark.parametrize(
    ("framework", "name"), [("torch", "mpi_lib_v2"), ("tensorflow", "mpi_lib"), ("mxnet", "mpi_lib")]
)
def test_a_binding_is_missing(framework: str, name: str, installed: Path) -> None:
    reason = binding_missing(framework)
    assert reason == f"horovod is built without {framework}: ./launch/install horovod"
    (installed / framework).mkdir()
    (installed / framework / f"{name}.cpython-311-x86_64-linux-gnu.so").write_bytes(hvd.OBEYS)
    assert binding_missing(framework) is None


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
