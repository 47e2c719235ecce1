"""Which Python runs a framework's children, and what a host's description says of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling.agent import interpreters
from scaling.records.host import Interpreter
from scaling.records.messages import Enrol
from scaling.run import listing
from tests.support.inline import host

OWN = {"numpy": "2.4", "torch": "2.13.0", "tensorflow": "2.0", "nvidia-nccl-cu13": "2.29", "horovod": "0.28.1"}
TENSORFLOW = Interpreter(
    framework="tensorflow",
    path="/env-tensorflow/bin/python",
    python="3.12.3",
    versions={"tensorflow": "2.21.0", "keras": "3.15", "nvidia-nccl-cu12": "2.30", "horovod": "0.28.1"},
)
BROKEN = Interpreter(framework="mxnet", path="/nowhere")


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    return tmp_path / "env"


def beside(prefix: Path, framework: str) -> str:
    python = Path(f"{prefix}-{framework}/bin/python")
    python.parent.mkdir(parents=True)
    python.touch()
    return str(python)


def test_it_is_the_agents_own_unless_there_is_another(prefix: Path) -> None:
    other = beside(prefix, "torch")
    assert interpreters.of("tensorflow", {}) == sys.executable
    assert interpreters.of("torch", {}) == other
    assert interpreters.of("torch", {"SCALING_PYTHON_TORCH": "/mine"}) == "/mine"
    assert interpreters.of("torch", {"SCALING_PYTHON_TORCH": ""}) == other


def test_a_strategy_of_no_framework_runs_in_the_agents_own(prefix: Path) -> None:
    beside(prefix, "")
    assert interpreters.of("", {}) == sys.executable


def test_nobody_is_asked_where_all_run_in_the_agents_own(prefix: Path) -> None:
    """A process of a unit test would fail."""
    assert interpreters.ask(["torch:gloo", "no.such.module:mode"], {}) == []
    assert interpreters.ask(["torch:gloo"], {"SCALING_PYTHON_TORCH": sys.executable}) == []


def test_a_hosts_versions_are_those_that_its_workers_meet() -> None:
    found = interpreters.on(host("node1", python="3.11.7", versions=OWN), [TENSORFLOW, BROKEN])
    assert found.versions == {
        "numpy": "2.4",
        "torch": "2.13.0",
        "nvidia-nccl-cu13": "2.29",
        "horovod": "0.28.1",
        "tensorflow": "2.21.0",
        "keras": "3.15",
        "nvidia-nccl-cu12 (tensorflow)": "2.30",
        "Python (tensorflow)": "3.12.3",
    }
    assert found.interpreters == (TENSORFLOW, BROKEN)


def test_variables_that_change_rates_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("OMP_PLACES", "cores")
    host = interpreters.host_with(())
    assert host.variables is not None and host.variables["NCCL_ALGO"] == "Ring"
    assert [one for one in host.changed_variables if one.startswith("OMP_PLACES=cores (")]


def test_what_torch_compile_lacks_is_asked_where_torch_runs() -> None:
    one = host("node1", compile_lacks="Python.h")
    torch = Interpreter(
        framework="torch", path="/env-torch/bin/python", python="3.12.3", compile_lacks="C compiler"
    )
    assert interpreters.on(one, [TENSORFLOW, torch]).compile_lacks == "C compiler"
    assert interpreters.on(one, [TENSORFLOW]).compile_lacks == "Python.h"


def test_a_host_without_other_interpreters_stays_as_it_is() -> None:
    one = host("node1", versions=OWN)
    assert interpreters.on(one, []) == one


def enrolled(name: str, *found: Interpreter) -> Enrol:
    return Enrol(host=replace(host(name), interpreters=found), version="1", code="c", missing={})


def test_the_list_tells_interpreters_and_on_which_hosts_they_are() -> None:
    told = listing.everything({}, [enrolled("node1", TENSORFLOW, BROKEN), enrolled("node2", TENSORFLOW)])
    packages = "tensorflow 2.21.0, keras 3.15, nvidia-nccl-cu12 2.30, horovod 0.28.1"
    assert f"  tensorflow:...          /env-tensorflow/bin/python: Python 3.12.3, {packages}\n" in told
    assert "  mxnet:...               /nowhere: does not work (on node1)\n" in told


def test_the_list_is_silent_where_all_run_in_the_agents_own() -> None:
    assert "interpreter" not in listing.everything({}, [enrolled("node1")])
