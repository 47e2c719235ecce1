"""Environment variables that change rates: which ones are recorded, and which ones children get."""

from __future__ import annotations

import re
from collections.abc import Mapping

from scaling import frameworks
from scaling.records.host import SECRET, USERINFO

_FRAMEWORKS = tuple(frameworks.FRAMEWORKS.values())
# Variables of libraries, and those that frameworks declare.
RECORDED = re.compile(
    "|".join(
        (
            "CUBLAS_|CUDA_|CUDNN_|DNNL_|FI_|GLIBC_TUNABLES|GOMP_|LD_PRELOAD|MALLOC_|MKL_|NCCL_|NVIDIA_TF32_OVERRIDE",
            "OFI_NCCL_|OMP_|ONEDNN_|OPENBLAS_|UCX_",
            *(one.variables for one in _FRAMEWORKS if one.variables),
        )
    )
)
# Locations and the like, or variables that a task sets.
IGNORED = re.compile(
    r".*_(HOME|VERSION|VISIBLE_DEVICES|CACHE_DIR|CACHE_PATH|ARCH_LIST|LOG_LEVEL)$"
    r"|(OMP|MKL|OPENBLAS)_NUM_THREADS$|CUDA_DEVICE_ORDER$"
)
MOST_CHARACTERS = 200
# libgomp binds threads when it is loaded, so forks of a fork server would run outside their rank's CPUs. A limit
# below a rank's threads makes frameworks hang.
PLACING = re.compile(
    r"(OMP_(THREAD_LIMIT|DYNAMIC|PROC_BIND|PLACES)|GOMP_CPU_AFFINITY|MKL_DOMAIN_NUM_THREADS|\w+_THREAD_AFFINITY)$"
    r"|KMP_"
)
OWN = re.compile("|".join(one.own_variables for one in _FRAMEWORKS if one.own_variables))
CORRECTED = {name: told for one in _FRAMEWORKS for name, told in one.corrected.items()}


def for_children(environ: Mapping[str, str]) -> dict[str, str]:
    """Drop and correct variables that break a worker or move its threads off its CPUs."""
    kept = {name: value for name, value in environ.items() if not (PLACING.match(name) or OWN.match(name))}
    return {name: _corrected(name, value) for name, value in kept.items()}


def _corrected(name: str, value: str) -> str:
    pattern, instead, _ = CORRECTED.get(name, ("$", "", ""))
    return re.sub(pattern, instead, value, flags=re.IGNORECASE)


def recorded(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of children that change rates, without secrets. Long values are cut."""
    given = for_children(environ)
    return {name: _shown(given[name]) for name in sorted(given) if RECORDED.match(name) and _is_said(name)}


def changed(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that children get changed or not at all: `OMP_PROC_BIND=true (reason)`."""
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
    corrected = _corrected(name, value)
    return f"{corrected or 'dropped'} for workers: {CORRECTED[name][2]}" if corrected != value else ""


def _is_said(name: str) -> bool:
    return not (IGNORED.match(name) or SECRET.search(name))


def _shown(value: str) -> str:
    value = USERINFO.sub("//***@", value)
    return value if len(value) <= MOST_CHARACTERS else f"{value[:MOST_CHARACTERS]}..."
