"""What is read below /proc and /sys, against trees made for the test and against this machine."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

from scaling.hosts import proc
from scaling.hosts.proc import TICKS_PER_S, Census

# ---------------------------------------------------------------- test foreign


NOBODY: Mapping[int, float] = MappingProxyType({})
# More than any kernel gives: their commands are unknown.
BASE = 1 << 23
LAUNCHER, RANK, BURNER, TWIN, IDLE, SHELL, MAKE, DRIVER, COMPILER, SECOND = range(BASE, BASE + 10)
PARENTS = {
    LAUNCHER: 1, RANK: LAUNCHER, BURNER: 1, TWIN: BURNER, IDLE: 1,
    SHELL: 1, MAKE: SHELL, DRIVER: MAKE, COMPILER: DRIVER, SECOND: MAKE,
}  # fmt: skip
NAMES = {
    LAUNCHER: "mpirun", RANK: "rank", BURNER: "a (b) c", TWIN: "a (b) c", IDLE: "idle",
    SHELL: "shell", MAKE: "make", DRIVER: "gcc", COMPILER: "cc1", SECOND: "gcc",
}  # fmt: skip


def seen(root: Path, at_s: float, used_s: dict[int, float], children_s: Mapping[int, float] = NOBODY) -> Census:
    """These processes alone, which have used so many seconds, half of them in the kernel, and so have the children
    that they have waited for."""
    shutil.rmtree(root, ignore_errors=True)
    for pid, seconds in used_s.items():
        (root / str(pid)).mkdir(parents=True)
        half, of_children = (int(s * TICKS_PER_S / 2) for s in (seconds, children_s.get(pid, 0.0)))
        times = map(str, (half, half, of_children, of_children))
        fields = ["S", str(PARENTS[pid]), *["0"] * 9, *times, *["0"] * 28]
        (root / str(pid) / "stat").write_text(f"{pid} ({NAMES[pid]}) {' '.join(fields)}\n")
    (root / "uptime").write_text("1.0 1.0\n")
    return proc.census(root)._replace(at_s=at_s)


def test_who_is_none_of_the_launch_and_was_busy(tmp_path: Path) -> None:
    before = seen(tmp_path, 100.0, {LAUNCHER: 5.0, RANK: 50.0, BURNER: 7.0, IDLE: 3.0})
    now = seen(tmp_path, 102.0, {LAUNCHER: 5.0, RANK: 52.0, BURNER: 9.0, IDLE: 3.1})
    (found,) = proc.busiest(before, now, LAUNCHER)
    assert (found.name, found.over_s) == ("a (b) c", 2.0)
    assert found.run_s == pytest.approx(2.0)


def test_processes_of_one_name_are_one(tmp_path: Path) -> None:
    before = seen(tmp_path, 0.0, {BURNER: 0.0, TWIN: 0.0})
    now = seen(tmp_path, 1.0, {BURNER: 1.0, TWIN: 0.6})
    (found,) = proc.busiest(before, now, LAUNCHER)
    assert found.cores == pytest.approx(1.6)


def used(before: Census, now: Census) -> dict[str, float]:
    return {one.name: round(one.run_s, 6) for one in proc.busiest(before, now, LAUNCHER)}


def test_who_came_meanwhile_has_used_all_of_it_since(tmp_path: Path) -> None:
    before = seen(tmp_path, 0.0, {IDLE: 0.0})
    assert used(before, seen(tmp_path, 1.0, {IDLE: 0.0, BURNER: 0.8})) == {"a (b) c": 0.8}


def test_who_has_gone_meanwhile_and_whom_nobody_waited_for_is_unknown(tmp_path: Path) -> None:
    before = seen(tmp_path, 0.0, {IDLE: 0.0, BURNER: 5.0})
    assert used(before, seen(tmp_path, 1.0, {IDLE: 0.0})) == {}


def test_children_that_came_and_went_are_their_parents(tmp_path: Path) -> None:
    """Compilers that live for less than a second are named after `make`."""
    before = seen(tmp_path, 0.0, {SHELL: 1.0, MAKE: 1.0, IDLE: 0.0}, {MAKE: 50.0})
    now = seen(tmp_path, 1.0, {SHELL: 1.0, MAKE: 1.1, IDLE: 0.0}, {MAKE: 50.7})
    assert used(before, now) == {"make": 0.8}


def test_what_children_had_used_before_does_not_count(tmp_path: Path) -> None:
    """A driver and the compiler that it had begun have ended: make was given all that they have used."""
    before = seen(tmp_path, 0.0, {SHELL: 1.0, MAKE: 1.0, DRIVER: 0.2, COMPILER: 3.0}, {MAKE: 50.0, DRIVER: 4.0})
    ended = {SHELL: 1.0, MAKE: 1.0}
    assert used(before, seen(tmp_path, 1.0, ended, {MAKE: 50.0 + 7.2 + 0.6})) == {"make": 0.6}


def test_children_that_are_still_there_are_their_own(tmp_path: Path) -> None:
    before = seen(tmp_path, 0.0, {MAKE: 1.0, DRIVER: 0.2, SECOND: 0.4}, {DRIVER: 1.0})
    now = seen(tmp_path, 1.0, {MAKE: 1.0, DRIVER: 0.2, SECOND: 0.8}, {DRIVER: 1.2})
    assert used(before, now) == {"gcc": 0.6}


def test_whoever_waits_for_what_others_left_behind_has_not_used_it(tmp_path: Path) -> None:
    """A driver ended before the compiler, which an ancestor waits for; it had computed for an hour."""
    before = seen(tmp_path, 0.0, {SHELL: 1.0, MAKE: 1.0, DRIVER: 0.2, COMPILER: 3600.0, IDLE: 0.0})
    now = seen(tmp_path, 1.0, {SHELL: 1.0, MAKE: 1.0, IDLE: 0.0}, {SHELL: 3600.0, MAKE: 0.2})
    assert used(before, now) == {}


def test_children_of_the_launch_are_its_own(tmp_path: Path) -> None:
    before = seen(tmp_path, 0.0, {LAUNCHER: 1.0, RANK: 1.0, IDLE: 0.0})
    now = seen(tmp_path, 1.0, {LAUNCHER: 1.0, RANK: 1.0, IDLE: 0.0}, {LAUNCHER: 9.0, RANK: 9.0})
    assert used(before, now) == {}


def test_a_command_is_told_by_its_program_and_first_arguments() -> None:
    parent = os.getppid()
    program = Path(f"/proc/{parent}/cmdline").read_text().split("\0")[0]
    before = Census(0.0, {parent: proc._Process("x", 1, 0.0)})
    now = Census(1.0, {parent: proc._Process("x", 1, 1.0)})
    (found,) = proc.busiest(before, now, LAUNCHER)
    assert found.name.startswith(Path(program).name)
    assert len(found.name) <= proc.NAME_LENGTH


def test_a_number_that_was_given_again_makes_no_endless_line() -> None:
    """The parent of one ended, and its number went to a child of that one before it was read."""
    before, now = (
        Census(at_s, {BURNER: proc._Process("x", TWIN, at_s), TWIN: proc._Process("y", BURNER, at_s)})
        for at_s in (0.0, 1.0)
    )
    assert len(proc.busiest(before, now, LAUNCHER)) == 2


# ---------------------------------------------------------------- the launch's own


def named(monkeypatch: pytest.MonkeyPatch, parents: dict[int, int], ranks: tuple[int, ...]) -> set[int]:
    """Who is named, where all of these processes were busy; the first of `ranks`, which run one command, is this
    one."""
    monkeypatch.setattr(os, "getpid", lambda: ranks[0])
    monkeypatch.setattr(os, "getppid", lambda: parents[ranks[0]])
    monkeypatch.setattr(proc, "_arguments", lambda pid: ["python", "-m", "scaling.run"] if pid in ranks else [])
    monkeypatch.setattr(proc, "_command", lambda pid, _name: str(pid))
    monkeypatch.setattr(proc, "NAMED", len(parents))
    before, now = (
        Census(at_s, {pid: proc._Process("x", parent, at_s) for pid, parent in parents.items()})
        for at_s in (0.0, 1.0)
    )
    return {int(one.name) for one in proc.busiest(before, now)}


def test_ranks_behind_shells_of_their_own_are_the_launchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `mpirun apptainer exec` starts them; another launch of the same command is none of this one."""
    rank, worker, shell, mpirun, shell_1, rank_1, worker_1, mpirun_2, rank_2, worker_2 = range(BASE, BASE + 10)
    parents = {
        1: 0, mpirun: 1, shell: mpirun, rank: shell, worker: rank, shell_1: mpirun, rank_1: shell_1,
        worker_1: rank_1, mpirun_2: 1, rank_2: mpirun_2, worker_2: rank_2,
    }  # fmt: skip
    found = named(monkeypatch, parents, (rank, rank_1, rank_2))
    assert found.isdisjoint({rank, worker, rank_1, worker_1})
    assert found >= {mpirun_2, rank_2, worker_2}


