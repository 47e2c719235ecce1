"""Which library allocates memory in this process, and so in the children that have its environment.

A library that LD_PRELOAD names may not be there, and one that it does not name may come by /etc/ld.so.preload, or
be linked to Python: what the loader made of it, the process's own memory map tells. What a framework's own Python
is linked to, it does not.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

KNOWN = ("jemalloc", "tcmalloc", "mimalloc", "hoard", "snmalloc", "tbbmalloc")
# What glibc takes from the environment, mallopt(3) and its manual's "Tunables".
SETTINGS = (
    "MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST", "MALLOC_CHECK_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_PERTURB_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_",
)  # fmt: skip
MAPS = Path("/proc/self/maps")
# glibc's (libc.so.6, libc-2.31.so) and musl's (ld-musl-x86_64.so.1).
_C_LIBRARY = re.compile(r"libc\.|libc-2|ld-")


@cache
def in_use() -> str:
    """The library that this process really has from its start: `jemalloc`; "" where it is the C library."""
    return named(_path())


def brought_by(environ: Mapping[str, str]) -> str:
    """`LD_PRELOAD` where that names the allocator in use; "" where it came in another way."""
    words = filter(_exists, re.split(r"[\s:]+", environ.get("LD_PRELOAD", "")))
    return "LD_PRELOAD" if in_use() and in_use() in map(named, words) else ""


def settings(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What the user has set of glibc's heap: `MALLOC_TRIM_THRESHOLD_=0`, `glibc.malloc.arena_max=1`. It wins over
    what workers are given."""
    tunables = environ.get("GLIBC_TUNABLES", "").split(":")
    variables = (f"{name}={environ[name]}" for name in SETTINGS if name in environ)
    return (*variables, *(one for one in tunables if one.startswith("glibc.malloc.")))


def named(path: str) -> str:
    """What an allocator's library is called; "" for the C library, and for what is no library."""
    name = path.rpartition("/")[2]
    if _C_LIBRARY.match(name) or ".so" not in name:
        return ""
    return next((known for known in KNOWN if known in name), name.partition(".so")[0].removeprefix("lib"))


def holder(maps: str, address: int) -> str:
    """The file that is mapped at an address, by the text of /proc/PID/maps; "" for none."""
    for line in maps.splitlines():
        span, *_, path = line.split(maxsplit=5)
        first, _, end = span.partition("-")
        if int(first, 16) <= address < int(end, 16):
            return path if path.startswith("/") else ""
    return ""


def _path() -> str:
    """The file that holds what the loader found for all of the process."""
    # Every allocator has it, as malloc; but malloc's own address is the program's in a Python that is not PIE.
    address = ctypes.cast(ctypes.CDLL(None).posix_memalign, ctypes.c_void_p).value
    try:
        return holder(MAPS.read_text(errors="replace"), address or 0)
    except OSError:
        return ""


def _exists(word: str) -> bool:
    """Whether a library may be there: the loader itself looks for bare names, and fills in $LIB."""
    return "/" not in word or "$" in word or Path(word).exists()
