"""Drop files from the kernel's page cache, and measure how much of them is cached; without root."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
LOOKED_AT = 64


def drop(paths: Iterable[str]) -> None:
    """Drop files from the page cache if written to disk and not mapped (posix_fadvise(2)). Raises OSError."""
    for path in paths:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def cached_fraction(paths: Sequence[str]) -> float | None:
    """Return the cached part of a sample of these files; None without write access (mincore(2)). Raises
    OSError."""
    some = [path for path in paths[:: max(1, len(paths) // LOOKED_AT)] if Path(path).stat().st_size]
    if not some or not all(os.access(path, os.W_OK) for path in some):
        return None
    found = [_pages(path) for path in some]
    return sum(cached for cached, _ in found) / sum(pages for _, pages in found)


def _pages(path: str) -> tuple[int, int]:
    with Path(path).open("rb") as file, closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        states = (ctypes.c_ubyte * pages)()
        # A view would keep the file mapped.
        view = ctypes.c_char.from_buffer(mapped)
        code = _LIBC.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(mapped)), states)
        del view
        if code:
            raise OSError(ctypes.get_errno(), "mincore", path)
        return sum(state & 1 for state in states), pages
