"""Describe this host: processor, memory, network interfaces, GPUs, versions, allocator, code.

Each agent reads it once, in a few milliseconds. Versions come from package metadata; no framework is imported.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from math import inf
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
from msgspec.structs import replace

import scaling
from scaling.errors import LaunchError
from scaling.hosts import interfaces, networks, proc
from scaling.hosts.gpus import gather_gpus, session, unsupported, visible
from scaling.records.host import HostInfo, Nic, joined_variables
from scaling.text import counted

ANSWER_S = 30  # of the GPUs' driver
PACKAGES: Mapping[str, Sequence[str]] = {name: (name,) for name in ("mpi4py", "numpy", "nvidia-ml-py")}


def gather(packages: Mapping[str, Sequence[str]]) -> HostInfo:
    """Describe this host as this process sees it, with its CPU affinity, cgroup and visible GPUs.
    `packages` maps further packages to their distribution names; the first installed one counts."""
    found = gather_gpus()
    cpuinfo = proc.cpuinfo()
    total_bytes: int = psutil.virtual_memory().total
    (nics, ipv6_only), cores = _nics(), proc.physical_cores(os.sched_getaffinity(0))
    return HostInfo(
        hostname=socket.gethostname(),
        os=_os_name(),
        kernel=platform.release(),
        cpu_model=proc.cpu_model(cpuinfo),
        sockets=proc.sockets(),
        cores=cores,
        memory_bytes=min(total_bytes, proc.memory_limit_bytes() or total_bytes),
        load_1m=os.getloadavg()[0],
        python=platform.python_version(),
        versions={"scaling": scaling.__version__, **versions({**PACKAGES, **packages})},
        nics=nics,
        gpus=found.gpus,
        gpu_driver=found.driver,
        virtual=proc.virtual(cpuinfo, os.environ),
        hcas=interfaces.hcas(),
        nccl_plugins=interfaces.nccl_plugins(os.environ) if found.gpus else (),
        boot_id=proc.boot_id(),
        network_id=proc.network_id(),
        allocator=allocator_in_use(),
        allocator_by=allocator_brought_by(os.environ),
        heap_settings=heap_settings(os.environ),
        routes=networks.read_routes({nic.name for nic in nics}),
        reachable_gpus=found.reachable,
        unsupported_gpus=unsupported(found),
        core_ids=proc.core_ids(cores),
        ipv6_only=ipv6_only,
        cpu_quotas=proc.cpu_quotas(),
        launcher_cores=_launcher_cores(),
    )


def joined(hosts: Sequence[HostInfo]) -> HostInfo:
    """Join what the ranks of one host know: each may see other GPUs and variables."""
    most = max(hosts, key=lambda host: len(host.gpus))
    if any(host.variables != most.variables for host in hosts):
        changed = tuple(dict.fromkeys(one for host in hosts for one in host.changed_variables))
        most = replace(most, variables=joined_variables(hosts), changed_variables=changed)
    gpus = {gpu.uuid: gpu for host in (most, *hosts) for gpu in host.gpus}
    if len(gpus) == len(most.gpus):
        return most
    # Links to GPUs that a rank does not see are unknown.
    return replace(most, gpus=tuple(replace(gpu, links=(), p2p=()) for gpu in gpus.values()))


def check_names(hosts: Sequence[HostInfo]) -> None:
    """Raise LaunchError if two hosts have one name, since the name identifies a host; `hosts[r]` is rank r's."""
    first: dict[str, int] = {}
    for rank, host in enumerate(hosts):
        other = hosts[first.setdefault(host.hostname, rank)]
        mend = ""
        if "" not in (ids := {other.boot_id, host.boot_id}) and len(ids) > 1:
            where, mend = "machines", "hostnamectl set-hostname NAME"
        elif "" not in (ids := {other.network_id, host.network_id}) and len(ids) > 1:
            where, mend = "containers (network namespaces)", "docker run --hostname NAME"
        if mend:
            raise LaunchError(
                f"ranks {first[host.hostname]} and {rank} run on two {where} that both call themselves "
                f"{host.hostname}; give each a name of its own: {mend}"
            )


# ---------------------------------------------------------------- descriptions


def describe(host: HostInfo) -> str:
    """Return one line: `node1: AMD EPYC 9654, 96 cores, 755.0 GiB, Ubuntu 24.04 LTS; 8 x NVIDIA H200 (...)`."""
    model = re.sub(r"\((R|TM)\)|\s+CPU\b|\s*@.*|\s+\d+-Core Processor", "", host.cpu_model)
    system = re.sub(r" GNU/Linux|\s*\(.*?\)", "", host.os)
    cores = cores_text(host)
    memory = f"{host.memory_bytes / 2**30:.1f} GiB"
    return f"{host.hostname}: {model}, {cores}, {memory}, {system}; {_describe_gpus(host)}"


