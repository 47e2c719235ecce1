"""Read files that users name; refuse a pipe and a device, which may have no end; know what is being read."""

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
    """The content of a file. Raises OSError, also for what is no file."""
    with loading(path):
        check(path)
        return path.read_bytes()


def check(path: Path) -> None:
    """Refuse a pipe, a socket and a device, and what is not there. Raises OSError."""
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind in ENDLESS:
        raise OSError(errno.EINVAL, f"is {ENDLESS[kind]}, name a file", str(path))


@contextmanager
def loading(what: object) -> Iterator[None]:
    """Note what is read or imported; it may lie on a file server that does not answer."""
    _loading.append(str(what))
    try:
        yield
    finally:
        _loading.pop()


def loading_now() -> str:
    """What is read or imported just now; "" for nothing."""
    return _loading[-1] if _loading else ""
