"""The machine of an agent: processors, GPUs, network interfaces and RDMA cards."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Interface, IPv4Network

from scaling.records.point import Amount, Count, Index, Record

# ---------------------------------------------------------------- secrets
# Names of variables that hold secrets. Neither records nor archives have their values.

# NCCL_IB_PKEY is a partition of InfiniBand.
SECRET = re.compile(r"TOKEN|SECRET|PASS(?:W|PHRASE)|CREDENTIAL|(?<!_P)KEY|(?<![A-Z])AUTH(?![A-Z])", re.IGNORECASE)
# `//user:password@` in an address.
USERINFO = re.compile(r"//[^/@\s]*@")


# ---------------------------------------------------------------- host


class GpuHealth(Record, frozen=True, kw_only=True):
    """The state of one GPU.

    `index`: as nvidia-smi counts, None if unknown; `serial`: of the board, "" if it reports none.
    `compute_mode`: nvidia-smi's word (`Default`, `Exclusive_Process`, `Prohibited`).
    `uncorrected_errors`: counted since the driver was loaded.
    `is_repair_pending`, `is_repair_failed`: of remapped rows, on older GPUs of retired pages.
    `pcie_generation`: falls while a GPU idles, `pcie_width` does not.
    `pcie_*_max`: what GPU and slot can do together; `pcie_generation_own`: what the GPU could do in a better slot.
    `application_sm_mhz`: the clock that was set for load, by default `default_sm_mhz`.
    `processes`: names or numbers of the processes that use it.
    `fabric`: the state of the fabric manager (NVSwitch), "" without one; `fabric_fault`: its error.
    `acs_redirects`: PCIe switch ports above it that redirect peer traffic to the root complex; None without root.
    """

    uuid: str
    name: str
    index: Index | None = None
    serial: str = ""
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
    """The driver's report on one rank's host.

    `cuda`: the newest CUDA release that it runs (`13.0`).
    `reachable`: GPUs that this process may open, whatever CUDA_VISIBLE_DEVICES says.
    `lost`: GPUs that NVML counts but cannot reach (off the bus).
    `peer_memory`: the kernel module by which RDMA cards reach GPUs; open modules (`is_open`) offer DMA-BUF.
    """

    gpus: tuple[GpuHealth, ...] = ()
    cuda: str = ""
    reachable: int = 0
    lost: tuple[str, ...] = ()
    peer_memory: str = ""
    is_open: bool | None = None


class Interpreter(Record, frozen=True, kw_only=True):
    """The Python of a framework's children on a host, if it is not the agent's.

    `python`: its version, "" if it does not work. `versions`: the framework's packages there.
    `cuda`: the CUDA release of its torch, "" for a build without CUDA, None without torch.
    `compile_lacks`: what torch.compile needs and does not find.
    """

    framework: str
    path: str
    python: str = ""
    versions: dict[str, str] = {}
    cuda: str | None = None
    compile_lacks: str = ""


class Installed(Record, frozen=True, kw_only=True):
    """The answer of such a Python: its packages, and why strategies cannot run in it or on its GPUs.

    `name_addresses`: the address at which strategies listen that ignore --interconnect.
    """

    python: str = ""
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    missing_on_cuda: dict[str, str] = {}
    name_addresses: dict[str, str] = {}
    cuda: str | None = None
    compile_lacks: str = ""


class Gpu(Record, frozen=True, kw_only=True):
    """One GPU as NVML reports it.

    `links[j]`: the link to GPU j of its host (NV4, PIX, SYS, self); `p2p[j]`: whether peer access works.
    `cores`: the cores of its NUMA node that the agent may use, each a tuple of hardware threads.
    `parent`: the UUID of the GPU of which it is a slice (MIG), its own if unknown; "" for a whole GPU.
    `compute_mode`: nvidia-smi's word (`Default`, `Exclusive_Process`, `Prohibited`), "" if unknown.
    """

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
    compute_mode: str = ""

    @property
    def takes_one_process(self) -> bool:
        """Whether a second process gets no context on it."""
        return self.compute_mode.startswith("Exclusive")

    @property
    def whole(self) -> str:
        """The UUID of the whole GPU."""
        return self.parent or self.uuid


class Nic(Record, frozen=True, kw_only=True):
    """A network interface; `speed_bits_per_s` is None if the kernel does not know it."""

    name: str
    address: str
    netmask: str
    up: bool
    mtu: Index
    speed_bits_per_s: Amount | None = None

    @property
    def subnet(self) -> IPv4Network:
        """Its network; a network of one address without a netmask."""
        return IPv4Interface(f"{self.address}/{self.netmask or 32}").network


class Route(Record, frozen=True, kw_only=True, array_like=True):
    """A line of the main routing table. The longest prefix wins, then the least metric."""

    destination: str
    interface: str
    metric: Count = 0


class Hca(Record, frozen=True, kw_only=True):
    """One port of an RDMA card.

    `link_layer`: InfiniBand, Ethernet (RoCE), Slingshot, or Unknown (EFA).
    `interfaces`: the port's network interfaces, and bonds and VLANs on them.
    `opens`: False if a container sees the card but may not open it.
    `counts`: False if its driver counts no bytes (irdma, for example).
    """

    name: str
    port: Index
    link_layer: str
    active: bool
    rate_bits_per_s: Amount | None = None
    interfaces: tuple[str, ...] = ()
    opens: bool = True
    counts: bool = True


class HostInfo(Record, frozen=True, kw_only=True):
    """The machine of one agent. Older records lack some fields.

    `cores`: physical cores that this agent may use, each a tuple of the hardware threads that it may use.
    `core_ids`: the lowest hardware thread of each core; ranks bound to one thread each may share a core.
    `boot_id`: equal on one machine (containers, nodes of a lab); `network_id`: its network namespace.
    `ipv6_only`: interfaces that are up without an IPv4 address.
    `allocator`: the library that replaces malloc, "" for none; `allocator_by`: LD_PRELOAD if it loaded it.
    `heap_settings`: glibc settings in the user's environment; they win over `--malloc keep`.
    `reachable_gpus`: GPUs that the agent may open, visible or not; None if unknown.
    `unsupported_gpus`: GPUs that no framework here can use, for people.
    `compile_lacks`: what torch.compile needs and does not find; "" if nothing or not checked.
    `interpreters`: of frameworks whose children do not run in the agent's Python.
    `cpu_quotas`: CPUs that each cgroup of the agent grants to all its processes together.
    `variables`: those that change the speed of training; `changed_variables`: those that children have otherwise.
    `launcher_cores`: cores of the process that started the agent; more than `cores` if it bound the agent.
    `nccl_plugins`: files of network plugins that NCCL would load, on hosts with GPUs.
    """

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
    nccl_plugins: tuple[str, ...] = ()


def joined_variables(hosts: Iterable[HostInfo]) -> dict[str, str]:
    """Join the variables of several hosts or ranks; different values become `1 | unset`."""
    known = [host.variables or {} for host in hosts]
    names = sorted({name for one in known for name in one})
    return {name: " | ".join(dict.fromkeys(one.get(name, "unset") for one in known)) for name in names}
