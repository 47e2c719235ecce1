"""The library that replaces malloc in this process and in children with its environment.

It is read from the process's memory map. LD_PRELOAD may name a missing library; others come by /etc/ld.so.preload
or are linked to Python. The map does not show what a framework's own Python is linked to.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

KNOWN = ("jemalloc", "tcmalloc", "mimalloc", "hoard", "snmalloc", "tbbmalloc")
# Variables of glibc's heap (mallopt(3), "Tunables" in its manual).
SETTINGS = (
    "MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST", "MALLOC_CHECK_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_PERTURB_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_",
)  # fmt: skip
MAPS = Path("/proc/self/maps")
# The C library: glibc (libc.so.6, libc-2.31.so) or musl (ld-musl-x86_64.so.1).
_C_LIBRARY = re.compile(r"libc\.|libc-2|ld-")


@cache
def in_use() -> str:
    """Return the library that replaces malloc: `jemalloc`; "" for the C library."""
    return named(_path())


def brought_by(environ: Mapping[str, str]) -> str:
    """Return `LD_PRELOAD` if that loaded the library in use, else ""."""
    words = (
        word
        for word in re.split(r"[\s:]+", environ.get("LD_PRELOAD", ""))
        if "/" not in word or "$" in word or Path(word).exists()
    )
    return "LD_PRELOAD" if in_use() and in_use() in map(named, words) else ""


def settings(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the user's settings of glibc's heap: `MALLOC_TRIM_THRESHOLD_=0`, `glibc.malloc.arena_max=1`."""
    tunables = environ.get("GLIBC_TUNABLES", "").split(":")
    variables = (f"{name}={environ[name]}" for name in SETTINGS if name in environ)
    return (*variables, *(one for one in tunables if one.startswith("glibc.malloc.")))


def named(path: str) -> str:
    """Return the name of an allocator's library; "" for the C library and for no library."""
    name = path.rpartition("/")[2]
    if _C_LIBRARY.match(name) or ".so" not in name:
        return ""
    return next((known for known in KNOWN if known in name), name.partition(".so")[0].removeprefix("lib"))


def holder(maps: str, address: int) -> str:
    """Return the file mapped at an address, from the text of /proc/PID/maps; "" for none."""
    for line in maps.splitlines():
        span, *_, path = line.split(maxsplit=5)
        first, _, end = span.partition("-")
        if int(first, 16) <= address < int(end, 16):
            return path if path.startswith("/") else ""
    return ""


def _path() -> str:
    # Every allocator defines posix_memalign. The address of malloc is the program's in a Python that is not PIE.
    address = ctypes.cast(ctypes.CDLL(None).posix_memalign, ctypes.c_void_p).value
    try:
        return holder(MAPS.read_text(errors="replace"), address or 0)
    except OSError:
        return ""
