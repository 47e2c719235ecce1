"""Environment variables that change how fast training goes: which of them runs record, and which children get."""

from __future__ import annotations

import re
from collections.abc import Mapping

from scaling import frameworks

_FRAMEWORKS = tuple(frameworks.FRAMEWORKS.values())
# Of libraries, and what frameworks declare.
RECORDED = re.compile(
    "|".join(
        (
            "CUBLAS_|CUDA_|CUDNN_|DNNL_|FI_|GLIBC_TUNABLES|GOMP_|LD_PRELOAD|MALLOC_|MKL_|NCCL_|NVIDIA_TF32_OVERRIDE",
            "OFI_NCCL_|OMP_|ONEDNN_|OPENBLAS_|UCX_",
            *(one.variables for one in _FRAMEWORKS if one.variables),
        )
    )
)
# They say what is where, or a task sets them.
IGNORED = re.compile(
    r".*_(HOME|VERSION|VISIBLE_DEVICES|CACHE_DIR|CACHE_PATH|ARCH_LIST|LOG_LEVEL)$"
    r"|(OMP|MKL|OPENBLAS)_NUM_THREADS$|CUDA_DEVICE_ORDER$"
)
SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(^|_)(AUTH|KEYS?)(_|$)", re.IGNORECASE)
USERINFO = re.compile(r"//[^/@\s]*@")
MOST_CHARACTERS = 200
# libgomp binds threads when it is loaded: a fork server's then also bind those of its forks, outside their rank's
# CPUs. A limit below a rank's threads makes frameworks hang.
PLACING = re.compile(
    r"(OMP_(THREAD_LIMIT|DYNAMIC|PROC_BIND|PLACES)|GOMP_CPU_AFFINITY|MKL_DOMAIN_NUM_THREADS)$|KMP_"
)
# Strategies set them for each process.
OWN = re.compile("|".join(one.own_variables for one in _FRAMEWORKS if one.own_variables))
CORRECTED = {name: told for one in _FRAMEWORKS for name, told in one.corrected.items()}


def for_children(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without the variables that would break a worker or move its threads off its CPUs."""
    kept = {name: value for name, value in environ.items() if not (PLACING.match(name) or OWN.match(name))}
    return {name: CORRECTED[name][1] if _is_wrong(name, value) else value for name, value in kept.items()}


def _is_wrong(name: str, value: str) -> bool:
    """Whether workers fail with it."""
    return name in CORRECTED and value.upper() == CORRECTED[name][0]


def recorded(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of children that change rates. Secrets are left out, long values cut."""
    given = for_children(environ)
    return {name: _shown(given[name]) for name in sorted(given) if RECORDED.match(name) and _is_said(name)}


def changed(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that children get changed or not at all, each with the reason: `OMP_PROC_BIND=true (...)`."""
    return tuple(
        f"{name}={_shown(environ[name])} ({why})"
        for name in sorted(environ)
        if (why := _why(name, environ[name])) and _is_said(name)
    )


def _why(name: str, value: str) -> str:
    if PLACING.match(name):
        return "dropped: scaling places each rank's threads"
    if OWN.match(name):
        return "dropped: scaling sets it for each process"
    if _is_wrong(name, value):
        _, corrected, reason = CORRECTED[name]
        return f"{corrected} for workers: {reason}"
    return ""


def _is_said(name: str) -> bool:
    return not (IGNORED.match(name) or SECRET.search(name))


def _shown(value: str) -> str:
    value = USERINFO.sub("//***@", value)
    return value if len(value) <= MOST_CHARACTERS else f"{value[:MOST_CHARACTERS]}..."
