"""Check whether a framework's build runs on the GPUs of this host, by its files and NVML, without importing it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from scaling.hosts import gpus
from scaling.records.host import Gpu

# A compute capability such as (9, 0), or a CUDA version such as (12, 6).
Version = tuple[int, int]

# Oldest driver for each major CUDA version (release notes of the CUDA toolkit, minor version compatibility).
OLDEST_DRIVER = {11: "450", 12: "525", 13: "580"}


def driver_too_old(build: str, cuda: Version, mend: Callable[[], str]) -> str | None:
    """Return why the driver is too old for a build of this CUDA version, or None. Any driver of the same major
    version is enough (CUDA compatibility guide, "Minor Version Compatibility")."""
    found = gpus.gather_gpus()
    if found.cuda is None or found.cuda[0] >= cuda[0]:
        return None
    newer = OLDEST_DRIVER.get(cuda[0])
    driver = f", or a driver of {newer} or newer" if newer else ""
    return (
        f"{build} is built for CUDA {_dotted(cuda)}, and driver {found.driver} has CUDA up to "
        f"{_dotted(found.cuda)}: {mend()}{driver}"
    )


def no_kernels(build: str, archs: str, mend: Callable[[], str]) -> str | None:
    """Return why a build for these architectures (`sm_80 compute_90`) cannot run on a GPU here, or None.

    Code runs on GPUs of the same major version and an equal or higher minor version. For newer GPUs the driver
    compiles the build's PTX (`compute_90`), if there is any (CUDA C programming guide, "Binary Compatibility",
    "PTX Compatibility"). A build that names no architecture is accepted.
    """
    compiled = sorted({divmod(int(number), 10) for number in re.findall(r"\b(?:sm|compute)_(\d+)", archs)})
    gpu = _first_without(compiled, newer="compute_" in archs) if compiled else None
    if gpu is None or gpu.compute_capability is None:
        return None
    has, own = ", ".join(map(_dotted, compiled)), _dotted(gpu.compute_capability)
    return f"{build} has code for compute capability {has}, none for {gpu.name} ({own}): {mend()}"


def _first_without(compiled: Sequence[Version], *, newer: bool) -> Gpu | None:
    for gpu in gpus.gather_gpus().gpus:
        capability = gpu.compute_capability
        if capability is None or any(_runs(capability, each) for each in compiled):
            continue
        if not newer or capability < max(compiled):
            return gpu
    return None


def _runs(capability: Version, compiled: Version) -> bool:
    return capability[0] == compiled[0] and capability[1] >= compiled[1]


def version(text: str) -> Version:
    """Parse a CUDA version: "12.6" and "12.6.3" give (12, 6)."""
    major, minor = [*text.split("."), "0"][:2]
    return int(major), int(minor)


def _dotted(number: Version) -> str:
    return f"{number[0]}.{number[1]}"
