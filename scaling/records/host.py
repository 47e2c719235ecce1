"""The machine of an agent: processors, GPUs, network interfaces and RDMA cards."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Interface, IPv4Network

from scaling.records.point import Amount, Count, Index, Record

# ---------------------------------------------------------------- GPU health


class GpuHealth(Record, frozen=True, kw_only=True):
    """One GPU. `compute_mode` is nvidia-smi's word (`Default`, `Exclusive_Process`, `Prohibited`).

    `uncorrected_errors` were counted since the driver was loaded; where memory is broken, rows are remapped, on
    older GPUs pages retired. The PCIe generation falls while a GPU idles, its width does not; `_max` is what GPU
    and slot can do together, `pcie_generation_own` what the GPU could in a better slot. `application_sm_mhz` is
    the clock that it was told to take under load, by default `default_sm_mhz`. `processes` compute on it, by name
    or number. `fabric` is how far an NVSwitch's fabric manager is with it (`completed` is well, "" where there is
    none), and `fabric_fault` the error with which that ended. `acs_redirects` are the ports of PCIe switches above
    it that send what it tells its peers up to the root complex; only root is told.
    """

    uuid: str
    name: str
    compute_capability: str = ""
    is_persistent: bool | None = None
    compute_mode: str = ""
    is_mig: bool | None = None
    is_ecc: bool | None = None
    uncorrected_errors: int | None = None
    is_repair_pending: bool | None = None
    is_repair_failed: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_generation_own: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    sm_mhz_max: int | None = None
    application_sm_mhz: int | None = None
    default_sm_mhz: int | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    processes: tuple[str, ...] = ()
    fabric: str = ""
    fabric_fault: str = ""
    acs_redirects: tuple[str, ...] | None = None


class GpuHost(Record, frozen=True, kw_only=True):
    """What the driver of one rank's host tells. `cuda` is the newest CUDA release that it runs (`13.0`);
    `reachable` counts the GPUs that NVML gives this process, whatever CUDA_VISIBLE_DEVICES hides of them,
    and `lost` says which it counts and cannot reach (fallen off the bus);
    `peer_memory` is the kernel module by which RDMA cards reach GPUs, and `is_open` a driver of the open kernel
    modules, which offers them DMA-BUF instead."""

    gpus: tuple[GpuHealth, ...] = ()
    cuda: str = ""
    reachable: int = 0
    lost: tuple[str, ...] = ()
    peer_memory: str = ""
    is_open: bool | None = None


# ---------------------------------------------------------------- interpreter


class Interpreter(Record, frozen=True, kw_only=True):
    """The Python that runs a framework's children on a host, where that is not the agent's own.

    `python` is its version, "" where it does not work; `versions` are those of the framework's packages there;
    `cuda` is the CUDA release that its torch is built with, "" for a build without any, None without torch;
    `compile_lacks` is what its torch.compile would need and does not find.
    """

    framework: str
    path: str
    python: str = ""
    versions: dict[str, str] = {}
    cuda: str | None = None
    compile_lacks: str = ""


class Installed(Record, frozen=True, kw_only=True):
    """What such a Python answers: its version, its packages, why strategies cannot run in it, or not on GPUs, and
    which address those take that obey no --interconnect."""

    python: str = ""
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    missing_on_cuda: dict[str, str] = {}
    name_addresses: dict[str, str] = {}
    cuda: str | None = None
    compile_lacks: str = ""


# ---------------------------------------------------------------- host


class Gpu(Record, frozen=True, kw_only=True):
    """One GPU as NVML tells it. `links[j]` is how it reaches GPU j of its host (NV4, PIX, SYS, self) and `p2p[j]`
    whether peer access works. `cores` are those of its NUMA node that the agent may use, each the tuple of its
    hardware threads. `parent` is the UUID of the GPU that it is a slice of (MIG), its own where
    that is not known, "" for a whole one."""

    index: Index
    name: str
    uuid: str
    memory_bytes: Count
    power_limit_w: Amount | None = None
    max_sm_clock_mhz: Amount | None = None
    links: tuple[str, ...] = ()
    p2p: tuple[bool, ...] = ()
    cores: tuple[tuple[int, ...], ...] = ()
    compute_capability: tuple[int, int] | None = None
    parent: str = ""

    @property
    def whole(self) -> str:
        """The UUID of the GPU that it is, or is a slice of."""
        return self.parent or self.uuid


class Nic(Record, frozen=True, kw_only=True):
    """One network interface; `speed_bits_per_s` is None where the kernel does not know it."""

    name: str
    address: str
    netmask: str
    up: bool
    mtu: Index
    speed_bits_per_s: Amount | None = None

    @property
    def subnet(self) -> IPv4Network:
        """The network that it is on; a network of its own where it has no netmask."""
        return IPv4Interface(f"{self.address}/{self.netmask or 32}").network


class Route(Record, frozen=True, kw_only=True, array_like=True):
    """A line of the main routing table: packets to `destination` (10.244.0.0/16; 0.0.0.0/0 for all others) leave
    by `interface`; of several, the longest prefix wins, then the least metric."""

    destination: str
    interface: str
    metric: Count = 0


class Hca(Record, frozen=True, kw_only=True):
    """One port of an RDMA card. `interfaces` are the port's network interfaces (IPoIB, or Ethernet's own) and
    those that stand on them (bonds, VLANs); `link_layer` is InfiniBand, Ethernet (RoCE), or what a card that NCCL
    reaches by a plugin says: Slingshot, Unknown (EFA). A card that a container sees but was not given does not
    open (`opens`)."""

    name: str
    port: Index
    link_layer: str
    active: bool
    rate_bits_per_s: Amount | None = None
    interfaces: tuple[str, ...] = ()
    opens: bool = True


class HostInfo(Record, frozen=True, kw_only=True):
    """The machine of one agent. `cores` are the physical cores that this agent may use, each the tuple of its
    hardware threads that it may use, and `core_ids` name each by the lowest of all its threads, none in older
    records: ranks that are bound to one thread each may share a core. Hosts with one `boot_id` are one machine:
    containers, or nodes of a lab; `network_id` is the network namespace there. `ipv6_only` are the interfaces that
    are up without an IPv4 address. `allocator` is the library that allocates memory in the place of the C
    library, "" where none does, and `allocator_by` is LD_PRELOAD where that brought it; older records have what
    LD_PRELOAD named, whether it was there or not. `heap_settings` are those of glibc's heap that the user's
    environment has, which win over those of `--malloc keep`; older records have none. `reachable_gpus` counts
    the GPUs that the agent may open, visible or not, None where that is not known; `unsupported_gpus` are those
    that no framework here can use, for people. `compile_lacks` is what torch.compile would need to build
    kernels and does not find, "" where it has all or nobody has looked. `interpreters` are those of frameworks
    whose children do not run in the agent's. `routes` are those by interfaces with an address, none where the
    kernel does not tell them. `cpu_quotas` are the CPUs' worth of time that each cgroup of the agent grants, which
    all ranks in it share; older records have none, and no more `cores` than a quota grants. `variables` are those
    that change how fast children train, as these have them, None in older records; `changed_variables` tell of
    those that children do not have as they were set. `launcher_cores` counts those of the process that started the
    agent: more than `cores` where it bound it."""

    hostname: str
    os: str
    kernel: str
    cpu_model: str
    sockets: Index
    cores: tuple[tuple[int, ...], ...]
    memory_bytes: Count
    load_1m: Amount
    python: str
    versions: dict[str, str]
    nics: tuple[Nic, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    gpu_driver: str = ""
    virtual: str = ""
    hcas: tuple[Hca, ...] = ()
    boot_id: str = ""
    allocator: str = ""
    allocator_by: str = ""
    heap_settings: tuple[str, ...] = ()
    routes: tuple[Route, ...] = ()
    reachable_gpus: Index | None = None
    unsupported_gpus: str = ""
    compile_lacks: str = ""
    interpreters: tuple[Interpreter, ...] = ()
    core_ids: tuple[Index, ...] = ()
    network_id: str = ""
    ipv6_only: tuple[str, ...] = ()
    cpu_quotas: dict[str, Amount] = {}
    variables: dict[str, str] | None = None
    changed_variables: tuple[str, ...] = ()
    launcher_cores: Count = 0


def joined_variables(hosts: Iterable[HostInfo]) -> dict[str, str]:
    """Join the variables of several hosts, or of the ranks of one; values that differ are listed: `1 | unset`."""
    known = [host.variables or {} for host in hosts]
    names = sorted({name for one in known for name in one})
    return {name: " | ".join(dict.fromkeys(one.get(name, "unset") for one in known)) for name in names}