def cores_text(host: HostInfo) -> str:
    """Return `64 cores`, or `64 cores, the time of 1.5 (CPU quota)`."""
    quota = min(host.cpu_quotas.values(), default=inf)
    granted = f", the time of {quota:.3g} (CPU quota)" if quota < len(host.cores) else ""
    return counted(len(host.cores), "core") + granted


def _describe_gpus(host: HostInfo) -> str:
    if not host.gpus:
        others = f"; {host.unsupported_gpus}" if host.unsupported_gpus else ""
        return (f"no GPU visible (driver {host.gpu_driver})" if host.gpu_driver else "no GPU") + others
    names = Counter(gpu.name for gpu in host.gpus)
    text = ", ".join(f"{count} x {name}" for name, count in names.items())
    text += f" (driver {host.gpu_driver})" if host.gpu_driver else ""
    links = sorted({link for gpu in host.gpus for link in gpu.links} - {"self", "?"})
    if links:
        text += ", NVLink " if all(link.startswith("NV") for link in links) else ", linked by "
    return text + "/".join(links)


def _launcher_cores() -> int:
    try:
        return len(proc.physical_cores(os.sched_getaffinity(os.getppid())))
    except OSError:
        return 0


def ids_of(host: HostInfo) -> tuple[int, ...]:
    """Return an identifier of each core, equal for all ranks of a machine."""
    return host.core_ids or tuple(core[0] for core in host.cores)


def cores_of(hosts: Iterable[HostInfo]) -> tuple[tuple[int, ...], ...]:
    """Return the cores that any of these ranks of one machine may use; a rank may have one thread of a core."""
    threads: dict[int, set[int]] = {}
    for host in hosts:
        for name, core in zip(ids_of(host), host.cores, strict=True):
            threads.setdefault(name, set()).update(core)
    return tuple(tuple(sorted(core)) for core in threads.values())


def devices(device: str) -> tuple[int, str]:
    """Return the number and kind of the devices that ranks of this machine would take: its GPUs, unless `device`
    names CPUs or emulated ones, else its cores. Raises LaunchError if the driver does not answer."""
    if (gpus := 0 if device.startswith(("cpu", "emulated")) else _visible_gpus()) > 0:
        return gpus, "GPU"
    quota = min(proc.cpu_quotas().values(), default=inf)
    return max(1, int(min(len(proc.physical_cores(os.sched_getaffinity(0))), quota))), "core"


def _visible_gpus() -> int:
    """Count them in a fork: a process that uses NVML must not be forked."""
    pid = os.fork()
    if pid:
        found = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if found < 0:
            raise LaunchError(f"the GPUs' driver does not answer in {ANSWER_S} s: mend it, or use --device cpu")
        return found
    signal.alarm(ANSWER_S)
    found = 0
    try:
        nvml, _ = session()
        found = len(visible(nvml)) if nvml else 0
    finally:
        os._exit(found)


def granted_cpus(hosts: Iterable[HostInfo]) -> float:
    """Return the least CPUs that quotas grant one of these ranks; infinity without a quota."""
    quotas = [one for host in hosts for one in host.cpu_quotas.items()]
    ranks = Counter(group for group, _ in quotas)
    return min((quota / ranks[group] for group, quota in quotas), default=inf)


def pick_cpus(cores: tuple[tuple[int, ...], ...], *, local_rank: int, per_rank: int) -> tuple[int, ...]:
    """Return the hardware threads of a rank's `per_rank` cores.
    Ranks take cores in order, and start again at the first core if there are more ranks than cores."""
    first = local_rank * per_rank
    mine = (cores[(first + offset) % len(cores)] for offset in range(per_rank))
    return tuple(dict.fromkeys(cpu for core in mine for cpu in core))


# ---------------------------------------------------------------- system, network


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()


def _nics() -> tuple[tuple[Nic, ...], tuple[str, ...]]:
    """List every IPv4 address with its interface, and the interfaces that are up with IPv6 addresses alone.
    `eth0:1` is a label of an address on eth0."""
    states, found, ipv6 = psutil.net_if_stats(), [], []
    for label, addresses in psutil.net_if_addrs().items():
        name = label.partition(":")[0]
        if (state := states.get(name)) is None:
            continue
        ipv6 += [name] if state.isup and any(one.family == socket.AF_INET6 for one in addresses) else []
        # Mb/s; 0xFFFF is "unknown" in old drivers. Only the speed of a card is real.
        is_real = state.speed > 0 and state.speed != 0xFFFF and interfaces.has_card(name)
        speed_bits_per_s = state.speed * 1e6 if is_real else None
        found += [
            Nic(
                name=name,
                address=one.address,
                netmask=one.netmask or "",
                up=state.isup,
                mtu=state.mtu,
                speed_bits_per_s=speed_bits_per_s,
            )
            for one in addresses
            if one.family == socket.AF_INET
        ]
    return tuple(found), tuple(name for name in ipv6 if name not in {nic.name for nic in found})


