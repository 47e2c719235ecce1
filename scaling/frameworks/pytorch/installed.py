"""What the installed torch was built for, and what it needs on this host. It does not import torch."""

from __future__ import annotations

import mmap
import re
import shutil
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from scaling.frameworks.cuda import driver_too_old, no_kernels, version
from scaling.hosts import gpus

# Two words or more: a single one may be something else.
_ARCH_FLAGS = re.compile(rb"sm_\d{2,3}[a-z]?(?: (?:sm|compute)_\d{2,3}[a-z]?)+(?=\0)")
# The oldest GPUs that PyTorch's wheels for CUDA 13 support, and the newest that those for CUDA 12.6 do.
TURING, HOPPER = (7, 5), (9, 0)


def folder() -> Path | None:
    """Return torch's folder, None without torch."""
    package = find_spec("torch")
    return None if package is None or package.origin is None else Path(package.origin).parent


def release() -> str:
    """Return torch's release (`2.13.0+cu130`), "" without torch."""
    return _said("__version__")


def is_before(major: int, minor: int) -> bool:
    """Return whether torch is older than a release; False without torch."""
    known = release()
    return bool(known) and version(known) < (major, minor)


def cuda() -> str | None:
    """Return the CUDA release of torch's build (`13.0`): "" for a build without CUDA, None without torch."""
    return None if folder() is None else _said("cuda")


def _said(name: str) -> str:
    """Return a word of torch's version file, which has `cuda: Optional[str] = '13.0'` or None."""
    place = folder()
    try:
        text = (place / "version.py").read_text() if place else ""
    except OSError:
        return ""
    found = re.search(rf"^{name}\b[^=\n]*= *['\"](\d[^'\"]*)['\"]", text, re.MULTILINE)
    return found[1] if found else ""


def arch_flags() -> str:
    """Return torch.cuda.get_arch_list() (`sm_80 compute_90`) from torch's library, "" if not found."""
    place = folder()
    return "" if place is None else _arch_flags_in(place / "lib/libtorch_python.so")


@cache
def _arch_flags_in(library: Path) -> str:
    with (
        suppress(OSError, ValueError),
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return max(_ARCH_FLAGS.findall(content), key=len, default=b"").decode()
    return ""


def unfit() -> str | None:
    """Return why the installed torch cannot compute on this host's GPUs; None if it can or this is unknown."""
    name, built = f"torch {release()}", cuda()
    if not built:
        return f"{name} is built without CUDA: {_mend()}"
    return driver_too_old(name, version(built), _mend) or no_kernels(name, arch_flags(), _mend)


def _mend() -> str:
    found = gpus.gather_gpus()
    capabilities = [gpu.compute_capability for gpu in found.gpus if gpu.compute_capability]
    is_old = min(capabilities, default=TURING) < TURING or (found.cuda is not None and found.cuda < (13, 0))
    if is_old and max(capabilities, default=HOPPER) > HOPPER:
        newest = max(found.gpus, key=lambda gpu: gpu.compute_capability or HOPPER)
        return f"PyTorch's wheels for CUDA 12.6 have none for {newest.name} either"
    return f"./launch/install --cuda {12 if is_old else 13} torch"


def compiler_lacks(environ: Mapping[str, str], include: str | None = None) -> str:
    """Return what torch.compile lacks to build kernels (`C compiler and Python.h`), "" if nothing.

    * Triton (`runtime.build`) takes CC, else gcc or clang, and this Python's headers in `include`.
    * Inductor (`cpp_builder`) builds C++ for CPUs with CXX, else g++.
    """
    having = {
        "C compiler": (environ.get("CC"), "gcc", "clang"),
        "C++ compiler": (environ.get("CXX"), "g++"),
    }
    missing = [
        name
        for name, commands in having.items()
        if not any(one and shutil.which(one, path=environ.get("PATH")) for one in commands)
    ]
    # Debian's own scheme does not have the headers. Triton looks for them as this does.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    if not Path(include or sysconfig.get_paths(scheme)["include"], "Python.h").is_file():
        missing.append("Python.h")
    return " and ".join(missing)
