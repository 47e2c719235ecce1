"""A child's environment and interpreter, and the energy counters of its host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

import scaling
from scaling import frameworks
from scaling.agent import environment
from scaling.agent.environment import KEPT_HEAP, child_environ, granted, nccl_files
from scaling.agent.watch import EVERY_S, EnergyMeter
from scaling.hosts import info
from scaling.records.host import Interpreter
from scaling.records.messages import Enrol
from scaling.records.network import Place
from scaling.records.point import Device, Kind, Point
from scaling.records.task import CHILD_MARK, Server
from scaling.records.telemetry import MachineEnergy
from scaling.run import listing
from tests.support.inline import host
from tests.support.inline_child import Clock
from tests.support.points import TASK, changed
from tests.support.powercap import COUNTED, DOMAINS, RANGE_UJ, Powercap
from tests.support.scripted_records import close

# What a child's environment holds.


PACKAGE = str(Path(scaling.__file__).parents[1])
LAUNCHER = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_SIZE", "PRTE_X", "HYDRA_X")


@pytest.mark.parametrize(
    ("base", "asked", "found"),
    [
        # A worker does not see the launcher.
        ({**dict.fromkeys(LAUNCHER, "1"), "HOME": "/h"}, {"MASTER_ADDR": "127.0.0.1"},
         {**dict.fromkeys(LAUNCHER), "HOME": "/h", "MASTER_ADDR": "127.0.0.1"}),
        # Its mark is its child's.
        ({}, {}, {CHILD_MARK: None}),
        # This package is found before the agent's others.
        ({"PYTHONPATH": f"/a:{PACKAGE}::/b"}, {}, {"PYTHONPATH": f"{PACKAGE}:/a:/b"}),
        # Threads are placed by the task alone.
        ({"OMP_THREAD_LIMIT": "1", "OMP_PROC_BIND": "true", "KMP_AFFINITY": "compact", "OMP_NUM_THREADS": "9"}, {},
         {"OMP_THREAD_LIMIT": None, "OMP_PROC_BIND": None, "KMP_AFFINITY": None, "OMP_NUM_THREADS": "3"}),
        # A strategy's variables are not dropped.
        ({"PORT": "tcp://10.0.0.1:80", "DMLC_LOCAL": "1"}, {"PORT": "5000"}, {"PORT": "5000", "DMLC_LOCAL": None}),
    ],
)  # fmt: skip
def test_the_environment_of_a_child(
    base: dict[str, str], asked: dict[str, str], found: dict[str, str | None]
) -> None:
    environ = child_environ(base, TASK, asked)
    assert {name: environ.get(name) for name in found} == found


@pytest.mark.parametrize(
    ("name", "value", "kept", "said"),
    [
        ("HOROVOD_THREAD_AFFINITY", "0,1", None, "dropped: scaling places each rank's threads"),
        ("JAX_DISABLE_JIT", "1", None, "dropped: scaling sets it for each process"),
        ("TORCH_DISTRIBUTED_DEBUG", "detail", "INFO", "INFO for workers: torch fails with DETAIL"),
        (
            "XLA_FLAGS",
            "--xla_dump_to=a --xla_force_host_platform_device_count=8",
            "--xla_dump_to=a",
            "--xla_dump_to=a for workers: a process has one device",
        ),
        (
            "XLA_FLAGS",
            "--xla_force_host_platform_device_count=8",
            "",
            "dropped for workers: a process has one device",
        ),
        ("GLOO_DEVICE_TRANSPORT", "TCP_TLS", "TCP_TLS", ""),
        ("TORCH_DISTRIBUTED_DEBUG", "OFF", "OFF", ""),
    ],
)
def test_a_variable_of_the_user_stands_or_is_named(name: str, value: str, kept: str | None, said: str) -> None:
    assert child_environ({name: value}, TASK, {}).get(name) == kept
    assert environment.changed_variables({name: value}) == ((f"{name}={value} ({said})",) if said else ())
    assert name in environment.recorded_variables({name: value}) or kept is None


# ---------------------------------------------------------------- proxies

NO_PROXY = ("no_grpc_proxy", "no_proxy", "NO_PROXY")
ON_TWO = replace(
    TASK,
    places=tuple(Place(address=address, interface="eth0") for address in ("10.0.0.1", "10.0.0.2")),
    place=Place(address="10.0.0.2", interface="eth0"),
    servers=(Server(launch_rank=0, host="s", place=Place(address="10.0.0.9", interface="eth0")),),
)


OWN_ADDRESSES = "10.0.0.2,10.0.0.1,10.0.0.9"


@pytest.mark.parametrize(
    ("base", "found"),
    [
        *(({proxy: "http://proxy:3128"}, [OWN_ADDRESSES] * 3)
          for proxy in ("http_proxy", "https_proxy", "grpc_proxy", "HTTPS_PROXY")),
        # Hosts that the user reaches without a proxy.
        ({"http_proxy": "p", "NO_PROXY": "a,b", "no_grpc_proxy": "c"},
         [f"c,{OWN_ADDRESSES}", f"a,b,{OWN_ADDRESSES}", f"a,b,{OWN_ADDRESSES}"]),
        ({}, [None] * 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("role", ["worker", "server-0"])
def test_no_proxy_is_asked_for_the_processes_of_a_point(
    base: dict[str, str], found: list[str | None], role: str
) -> None:
    environ = child_environ(base, replace(ON_TWO, role=role), {})
    assert [environ.get(name) for name in NO_PROXY] == found


# ---------------------------------------------------------------- the heap


def heap(base: dict[str, str], **task: Any) -> dict[str, str]:
    environ = child_environ(base, replace(TASK, **task), {})
    return {name: value for name, value in environ.items() if name.startswith("MALLOC_")}


def on(device: Device) -> Point:
    return changed(TASK.point, device=device)


USERS = {"MALLOC_TRIM_THRESHOLD_": "7", "MALLOC_ARENA_MAX": "1"}


@pytest.mark.parametrize(
    ("base", "task", "found"),
    [
        ({}, {}, KEPT_HEAP),
        ({}, {"role": "server-0"}, KEPT_HEAP),
        ({}, {"point": on("emulated")}, KEPT_HEAP),
        ({}, {"malloc": "system"}, {}),
        ({}, {"point": on("cuda")}, {}),
        (USERS, {}, {**KEPT_HEAP, **USERS}),
        (USERS, {"malloc": "system"}, USERS),
        ({"LD_PRELOAD": "/usr/lib/libfoo.so"}, {}, KEPT_HEAP),
        ({"LD_PRELOAD": "/nowhere/libjemalloc.so.2"}, {}, KEPT_HEAP),
    ],
)
def test_a_cpu_process_keeps_its_heap_unless_the_user_sets_it(
    base: dict[str, str], task: dict[str, Any], found: dict[str, str]
) -> None:
    assert heap(base, **task) == found


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


@pytest.mark.parametrize("role", ["worker", "server-0"])
def test_another_allocator_is_told_nothing(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "allocator_in_use", lambda: "jemalloc")
    assert heap({}, role=role) == {}


# ---------------------------------------------------------------- NCCL's log

ASKED = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/logs/a.nccl.%p", "NCCL_NET": "IB"}


SOCKETS = {"NCCL_SOCKET_IFNAME": "=eth0", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "MASTER_ADDR": "10.0.0.1"}
WITHOUT_CHOICE = {"NCCL_SOCKET_IFNAME": "=eth0", "MASTER_ADDR": "10.0.0.1"}


@pytest.mark.parametrize(
    ("own", "asked", "word", "found"),
    [
        # A log that the user has set is the user's as a whole.
        *(({name: "x"}, ASKED, "ib0", {"NCCL_NET": "IB"})
          for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")),
        # A strategy's variables for a named network win.
        ({"NCCL_NET": "Socket"}, ASKED, "ib0", ASKED),
        # Without one nothing is overridden by which the user chooses.
        *((own, SOCKETS, word, found)
          for word, found in (("auto", WITHOUT_CHOICE), ("eth0", SOCKETS))
          for own in (
              {"NCCL_NET": "FasTrak"}, {"NCCL_NET_PLUGIN": "/usr/local/tcpx/lib64/libnccl-net.so"},
              {"NCCL_TUNER_CONFIG_PATH": "/usr/local/fastrak/a.textproto"}, {"NCCL_IB_HCA": "mlx5_0"},
              {"NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2"},
          )),
        # The user's interface is recorded as the worker's.
        ({"NCCL_SOCKET_IFNAME": "ens3", "NCCL_ALGO": "Ring"}, SOCKETS, "auto",
         {**SOCKETS, "NCCL_SOCKET_IFNAME": "ens3"}),
    ],
)  # fmt: skip
def test_which_variables_of_nccl_a_strategy_sets(
    own: dict[str, str], asked: dict[str, str], word: str, found: dict[str, str]
) -> None:
    assert granted(own, asked, word) == found


def test_files_of_nccls_are_the_users_too(tmp_path: Path) -> None:
    """As an image has them: a variable of ours would precede them."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text("# of the image\nNCCL_NET = gIB\nNCCL_DEBUG=WARN\n\nno variable\n")
    (tmp_path / ".nccl.conf").write_text("NCCL_DEBUG=INFO\n")
    assert nccl_files({}, tmp_path) == {"NCCL_NET": "gIB", "NCCL_DEBUG": "WARN"}
    assert nccl_files({"HOME": str(tmp_path)}, tmp_path) == {"NCCL_NET": "gIB", "NCCL_DEBUG": "INFO"}
    named = {"NCCL_CONF_FILE": str(tmp_path / "etc/nccl.conf")}
    assert "NCCL_NET" not in granted(named, SOCKETS, "auto")
    assert granted(named, ASKED, "ib0") == {"NCCL_NET": "IB"}


