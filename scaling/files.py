"""Read files that users name, and remember which file is being read."""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from scaling.errors import UsageError

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


def toml(path: Path, named: str, known: str = "") -> dict[str, Any]:
    """Return the content of a TOML file. Raises UsageError that begins with `named`, and ends with `known` if the
    file cannot be read."""
    try:
        found: dict[str, Any] = msgspec.toml.decode(read(path))
    except OSError as error:
        raise UsageError(f"{named}: {error.strerror}{known}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{named}: not TOML: {error}") from None
    return found


def check(path: Path) -> None:
    """Raise OSError for a missing file, a pipe, a socket or a device: these may never end."""
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind in ENDLESS:
        raise OSError(errno.EINVAL, f"is {ENDLESS[kind]}, name a file", str(path))


def kind(path: Path) -> int:
    """Return what a path names, as S_IFREG or S_IFDIR of `stat`; 0 if nothing is there. Raises OSError if this
    cannot be known, as for another user's folder; methods of Path return False there since Python 3.14."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return 0


def is_file(path: Path) -> bool:
    return kind(path) == stat.S_IFREG


def is_folder(path: Path) -> bool:
    return kind(path) == stat.S_IFDIR


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