def test_in_a_container_whose_first_process_is_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, worker, rank_1, worker_1, other = range(BASE, BASE + 5)
    parents = {1: 0, rank: 1, worker: rank, rank_1: 1, worker_1: rank_1, other: 0}
    assert named(monkeypatch, parents, (rank, rank_1)) == {1, other}


def test_in_a_container_whose_first_process_is_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, other = BASE, BASE + 1
    assert named(monkeypatch, {1: 0, worker: 1, other: 0}, (1,)) == {other}


# ---------------------------------------------------------------- test proc

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


def test_cores_are_ordered_by_package_then_core(tmp_path: Path) -> None:
    topology(tmp_path, TWO_SOCKETS)
    assert proc.physical_cores(range(8), tmp_path) == ((0, 4), (2, 6), (1, 5), (3, 7))
    assert proc.sockets(tmp_path) == 2


def test_only_threads_within_the_affinity(tmp_path: Path) -> None:
    topology(tmp_path, TWO_SOCKETS)
    assert proc.physical_cores({7, 2, 0, 4}, tmp_path) == ((0, 4), (2,), (7,))


def test_siblings_in_ranges(tmp_path: Path) -> None:
    topology(tmp_path, {cpu: (0, cpu // 4, "0-3" if cpu < 4 else "4-5,6-7") for cpu in range(8)})
    assert proc.physical_cores(range(8), tmp_path) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_without_sysfs_every_cpu_is_a_core(tmp_path: Path) -> None:
    assert proc.physical_cores({5, 3, 11}, tmp_path) == ((3,), (5,), (11,))
    assert proc.sockets(tmp_path) == 1


def test_equal_core_numbers_on_two_dies_stay_apart(tmp_path: Path) -> None:
    topology(tmp_path, {0: (0, 0, "0"), 1: (0, 0, "1")})
    assert proc.physical_cores({1, 0}, tmp_path) == ((0,), (1,))


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
            {
                "proc/self/cgroup": "4:memory:/docker/abc",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": str(GIB),
            },
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
