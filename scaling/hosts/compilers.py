"""Whether this host has what torch.compile builds kernels with while it trains."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path


def lacks(environ: Mapping[str, str], include: str | None = None) -> str:
    """`C compiler and Python.h`, or what of these is missing; "" where all is there.

    Triton (its `runtime.build`) takes CC, else gcc or clang, and this Python's headers; Inductor (its
    `cpp_builder`), which computes on CPUs in C++, takes CXX, else g++.
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
    """The folder of this Python's headers, where Triton looks for them."""
    scheme = sysconfig.get_default_scheme()
    # Debian's own scheme, under which they are not.
    return sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]
