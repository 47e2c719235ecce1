"""Read files that users name, and remember which file is being read."""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ENDLESS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_loading: list[str] = []


def read(path: Path) -> bytes:
    """Return the content of a file. Raises OSError, also for a pipe, a socket or a device."""
    with loading(path):
        check(path)
        return path.read_bytes()


def check(path: Path) -> None:
    """Raise OSError for a missing file, a pipe, a socket or a device: these may never end."""
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind in ENDLESS:
        raise OSError(errno.EINVAL, f"is {ENDLESS[kind]}, name a file", str(path))


@contextmanager
def loading(what: object) -> Iterator[None]:
    """Remember what is being read or imported; a file server may not answer."""
    _loading.append(str(what))
    try:
        yield
    finally:
        _loading.pop()


def loading_now() -> str:
    """Return what is being read or imported; "" for nothing."""
    return _loading[-1] if _loading else ""
