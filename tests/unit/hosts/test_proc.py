"""What is read below /proc and /sys, against trees made for the test and against this machine."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterable
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

from scaling.hosts import proc
from scaling.worker.run_task import event_of

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


def topology(root: Path, cpus: dict[int, tuple[int, int, str]]) -> None:
    """CPU -> (package, core, hardware threads of its core as the kernel lists them)."""
    for cpu, (package, core, siblings) in cpus.items():
        folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(root, {f"{folder}/physical_package_id": str(package), f"{folder}/core_id": str(core)})
        write(root, {f"{folder}/thread_siblings_list": siblings})


# ---------------------------------------------------------------- cores


TWO_SOCKETS = {
    0: (0, 0, "0,4"), 1: (1, 0, "1,5"), 2: (0, 1, "2,6"), 3: (1, 1, "3,7"),
    4: (0, 0, "0,4"), 5: (1, 0, "1,5"), 6: (0, 1, "2,6"), 7: (1, 1, "3,7"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("cpus", "allowed", "cores", "sockets"),
    [
        (TWO_SOCKETS, range(8), ((0, 4), (2, 6), (1, 5), (3, 7)), 2),  # by package, then core
        (TWO_SOCKETS, {7, 2, 0, 4}, ((0, 4), (2,), (7,)), 2),
        ({cpu: (0, cpu // 4, "0-3" if cpu < 4 else "4-5,6-7") for cpu in range(8)}, range(8),
         ((0, 1, 2, 3), (4, 5, 6, 7)), 1),
        ({}, {5, 3, 11}, ((3,), (5,), (11,)), 1),  # without sysfs
        ({0: (0, 0, "0"), 1: (0, 0, "1")}, {1, 0}, ((0,), (1,)), 1),  # equal core numbers on two dies
    ],
)  # fmt: skip
def test_cores(
    tmp_path: Path, cpus: dict[int, tuple[int, int, str]], allowed: Iterable[int], cores: object, sockets: int
) -> None:
    topology(tmp_path, cpus)
    assert proc.physical_cores(allowed, tmp_path) == cores
    assert proc.sockets(tmp_path) == sockets


def test_a_core_has_one_name_for_ranks_on_each_of_its_threads(tmp_path: Path) -> None:
    topology(tmp_path, {cpu: (0, cpu % 2, f"{cpu % 2},{cpu % 2 + 2}") for cpu in range(4)})
    assert proc.core_ids(proc.physical_cores({0, 1}, tmp_path), tmp_path) == (0, 1)
    assert proc.core_ids(proc.physical_cores({2, 3}, tmp_path), tmp_path) == (0, 1)
    assert proc.core_ids(((7,), (5,)), tmp_path) == (7, 5)


def test_this_machines_cores_are_its_affinity() -> None:
    affinity = os.sched_getaffinity(0)
    cores = proc.physical_cores(affinity)
    assert sorted(cpu for core in cores for cpu in core) == sorted(affinity)
    assert 1 <= len(cores) <= len(affinity)


# ---------------------------------------------------------------- model


def test_the_first_processors_block(tmp_path: Path) -> None:
    blocks = "processor\t: 0\nmodel name\t: AMD EPYC 9654: Genoa\n\nprocessor\t: 1\nmodel name\t: other"
    write(tmp_path, {"proc/cpuinfo": blocks})
    assert proc.cpuinfo(tmp_path) == {"processor": "0", "model name": "AMD EPYC 9654: Genoa"}
    assert proc.cpuinfo(tmp_path / "nowhere") == {}


@pytest.mark.parametrize(
    ("cpuinfo", "lscpu", "expected"),
    [
        ({"model name": "AMD EPYC 9654"}, "Model name:  not asked", "AMD EPYC 9654"),
        ({"cpu": "POWER9, altivec supported"}, "", "POWER9, altivec supported"),
        ({"CPU part": "0xd4f"}, "Vendor ID: ARM\nModel name:    Neoverse-V2\n", "Neoverse-V2"),
        ({"CPU part": "0xd4f"}, "Model name:    -\nBIOS Model name: x\n", platform.machine()),
        ({}, "", platform.machine()),
    ],
)
def test_cpu_model(monkeypatch: pytest.MonkeyPatch, cpuinfo: dict[str, str], lscpu: str, expected: str) -> None:
    monkeypatch.setattr(proc, "output", lambda *command: lscpu if command == ("lscpu",) else "")
    assert proc.cpu_model(cpuinfo) == expected


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": str(4 * GIB)}, 4 * GIB),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max"}, None),
        (
            {
                "proc/self/cgroup": "0::/slurm/job_7/step_0",
                "sys/fs/cgroup/slurm/job_7/step_0/memory.max": "max",
                "sys/fs/cgroup/slurm/job_7/memory.max": str(8 * GIB),
                "sys/fs/cgroup/slurm/memory.max": str(64 * GIB),
            },
            8 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/docker/abc\n0::/",
                "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": str(2 * GIB),
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "sys/fs/cgroup/cpu/a/memory.limit_in_bytes": "1",
            },
            2 * GIB,
        ),
        # Inside a container without a cgroup namespace the path is the host's; the limit lies at the top.
        (
            {"proc/self/cgroup": "4:memory:/docker/abc", "sys/fs/cgroup/memory/memory.limit_in_bytes": str(GIB)},
            GIB,
        ),
        ({}, None),
    ],
)
def test_memory_limit(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    write(tmp_path, files)
    assert proc.memory_limit_bytes(tmp_path) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        ({"proc/self/cgroup": "3:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"}, None),
        ({}, None),
    ],
)
def test_cpu_quota(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    write(tmp_path, files)
    assert list(proc.cpu_quotas(tmp_path).values()) == ([] if expected is None else [expected])


POD = {
    "proc/self/cgroup": "0::/pod/container",
    "sys/fs/cgroup/pod/container/cpu.max": "50000 100000",
    "sys/fs/cgroup/pod/container/cpu.stat": "nr_periods 366\nnr_throttled 330\nthrottled_usec 17000000",
    "sys/fs/cgroup/pod/cpu.max": "150000 100000",
    "sys/fs/cgroup/pod/cpu.stat": "nr_periods 400\nnr_throttled 4\nthrottled_usec 500000",
    "sys/fs/cgroup/cpu.stat": "usage_usec 9",
}


def test_a_cgroup_and_those_above_it_have_quotas_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, POD)
    folder = tmp_path / "sys/fs/cgroup/pod"
    container, pod = (str(one.stat().st_ino) for one in (folder / "container", folder))
    assert proc.cpu_quotas(tmp_path) == {container: 0.5, pod: 1.5}
    assert proc.throttling(tmp_path) == {
        folder / "container": proc.Throttling(366, 330, 17.0),
        folder: proc.Throttling(400, 4, 0.5),
    }


def test_the_first_versions_counters_of_throttling_are_in_nanoseconds(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu/a"
    write(tmp_path, {"proc/self/cgroup": "3:cpu,cpuacct:/a", f"{folder}/cpu.cfs_quota_us": "50000"})
    write(tmp_path, {f"{folder}/cpu.cfs_period_us": "100000"})
    write(tmp_path, {f"{folder}/cpu.stat": "nr_periods 3\nnr_throttled 2\nthrottled_time 1500000000"})
    assert proc.throttling(tmp_path) == {tmp_path / folder: proc.Throttling(3, 2, 1.5)}
    (tmp_path / folder / "cpu.stat").unlink()
    assert proc.throttling(tmp_path) == {tmp_path / folder: proc.Throttling()}


def test_this_machines_memory_limit() -> None:
    limit = proc.memory_limit_bytes()
    assert limit is None or limit > psutil.Process().memory_info().rss


# ---------------------------------------------------------------- virtual


VM = {"flags": "fpu sse hypervisor avx2"}
METAL = {"flags": "fpu sse avx2"}
ARM = {"Features": "fp asimd"}


@pytest.mark.parametrize(
    ("cpuinfo", "vendor", "product", "expected"),
    [
        (METAL, "Dell Inc.", "PowerEdge XE9680", ""),
        (METAL, "Amazon EC2", "m5.metal", ""),
        (VM, "Amazon EC2", "p5.48xlarge", "VM Amazon EC2 p5.48xlarge"),
        (VM, "", "", "VM"),
        (ARM, "Amazon EC2", "c7g.4xlarge", "VM Amazon EC2 c7g.4xlarge"),
        (ARM, "Amazon EC2", "c7g.metal", ""),
        (ARM, "Supermicro", "ARS-111GL", ""),
        ({}, "", "", ""),
    ],
)
def test_virtual_machines(
    tmp_path: Path, cpuinfo: dict[str, str], vendor: str, product: str, expected: str
) -> None:
    dmi = "sys/class/dmi/id"
    write(tmp_path, {f"{dmi}/sys_vendor": vendor, f"{dmi}/product_name": product})
    assert proc.virtual(cpuinfo, {}, tmp_path) == expected


@pytest.mark.parametrize(
    ("file", "environ", "expected"),
    [
        (".dockerenv", {}, "VM, docker"),
        ("run/.containerenv", {"container": "oci"}, "VM, podman"),
        ("unrelated", {"APPTAINER_CONTAINER": "/images/torch.sif"}, "VM, apptainer"),
        ("unrelated", {"SINGULARITY_CONTAINER": "/images/torch.sif"}, "VM, apptainer"),
        ("unrelated", {"container": "lxc"}, "VM, lxc"),
        ("unrelated", {}, "VM"),
    ],
)
def test_containers(tmp_path: Path, file: str, environ: dict[str, str], expected: str) -> None:
    write(tmp_path, {file: ""})
    assert proc.virtual(VM, environ, tmp_path) == expected


# ---------------------------------------------------------------- the out-of-memory killer


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0",
                "sys/fs/cgroup/a/memory.events": "oom_kill 7",
                "proc/vmstat": "oom_kill 9",
            },
            (2, "memory.events"),
        ),
        (
            {
                "proc/self/cgroup": "5:memory:/a\n0::/",
                "sys/fs/cgroup/memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4",
                "proc/vmstat": "oom_kill 9",
            },
            (4, "memory.oom_control"),
        ),
        # The root has no such file: the machine's own count.
        ({"proc/self/cgroup": "0::/", "proc/vmstat": "pgfault 1\noom_kill 9"}, (9, "vmstat")),
        ({}, (0, "")),
    ],
)
def test_which_file_counts_the_kernel_s_kills_for_memory(
    tmp_path: Path, files: dict[str, str], expected: tuple[int, str]
) -> None:
    write(tmp_path, files)
    assert proc.oom_kills(tmp_path) == expected


@pytest.mark.parametrize(
    ("stat", "expected"), [("7 (a) Z b) S 1 7", False), ("7 (a) Z 1 7", True), ("7 (a) T 1 7", False), ("", True)]
)
def test_whether_a_process_has_ended(tmp_path: Path, stat: str, expected: bool) -> None:
    write(tmp_path, {"proc/7/stat": stat} if stat else {})
    assert proc.is_over(7, tmp_path) == expected


def test_the_time_that_this_thread_waits_for_a_cpu(tmp_path: Path) -> None:
    folder = tmp_path / "proc/thread-self"
    folder.mkdir(parents=True)
    (folder / "schedstat").write_text("1000000000 250000000 3\n")
    assert proc.queued_s(tmp_path) == 0.25
    assert proc.queued_s(tmp_path / "none") == 0.0


# ---------------------------------------------------------------- the limit that a fork or a new thread ran into


SYSTEM_ERROR = "Resource temporarily unavailable"
CLEAR = ("can't start new thread", "libgomp: Thread creation failed: x", "OpenBLAS: pthread_create failed")


@pytest.fixture(autouse=True)
def no_ulimit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def pids(root: Path, most: str, used: int) -> Path:
    folder = root / "sys/fs/cgroup/pod"
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/pod/container\n")
    folder.mkdir(parents=True)
    (folder / "pids.max").write_text(f"{most}\n")
    (folder / "pids.current").write_text(f"{used}\n")
    return root


@pytest.mark.parametrize(
    ("text", "most", "used", "is_said"),
    [
        *((text, "64", 63, True) for text in (*CLEAR, SYSTEM_ERROR)),
        # A limit that is far away is blamed only for what surely is a thread: a socket says EAGAIN too.
        *((text, "4096", 63, text != SYSTEM_ERROR) for text in (*CLEAR, SYSTEM_ERROR)),
        ("out of memory", "64", 64, False),
        (SYSTEM_ERROR, "max", 64, False),
        (CLEAR[0], "max", 64, False),
    ],
)
def test_a_reached_limit_is_named_with_its_value_and_the_mend(
    tmp_path: Path, text: str, most: str, used: int, is_said: bool
) -> None:
    said = proc.limit_hint(text, pids(tmp_path, most, used))
    assert (f"pids.max of the cgroup is {most}, {used} in use" in said) is is_said
    assert ("--pids-limit" in said) is bool(said) is is_said


def test_the_users_own_limit_is_named_with_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 200))
    monkeypatch.setattr(proc, "_threads", lambda: 98)
    assert "ulimit -u is 100, 98 in use" in proc.limit_hint("", tmp_path, is_fork=True)


def test_a_workers_own_words_lead_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "pids", lambda root: iter([(64, 64)]))
    event = event_of(RuntimeError("can't start new thread"))
    assert event.message.startswith("RuntimeError: can't start new thread; pids.max of the cgroup is 64")
    assert not event.may_follow