def test_the_driver_keeps_all_kernels_that_it_compiles() -> None:
    def cache(base: dict[str, str], device: Device) -> str | None:
        return child_environ(base, replace(TASK, point=on(device)), {}).get("CUDA_CACHE_MAXSIZE")

    assert cache({}, "cuda") == str(4 << 30)
    assert cache({"CUDA_CACHE_MAXSIZE": "7"}, "cuda") == "7"
    assert cache({}, "cpu") is None


# Which Python runs a framework's children, and what a host's description says of it.

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
    assert environment.python_of("tensorflow", {}) == sys.executable
    assert environment.python_of("torch", {}) == other
    assert environment.python_of("torch", {"SCALING_PYTHON_TORCH": "/mine"}) == "/mine"
    assert environment.python_of("torch", {"SCALING_PYTHON_TORCH": ""}) == other
    beside(prefix, "")
    assert environment.python_of("", {}) == sys.executable


def test_nobody_is_asked_where_all_run_in_the_agents_own(prefix: Path) -> None:
    """A process of a unit test would fail."""
    assert environment.ask_interpreters(["torch:gloo", "no.such.module:mode"], {}) == []
    assert environment.ask_interpreters(["torch:gloo"], {"SCALING_PYTHON_TORCH": sys.executable}) == []


