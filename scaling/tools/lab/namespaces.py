"""Namespaces and mounts by libc (Python has its own functions only since 3.12), and the start of a process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEWNS, NEWUTS, NEWIPC, NEWNET = 0x00020000, 0x04000000, 0x08000000, 0x40000000
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 0x1000, 0x2000, 0x4000, 0x40000
# names in /proc/PID/ns, in the order of entering: `mnt` last, because it hides files
KINDS = ("net", "uts", "ipc", "mnt")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (*(ctypes.c_char_p,) * 3, ctypes.c_ulong, ctypes.c_char_p)


def _check(failed: int, what: str) -> None:
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def enter(descriptor: int) -> None:
    """Move the calling thread (for `mnt`: the process) into the namespace of an open file. Raises OSError."""
    _check(_libc.setns(descriptor, 0), "setns")


def mount(source: str | Path, target: str | Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Call mount(2). Raises OSError with the target."""
    words = (os.fsencode(source), os.fsencode(target), kind.encode(), flags, data.encode())
    _check(_libc.mount(*words), str(target))


@contextmanager
def network(descriptor: int) -> Iterator[None]:
    """Put the calling thread into this network namespace; sockets created there stay there."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        enter(descriptor)
        try:
            yield
        finally:
            enter(own)
    finally:
        os.close(own)


def start_ticks(pid: int) -> int | None:
    """Return the start of a process in clock ticks after boot; None if it does not run (zombies do not)."""
    try:
        # after the bracket: field 3 is the state, field 22 the start
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
