"""The environment of a child: the agent's without the launcher's variables, plus ours and the strategy's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from scaling.frameworks import variables
from scaling.hosts import info
from scaling.records.task import Task

SCRUBBED = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "ORTE_", "HYDRA_", "HYDI_", "MPI_", "MPIR_")
MIB = 1 << 20
LOGGING = frozenset({"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"})
# mallopt(3). glibc's defaults return large buffers after each step and fault them in again: 9 to 11 ms in a step
# of 66 ms of digits-cnn. 32 MiB is the largest threshold.
KEPT_HEAP = {
    "MALLOC_TRIM_THRESHOLD_": "2000000000",
    "MALLOC_MMAP_THRESHOLD_": str(32 * MIB),
    "MALLOC_TOP_PAD_": str(64 * MIB),
}


def child_environ(base: Mapping[str, str], task: Task, asked: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the task's child, from the agent's (`base`) and the strategy's (`asked`)."""
    threads = str(task.threads)
    return {
        **_heap(task),
        **_kernel_cache(task),
        **variables.for_children(outside_of_mpi(base, task.code)),
        **_past_proxies(base, task),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        # CUDA then numbers GPUs as NVML does, also if they are of different kinds.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **({"CUDA_VISIBLE_DEVICES": task.shown_gpu} if task.shown_gpu else {}),
        **asked,
    }


def outside_of_mpi(base: Mapping[str, str], code: str = "") -> dict[str, str]:
    """Return an environment without the launcher's variables; Python finds `code` first, then this package."""
    parent = str(Path(__file__).resolve().parents[2])
    paths = [*filter(None, [code]), parent, *filter(None, base.get("PYTHONPATH", "").split(os.pathsep))]
    kept = {key: value for key, value in base.items() if not key.startswith(SCRUBBED)}
    return {**kept, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _past_proxies(base: Mapping[str, str], task: Task) -> dict[str, str]:
    """Exempt the task's addresses from proxies. gRPC reads `no_proxy` only without `no_grpc_proxy`."""
    if not any(name.lower().endswith("_proxy") for name in base):
        return {}
    own = (task.place.address, *task.addresses, *(server.address for server in task.servers))
    common = base.get("no_proxy", base.get("NO_PROXY", ""))
    return {
        name: ",".join(dict.fromkeys((*filter(None, base.get(name, common).split(",")), *own)))
        for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY")
    }


def _kernel_cache(task: Task) -> dict[str, str]:
    """The maximum is 4 GiB (CUDA programming guide); kernels that do not fit are compiled at each start."""
    return {"CUDA_CACHE_MAXSIZE": str(4 << 30)} if task.point.hardware.device == "cuda" else {}


def granted(base: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Return the strategy's variables, without those of NCCL's log if the user sets any of these."""
    denied = LOGGING if LOGGING & base.keys() else frozenset()
    return {key: value for key, value in asked.items() if key not in denied}


def _heap(task: Task) -> dict[str, str]:
    is_kept = task.malloc == "keep" and task.point.hardware.device != "cuda"
    return KEPT_HEAP if is_kept and not info.allocator_in_use() else {}
