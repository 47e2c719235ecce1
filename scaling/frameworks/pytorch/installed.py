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

from scaling.frameworks.cuda import version

# Two words or more: a single one may be something else.
_ARCH_FLAGS = re.compile(rb"sm_\d{2,3}[a-z]?(?: (?:sm|compute)_\d{2,3}[a-z]?)+(?=\0)")


def release() -> str:
    """Return torch's release (`2.13.0+cu130`), "" without torch."""
    return _said(_file("version.py"), "__version__")


def is_before(major: int, minor: int) -> bool:
    """Return whether torch is older than a release; False without torch."""
    known = release()
    return bool(known) and version(known) < (major, minor)


def cuda() -> str | None:
    """Return the CUDA release of torch's build (`13.0`): "" for a build without CUDA, None without torch."""
    file = _file("version.py")
    return None if file is None else cuda_of(file)


def cuda_of(version: Path) -> str:
    """Return the CUDA release from torch's version file, which has `cuda: Optional[str] = '13.0'` or None."""
    return _said(version, "cuda")


def _said(version: Path | None, name: str) -> str:
    try:
        text = version.read_text() if version else ""
    except OSError:
        return ""
    found = re.search(rf"^{name}\b[^=\n]*= *['\"](\d[^'\"]*)['\"]", text, re.MULTILINE)
    return found[1] if found else ""


def arch_flags() -> str:
    """Return torch.cuda.get_arch_list() (`sm_80 compute_90`) from torch's library, "" if not found."""
    library = _file("lib/libtorch_python.so")
    return "" if library is None else _arch_flags_in(library)


def _file(name: str) -> Path | None:
    package = find_spec("torch")
    return None if package is None or package.origin is None else Path(package.origin).parent / name


@cache
def _arch_flags_in(library: Path) -> str:
    with (
        suppress(OSError, ValueError),
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return max(_ARCH_FLAGS.findall(content), key=len, default=b"").decode()
    return ""


# ---------------------------------------------------------------- compilers


def compiler_lacks(environ: Mapping[str, str], include: str | None = None) -> str:
    """Return what torch.compile lacks to build kernels (`C compiler and Python.h`), "" if nothing.

    * Triton (`runtime.build`) takes CC, else gcc or clang, and this Python's headers.
    * Inductor (`cpp_builder`) builds C++ for CPUs with CXX, else g++.
    """
    path = environ.get("PATH")
    having = {
        "C compiler": (environ.get("CC"), "gcc", "clang"),
        "C++ compiler": (environ.get("CXX"), "g++"),
    }
    missing = [
        name
        for name, commands in having.items()
        if not any(one and shutil.which(one, path=path) for one in commands)
    ]
    if not Path(include or _include(), "Python.h").is_file():
        missing.append("Python.h")
    return " and ".join(missing)


def _include() -> str:
    """Return the folder of this Python's headers, where Triton looks for them."""
    scheme = sysconfig.get_default_scheme()
    # Debian's own scheme does not have the headers.
    return sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]
