"""This process and its kernel: cores, limits of memory, CPU time and processes, virtual machine, orphans.

Missing files of /proc and /sys are normal in containers and on other processors; readers then return an empty
value. `root` is the folder of both.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil  # type: ignore[import-untyped, unused-ignore]

# ---------------------------------------------------------------- processor

ROOT = Path("/")

# DMI vendors of virtual machines, for processors without a flag (Arm).
VIRTUAL_VENDORS = ("Alibaba Cloud", "Amazon EC2", "Google", "KVM", "OpenStack", "QEMU", "VMware", "Xen")


def physical_cores(cpus: Iterable[int], root: Path = ROOT) -> tuple[tuple[int, ...], ...]:
    """Group these CPUs into physical cores, ordered by (package, core).
    Each core is the tuple of its hardware threads in `cpus`. Without sysfs every CPU is a core."""
    allowed, cores = set(cpus), []
    while allowed:
        cpu = min(allowed)
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        threads = (_cpu_list(text(topology / "thread_siblings_list")) & allowed) | {cpu}
        package, core = text(topology / "physical_package_id"), text(topology / "core_id")
        cores.append((int(package or 0), int(core or cpu), tuple(sorted(threads))))
        allowed -= threads
    return tuple(threads for _, _, threads in sorted(cores))


def core_ids(cores: Iterable[tuple[int, ...]], root: Path = ROOT) -> tuple[int, ...]:
    """Return the lowest hardware thread of each core, whether this process may use it or not."""
    siblings = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return tuple(min({*core, *_cpu_list(text(root / siblings.format(core[0])))}) for core in cores)


def _cpu_list(text: str) -> set[int]:
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


def sockets(root: Path = ROOT) -> int:
    """Return the number of processor packages of the host."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology/physical_package_id")
    return len({text(file) for file in files}) or 1


def network_id() -> str:
    """Return the network namespace of this process; "" if unknown."""
    return link(Path("/proc/self/ns/net"))


def boot_id(root: Path = ROOT) -> str:
    """Return the identifier of this kernel's boot, equal in all containers; "" if unknown."""
    return text(root / "proc/sys/kernel/random/boot_id").strip()


def asleep_s() -> float:
    """Return the seconds that this machine was suspended since its boot; CLOCK_MONOTONIC leaves them out."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def cpuinfo(root: Path = ROOT) -> dict[str, str]:
    """Return the first processor's block of /proc/cpuinfo; all of it is slow to read on large hosts."""
    block: dict[str, str] = {}
    with suppress(OSError), (root / "proc/cpuinfo").open() as lines:
        for line in lines:
            key, colon, value = line.partition(":")
            if not colon:
                break
            block[key.strip()] = value.strip()
    return block


def cpu_model(cpuinfo: dict[str, str]) -> str:
    """Return the processor's name. On Arm only lscpu knows it."""
    for key in ("model name", "cpu model", "cpu"):
        if cpuinfo.get(key):
            return cpuinfo[key]
    named = re.search(r"^Model name:\s*(\w.*)$", output("lscpu"), re.MULTILINE)
    return named.group(1) if named else platform.machine()


# ---------------------------------------------------------------- limits of memory and CPU time


def memory_limit_bytes(root: Path = ROOT) -> int | None:
    """Return the lowest memory limit of this process's cgroup (v2 or v1) and its ancestors; None without one."""
    files = _limit_files(root, "memory", "memory.max", "memory.limit_in_bytes")
    limits = (text(file) for file in files)
    return min((int(limit) for limit in limits if limit.isdigit()), default=None)


def cpu_quotas(root: Path = ROOT) -> dict[str, float]:
    """Return the CPUs granted by this process's cgroup (v2 or v1) and its ancestors (`docker --cpus`), by inode.
    All processes of a cgroup share its quota. An affinity mask does not show it."""
    return {str(folder.stat().st_ino): cpus for folder, cpus in _quotas(root)}


class Throttling(NamedTuple):
    """Counters of a cgroup's CPU quota: periods, throttled periods, throttled seconds summed over CPUs."""

    periods: int = 0
    throttled: int = 0
    seconds: float = 0.0


def throttling(root: Path = ROOT) -> dict[Path, Throttling]:
    """Return the counters of this process's cgroup and its ancestors with a quota, by folder."""
    return {folder: _throttling(folder) for folder, _ in _quotas(root)}


def _throttling(folder: Path) -> Throttling:
    counts = dict(line.split() for line in text(folder / "cpu.stat").splitlines())
    seconds = int(counts.get("throttled_usec", 0)) / 1e6 + int(counts.get("throttled_time", 0)) / 1e9
    return Throttling(int(counts.get("nr_periods", 0)), int(counts.get("nr_throttled", 0)), seconds)


