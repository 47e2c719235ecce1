"""Horovod's agent's side: environment, options, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import UsageError
from scaling.frameworks.base import Helper, Traits, read_options
from scaling.frameworks.horovod import strategy as hvd
from scaling.frameworks.horovod.strategy import Slot, slots
from scaling.plan.tasks import helper_task
from scaling.records.point import Kind
from scaling.records.task import Clocks, Task
from tests.support.paper_tasks import one_task, tasks
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


@pytest.mark.parametrize("kind", ["exchange", "comm"])
def test_environ_of_two_ranks_on_each_of_two_hosts(kind: Kind) -> None:
    task = on_two_hosts(kind=kind)[2]
    assert STRATEGIES["torch:horovod"].environ(task, {"RENDEZVOUS": "10.0.0.1:5001"}) == {
        "HOROVOD_HOSTNAME": "node2",
        "HOROVOD_RANK": "2",
        "HOROVOD_SIZE": "4",
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "5001",
        "HOROVOD_GLOO_IFACE": "ib0",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "1830",
        "HOROVOD_FUSION_THRESHOLD": "134217728",
        "HOROVOD_CYCLE_TIME": "1.0",
        "HOROVOD_CACHE_CAPACITY": "1024",
    }


def test_gpus_talk_over_the_same_interface() -> None:
    cuda, cpu = (
        STRATEGIES["torch:horovod"].environ(on_two_hosts(device=device)[0], {}) for device in ("cuda", "cpu")
    )
    told = {name: value for name, value in cuda.items() if not name.startswith("NCCL_DEBUG")}
    assert told == {**cpu, "NCCL_SOCKET_IFNAME": "=ib0", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}


def test_frameworks_have_their_own_settings_beside() -> None:
    bare, keras, mxnet = (module.environ(on_two_hosts(name)[0], {}).items() for name, module in STRATEGIES.items())
    assert bare < keras
    assert bare < mxnet
    assert ("KERAS_BACKEND", "tensorflow") in keras
    assert ("DMLC_ROLE", "worker") in mxnet


@every_binding
@pytest.mark.parametrize("kind", ["solo", "together"])
def test_the_plain_loop_has_no_variables_of_horovod(name: str, kind: Kind) -> None:
    asked = STRATEGIES[name].environ(replace(one_task(), point=on_two_hosts(name, kind=kind)[0].point), {})
    assert not [key for key in asked if key.startswith(("HOROVOD", "NCCL"))]


@every_binding
def test_the_rendezvous_is_no_rank(name: str) -> None:
    (wanted,) = STRATEGIES[name].helpers(on_two_hosts(name)[0])
    assert wanted == Helper(name="rendezvous", awaited=False)
    helper = helper_task(on_two_hosts(name), wanted)
    assert not [key for key in STRATEGIES[name].environ(helper, {}) if key.startswith("HOROVOD")]


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


@every_binding
def test_traits_and_devices(name: str) -> None:
    expected = Traits(ports=1, nccl=True, polling_cores=0.12, accuracy=("evaluate", "rate", "statistics"))
    assert STRATEGIES[name].traits(name) == expected
    assert STRATEGIES[name].devices(name) == ("cpu", "cuda", "emulated")


@every_binding
def test_options(name: str) -> None:
    module = STRATEGIES[name]
    assert read_options(module.options, {}) == {
        "fusion_threshold_mb": 128.0,
        "cycle_time_ms": 1.0,
        "cache_capacity": 1024,
        "compression": "none",
        "accumulate": 1,
        **({"fused": False} if name == "torch:horovod" else {}),
    }
    # One `--option accumulate=2` concerns the baseline too.
    assert frameworks.load(module.baseline).options["accumulate"] == module.options["accumulate"]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("fusion_threshold_mb", "-1"),
        ("fusion_threshold_mb", "inf"),
        ("fusion_threshold_mb", "nan"),
        ("cycle_time_ms", "soon"),
        ("cache_capacity", "-1"),
        ("cache_capacity", "1.5"),
        ("compression", "bf16"),
        ("accumulate", "0"),
    ],
)
@every_binding
def test_a_wrong_value_is_refused(name: str, key: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"--option {key}={text}: expected "):
        read_options(STRATEGIES[name].options, {key: text})


@every_binding
def test_refuses_what_the_loop_refuses(name: str) -> None:
    module = STRATEGIES[name]
    assert module.refuse(one_task(name, "exchange").point) is None
    reason = module.refuse(one_task(name, "exchange", options={"accumulate": "3"}).point)
    assert reason == "--option accumulate=3: does not divide the batch of 4 per device"


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


@every_binding
def test_the_framework_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    framework = name.partition(":")[0]
    loop = {"torch": "pytorch.plain", "tensorflow": "tf.plain", "mxnet": "mx.plain"}[framework]
    monkeypatch.setattr(f"scaling.frameworks.{loop}.find_spec", lambda _: None)
    assert STRATEGIES[name].missing(name) == f"{framework} is not installed: ./launch/install {framework}"
