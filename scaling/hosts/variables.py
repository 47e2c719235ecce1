"""Environment variables that change how fast training goes: which of them runs record, and which children get."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Libraries' own, by prefix; some are whole names.
PREFIXES = (
    *("ATEN_", "CUBLAS_", "CUDA_", "CUDNN_", "DNNL_", "FI_", "GLIBC_TUNABLES", "GLOO_", "GOMP_", "HOROVOD_"),
    *("KERAS_", "LD_PRELOAD", "MALLOC_", "MKL_", "MXNET_", "NCCL_", "NVIDIA_TF32_OVERRIDE", "OFI_NCCL_", "OMP_"),
    *("ONEDNN_", "OPENBLAS_", "PS_", "PYTORCH_", "TF_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TRITON_"),
    *("UCX_", "XLA_"),
)
# They say what is where, a task sets them, or they are Terraform's.
IGNORED = re.compile(
    r".*_(HOME|VERSION|VISIBLE_DEVICES|CACHE_DIR|CACHE_PATH|ARCH_LIST|LOG_LEVEL)$"
    r"|(OMP|MKL|OPENBLAS)_NUM_THREADS$|CUDA_DEVICE_ORDER$|TF_(CONFIG$|CLI_|VAR_)"
)
SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(^|_)(AUTH|KEYS?)(_|$)", re.IGNORECASE)
USERINFO = re.compile(r"//[^/@\s]*@")
MOST_CHARACTERS = 200
# libgomp binds threads when it is loaded: a fork server's then also bind those of its forks, outside their rank's
# CPUs. A limit below a rank's threads makes torch and MXNet hang.
PLACING = re.compile(
    r"(OMP_(THREAD_LIMIT|DYNAMIC|PROC_BIND|PLACES)|GOMP_CPU_AFFINITY|MKL_DOMAIN_NUM_THREADS)$|KMP_"
)
# ps-lite's: strategies set them for each process. Kubernetes sets PORT=tcp://... for a service of that name.
ADDRESSING = re.compile(r"DMLC_|PORT$")
DEBUG = "TORCH_DISTRIBUTED_DEBUG"


def for_children(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without the variables that would break a worker or move its threads off its CPUs."""
    kept = {name: value for name, value in environ.items() if not (PLACING.match(name) or ADDRESSING.match(name))}
    return {**kept, DEBUG: "INFO"} if _is_detailed(environ) else kept


def _is_detailed(environ: Mapping[str, str]) -> bool:
    return environ.get(DEBUG, "").upper() == "DETAIL"


def recorded(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of children that change rates. Secrets are left out, long values cut."""
    given = for_children(environ)
    return {name: _shown(given[name]) for name in sorted(given) if name.startswith(PREFIXES) and _is_said(name)}


def changed(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that children get changed or not at all, each with the reason: `OMP_PROC_BIND=true (...)`."""
    return tuple(
        f"{name}={_shown(environ[name])} ({why})"
        for name in sorted(environ)
        if (why := _why(name, environ)) and _is_said(name)
    )


def _why(name: str, environ: Mapping[str, str]) -> str:
    if PLACING.match(name):
        return "dropped: scaling places each rank's threads"
    if ADDRESSING.match(name):
        return "dropped: scaling sets it for each process"
    return "INFO for workers: torch fails with DETAIL" if name == DEBUG and _is_detailed(environ) else ""


def _is_said(name: str) -> bool:
    return not (IGNORED.match(name) or SECRET.search(name))


def _shown(value: str) -> str:
    value = USERINFO.sub("//***@", value)
    return value if len(value) <= MOST_CHARACTERS else f"{value[:MOST_CHARACTERS]}..."
