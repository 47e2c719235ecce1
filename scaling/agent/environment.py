"""The environment of a child: the agent's without the launcher's variables, with threads, heap and what the
strategy asks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from scaling.frameworks import variables
from scaling.hosts import allocator
from scaling.records.task import Task

SCRUBBED = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "ORTE_", "HYDRA_", "HYDI_", "MPI_", "MPIR_")
MIB = 1 << 20
# NCCL's log is the user's where he has set any of it.
LOGGING = frozenset({"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"})
# glibc's, mallopt(3). By default it gives large buffers back to the kernel after each step and faults them in
# again: 4,500 to 6,300 faults and 9 to 11 ms of kernel time in a step of 66 ms of digits-cnn, another number at
# each start of one program (python -m tests.bench.malloc). 32 MiB is the largest threshold that it takes.
KEPT_HEAP = {
    "MALLOC_TRIM_THRESHOLD_": "2000000000",
    "MALLOC_MMAP_THRESHOLD_": str(32 * MIB),
    "MALLOC_TOP_PAD_": str(64 * MIB),
}


def child_environ(base: Mapping[str, str], task: Task, asked: Mapping[str, str]) -> dict[str, str]:
    """The environment of the task's child; `base` is the agent's, `asked` the strategy's.

    A child that meets MPI with the launcher's variables left in dies (scaling/agent/README.md).
    """
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
        # CUDA then numbers GPUs as NVML does, also where they are of different kinds.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **({"CUDA_VISIBLE_DEVICES": task.shown_gpu} if task.shown_gpu else {}),
        **asked,
    }


def outside_of_mpi(base: Mapping[str, str], code: str = "") -> dict[str, str]:
    """An environment without the launcher's variables, in which any Python finds this package, or before it the
    revision of it, or of strategies from outside, that lies in the folder `code`."""
    parent = str(Path(__file__).resolve().parents[2])
    paths = [*filter(None, [code]), parent, *filter(None, base.get("PYTHONPATH", "").split(os.pathsep))]
    kept = {key: value for key, value in base.items() if not key.startswith(SCRUBBED)}
    return {**kept, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _past_proxies(base: Mapping[str, str], task: Task) -> dict[str, str]:
    """The addresses of the task's processes among those that no proxy is asked for, where there is any proxy:
    TensorFlow's gRPC would ask it for its peers. It reads `no_proxy` only where there is no `no_grpc_proxy`."""
    if not any(name.lower().endswith("_proxy") for name in base):
        return {}
    own = (task.place.address, *task.addresses, *(server.address for server in task.servers))
    common = base.get("no_proxy", base.get("NO_PROXY", ""))
    return {
        name: ",".join(dict.fromkeys((*filter(None, base.get(name, common).split(",")), *own)))
        for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY")
    }


def _kernel_cache(task: Task) -> dict[str, str]:
    """Room for what the driver compiles for a GPU that a library has no code for: kernels that its cache drops are
    compiled again in each start. 4 GiB are the most (CUDA programming guide, CUDA environment variables)."""
    return {"CUDA_CACHE_MAXSIZE": str(4 << 30)} if task.point.hardware.device == "cuda" else {}


def granted(base: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """What the strategy asks, without a log of NCCL's where the user has set his own."""
    denied = LOGGING if LOGGING & base.keys() else frozenset()
    return {key: value for key, value in asked.items() if key not in denied}


def _heap(task: Task) -> dict[str, str]:
    """What makes glibc keep its heap; nothing for GPUs' workers, another allocator's users, or `--malloc
    system`."""
    is_kept = task.malloc == "keep" and task.point.hardware.device != "cuda"
    return KEPT_HEAP if is_kept and not allocator.in_use() else {}
