"""How the GPUs of a host are set up and how they fare, as NVML tells it; what it does not tell is None."""

from __future__ import annotations

from scaling.records.point import Record


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