def _quotas(root: Path) -> Iterator[tuple[Path, float]]:
    for file in _limit_files(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        words = text(file).split()
        period = words[1] if len(words) == 2 else text(file.with_name("cpu.cfs_period_us"))
        if words and words[0].isdigit() and period.strip().isdigit():
            yield file.parent, int(words[0]) / int(period)


def pids(root: Path = ROOT) -> Iterator[tuple[int, int]]:
    """Yield (limit, processes and threads in use) of this process's cgroup and its ancestors with a limit."""
    for file in _limit_files(root, "pids", "pids.max", "pids.max"):
        most, used = text(file), text(file.with_name("pids.current"))
        if most.isdigit() and used.isdigit():
            yield int(most), int(used)


def _limit_files(root: Path, controller: str, v2: str, v1: str) -> Iterator[Path]:
    mount = root / "sys/fs/cgroup"
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, name = mount, v2
        elif controller in controllers.split(","):
            top, name = mount / controller, v1
        else:
            continue
        folder = Path(path.lstrip("/"))
        yield from (top / above / name for above in (folder, *folder.parents))


def oom_kills(root: Path = ROOT) -> tuple[int, str]:
    """Return the count of the kernel's out-of-memory killer, and the file that counts.
    It is of this process's cgroup (v2, and v1 since Linux 4.13), else of the machine; (0, "") if unknown."""
    files = _limit_files(root, "memory", "memory.events", "memory.oom_control")
    for file in (*files, root / "proc/vmstat"):
        for line in text(file).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1]), file.name
    return 0, ""


# ---------------------------------------------------------------- virtual machine, container


def virtual(cpuinfo: Mapping[str, str], environ: Mapping[str, str], root: Path = ROOT) -> str:
    """Return the virtual machine and container of this process: `VM Amazon EC2 m5.xlarge, docker`, or ""."""
    dmi = root / "sys/class/dmi/id"
    vendor, product = text(dmi / "sys_vendor"), text(dmi / "product_name")
    flags = cpuinfo.get("flags", "").split()
    by_vendor = vendor.startswith(VIRTUAL_VENDORS) and not product.endswith("metal")
    is_virtual = "hypervisor" in flags if flags else by_vendor
    machine = f"VM {vendor} {product}".strip() if is_virtual else ""
    return ", ".join(filter(None, (machine, _container(environ, root))))


def _container(environ: Mapping[str, str], root: Path) -> str:
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if {"APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"} & environ.keys():
        return "apptainer"
    return environ.get("container", "")


# ---------------------------------------------------------------- processes


def queued_s(root: Path = ROOT) -> float:
    """Return how long this thread has waited for CPUs; 0 if unknown."""
    words = text(root / "proc/thread-self/schedstat").split()
    return int(words[1]) / 1e9 if len(words) > 1 else 0.0


def is_over(pid: int, root: Path = ROOT) -> bool:
    """Return whether a process has ended, reaped or not; it need not be a child."""
    # The command may contain brackets too.
    return text(root / f"proc/{pid}/stat").rpartition(")")[2].split()[:1] in ([], ["Z"], ["X"])


# ---------------------------------------------------------------- files and commands


def text(file: Path) -> str:
    """Return a file's content; "" if it cannot be read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def link(path: Path) -> str:
    """Return where a symbolic link leads; "" if it cannot be read."""
    try:
        return str(path.readlink())
    except OSError:
        return ""


def output(*command: str) -> str:
    """Return what a command prints; "" if it is missing, fails or takes over 5 s. GIT_* of a git hook is
    removed."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            command, env={**environ, "LC_ALL": "C"}, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


# ---------------------------------------------------------------- orphans and deaths of parents (prctl(2))

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def signal_at_parents_death(number: signal.Signals) -> None:
    """Ask the kernel for a signal when this process's parent dies; forks do not inherit that."""
    _prctl(_PR_SET_PDEATHSIG, number)


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies.
    The thread that watches the lifeline cannot run during an import, or while a framework holds the GIL."""
    signal_at_parents_death(signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants' orphans.
    With SIGCHLD ignored the kernel would reap children, and their exit codes would be lost (sigaction(2))."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


# ---------------------------------------------------------------- limits of processes and threads
# A fork or a thread that fails at a limit only gets EAGAIN, "Resource temporarily unavailable".

# Messages of Python, libgomp, OpenBLAS and TensorFlow, in lower case.
CLEAR = ("can't start new thread", "pthread_create failed", "pthread_create() failed", "thread creation failed")
VAGUE = "resource temporarily unavailable"
# A limit counts as reached from this part on: processes may have ended since.
REACHED = 0.9


def limit_hint(text: str, root: Path = ROOT, *, is_fork: bool = False) -> str:
    """Return `; pids.max of the cgroup is 64, 64 in use: raise it (...)` for the limit with the least room.
    "" unless `text` says that no process or thread could be made, or `is_fork` is set."""
    words = text.lower()
    is_clear = is_fork or any(one in words for one in CLEAR)
    if not is_clear and VAGUE not in words:
        return ""
    for most, used, name, mend in sorted(_limits(root), key=lambda limit: limit[0] - limit[1])[:1]:
        if is_clear or used >= REACHED * most:
            return f"; {name} is {most}, {used} in use: raise it ({mend}), or use fewer ranks"
    return ""


def _limits(root: Path) -> Iterator[tuple[int, int, str, str]]:
    """Yield each limit of processes and threads, their number, the limit's name, and how to raise it."""
    for most, used in pids(root):
        yield (
            most,
            used,
            "pids.max of the cgroup",
            "docker --pids-limit, Kubernetes podPidsLimit, systemd TasksMax",
        )
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if most != resource.RLIM_INFINITY:
        yield most, _threads(), "ulimit -u", "ulimit -u unlimited; limits.d: `* - nproc unlimited`"


def _threads() -> int:
    mine = psutil.Process().uids().real
    every = psutil.process_iter(["uids", "num_threads"])
    return sum(one.info["num_threads"] or 0 for one in every if one.info["uids"] and one.info["uids"].real == mine)