def test_a_hosts_versions_are_those_that_its_workers_meet() -> None:
    found = environment.with_interpreters(host("node1", python="3.11.7", versions=OWN), [TENSORFLOW, BROKEN])
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
    host = environment.host_with(())
    assert host.variables is not None and host.variables["NCCL_ALGO"] == "Ring"
    assert [one for one in host.changed_variables if one.startswith("OMP_PLACES=cores (")]


def test_what_torch_compile_lacks_is_asked_where_torch_runs() -> None:
    one = host("node1", compile_lacks="Python.h")
    torch = Interpreter(
        framework="torch", path="/env-torch/bin/python", python="3.12.3", compile_lacks="C compiler"
    )
    assert environment.with_interpreters(one, [TENSORFLOW, torch]).compile_lacks == "C compiler"
    assert environment.with_interpreters(one, [TENSORFLOW]).compile_lacks == "Python.h"
    assert environment.with_interpreters(one, []) == one


def enrolled(name: str, *found: Interpreter) -> Enrol:
    return Enrol(host=replace(host(name), interpreters=found), version="1", code="c", missing={})


def test_the_list_tells_interpreters_and_on_which_hosts_they_are() -> None:
    told = listing.everything({}, [enrolled("node1", TENSORFLOW, BROKEN), enrolled("node2", TENSORFLOW)])
    packages = "tensorflow 2.21.0, keras 3.15, nvidia-nccl-cu12 2.30, horovod 0.28.1"
    assert f"  tensorflow:...          /env-tensorflow/bin/python: Python 3.12.3, {packages}\n" in told
    assert "  mxnet:...               /nowhere: does not work (on node1)\n" in told