def versions(packages: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the versions of the installed packages, each of its first distribution that is installed."""
    found: dict[str, str] = {}
    for package, name in ((package, name) for package, names in packages.items() for name in names):
        if package not in found:
            # None or an error: metadata without a version, of a package that is half removed
            with suppress(metadata.PackageNotFoundError, FileNotFoundError, KeyError):
                if text := metadata.version(name):
                    found[package] = text
    return found


# ---------------------------------------------------------------- allocator
# The library that replaces malloc in this process and in children with its environment, by its loader. LD_PRELOAD
# may name a missing library; others come by /etc/ld.so.preload or are linked to Python. The libraries that a
# framework's own Python is linked to are unknown.

ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc", "hoard", "snmalloc", "tbbmalloc")
# Variables of glibc's heap (mallopt(3), "Tunables" in its manual).
HEAP_VARIABLES = (
    "MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST", "MALLOC_CHECK_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_PERTURB_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_",
)  # fmt: skip
# The C library: glibc (libc.so.6, libc-2.31.so) or musl (ld-musl-x86_64.so.1).
_C_LIBRARY = re.compile(r"libc\.|libc-2|ld-")


class _Symbol(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("at", ctypes.c_void_p),
    )  # fmt: skip


@cache
def allocator_in_use() -> str:
    """Return the library that replaces malloc: `jemalloc`; "" for the C library."""
    # Every allocator defines posix_memalign. The address of malloc is the program's in a Python that is not PIE.
    loaded, found = ctypes.CDLL(None), _Symbol()
    loaded.dladdr(loaded.posix_memalign, ctypes.byref(found))
    return allocator_named(os.fsdecode(found.file or b""))


def allocator_brought_by(environ: Mapping[str, str]) -> str:
    """Return `LD_PRELOAD` if that loaded the library in use, else ""."""
    words = (
        word
        for word in re.split(r"[\s:]+", environ.get("LD_PRELOAD", ""))
        if "/" not in word or "$" in word or Path(word).exists()
    )
    return "LD_PRELOAD" if allocator_in_use() and allocator_in_use() in map(allocator_named, words) else ""


def heap_settings(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the user's settings of glibc's heap: `MALLOC_TRIM_THRESHOLD_=0`, `glibc.malloc.arena_max=1`."""
    tunables = environ.get("GLIBC_TUNABLES", "").split(":")
    variables = (f"{name}={environ[name]}" for name in HEAP_VARIABLES if name in environ)
    return (*variables, *(one for one in tunables if one.startswith("glibc.malloc.")))


def allocator_named(path: str) -> str:
    """Return the name of an allocator's library; "" for the C library and for no library."""
    name = path.rpartition("/")[2]
    if _C_LIBRARY.match(name) or ".so" not in name:
        return ""
    return next((known for known in ALLOCATORS if known in name), name.partition(".so")[0].removeprefix("lib"))


# ---------------------------------------------------------------- the code that runs here

PACKAGE = Path(__file__).parents[1]
# Written when an image is made, which has neither git nor a checkout.
STAMP = "REVISION"
DIGITS = 10


def code_hash(package: Path = PACKAGE) -> str:
    """Return the first 12 hex digits of SHA-256 over the names and contents of the package's Python files."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(package).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]


def revision(package: Path = PACKAGE) -> str:
    """Return the commit of the package's checkout (10 digits), with `-dirty` if the package differs from it; else
    the stamp of its image, else ""."""
    # Git refuses a folder of another owner, but not one that is named. `-c safe.directory=*` needs git 2.38.
    top = next((one for one in package.resolve().parents if (one / ".git").exists()), package)
    git = ("git", f"--git-dir={top}/.git", f"--work-tree={top}", "-C", str(package), "--no-optional-locks")
    commit = proc.output(*git, "rev-parse", "HEAD", "HEAD:./__init__.py")[:DIGITS]
    changed = "-dirty" if commit and proc.output(*git, "status", "--porcelain", "--", ".") else ""
    return f"{commit}{changed}" or proc.text(package / STAMP)[:DIGITS]