def test_the_list_is_silent_where_all_run_in_the_agents_own() -> None:
    assert "interpreter" not in listing.everything({}, [enrolled("node1")])


# Energy of a machine: packages and DRAM alone, over counters that begin anew; what cannot be read is never 0.


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def tree(tmp_path: Path) -> Powercap:
    return Powercap(tmp_path / "powercap")


def test_packages_and_dram_are_added_and_nothing_else(tree: Powercap, clock: Clock) -> None:
    """A core is inside of its package, psys around all, and a package that is mapped twice is one."""
    meter = EnergyMeter(tree.root, clock)
    meter.start()
    for folder in DOMAINS:
        tree.use(folder, 2_000_000)
    clock.now_s += 4
    meter.pause()
    assert meter.total() == MachineEnergy(joules=6.0, seconds=4.0)


def test_a_counter_that_begins_anew_lost_nothing(tree: Powercap, clock: Clock) -> None:
    """Over 25 s it does so twice, each time between two of the readings of every 10 s."""
    meter = EnergyMeter(tree.root, clock)
    meter.start()
    for _ in range(25):
        tree.use("intel-rapl:1", RANGE_UJ * 8 // 100)
        clock.now_s += 1
        meter.sample()
    meter.pause()
    found = meter.total()
    assert found is not None and EVERY_S == 10
    assert (found.joules, found.seconds) == (close(2 * RANGE_UJ / 1e6), 25.0)


def test_stretches_add_up_and_what_lies_between_them_does_not_count(tree: Powercap, clock: Clock) -> None:
    meter = EnergyMeter(tree.root, clock)
    for _ in range(3):
        meter.start()
        tree.use("intel-rapl:0", 1_000_000)
        clock.now_s += 1
        meter.pause()
        tree.use("intel-rapl:0", 7_000_000)
        clock.now_s += 100
        meter.sample()
    assert meter.total() == MachineEnergy(joules=3.0, seconds=3.0)


@pytest.mark.parametrize("folder", COUNTED)
def test_what_cannot_be_read_is_told_and_never_zero(tree: Powercap, clock: Clock, folder: str) -> None:
    """A part would pass for the whole."""
    path = tree.forbid(folder)
    meter = EnergyMeter(tree.root, clock)
    meter.start()
    clock.now_s += 1
    meter.pause()
    assert meter.total() == MachineEnergy(unreadable=f"{path}: Is a directory")


@pytest.mark.parametrize("content", ["", "none\n"])
def test_a_counter_that_a_container_hides_is_told(tree: Powercap, clock: Clock, content: str) -> None:
    """/dev/null is mounted over it: it is empty."""
    path = tree.root / "intel-rapl:0/energy_uj"
    path.write_text(content)
    meter = EnergyMeter(tree.root, clock)
    meter.start()
    meter.pause()
    assert meter.total() == MachineEnergy(unreadable=f"{path}: no number: {content.strip()!r}")


def test_a_counter_that_vanishes_takes_the_rest_with_it(tree: Powercap, clock: Clock) -> None:
    meter = EnergyMeter(tree.root, clock)
    meter.start()
    clock.now_s += 1
    meter.pause()
    path = tree.forbid("intel-rapl:0")
    meter.start()
    meter.pause()
    assert meter.total() == MachineEnergy(unreadable=f"{path}: Is a directory")


def test_without_counters_or_a_stretch_there_is_nothing(tmp_path: Path, clock: Clock) -> None:
    for root in (tmp_path, tmp_path / "nowhere", None):
        meter = EnergyMeter(root, clock)
        meter.start()
        clock.now_s += 1
        meter.sample()
        meter.pause()
        assert meter.total() is None
    meter = EnergyMeter(Powercap(tmp_path / "powercap").root, clock)
    meter.pause()
    meter.sample()
    assert meter.total() is None
