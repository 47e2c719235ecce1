"""What a lab of these tests leaves behind: told from all that others make on the machine at the same time."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from scaling.tools.lab import namespaces, state
from scaling.tools.lab.state import Lab, Program

# Since Linux 5.14 (asm-generic/socket.h): the one name of a network namespace that is not given again.
SO_NETNS_COOKIE = 71
# Where a node has mounts of its own, which must not be seen outside.
PLACES = ("/tmp", "/dev/shm", "/etc/hosts", "/sys", "/sys/fs/cgroup")
CARDS = re.compile(r"n\d+c\d+|br\d+|ib\d+|eth\d+|a-long-card-name")
_cookies: dict[Program, frozenset[int]] = {}


def name(word: str) -> str:
    """Of a lab that nobody else makes."""
    return f"test{os.getpid()}-{word}"


def remember(lab: Lab) -> Lab:
    """The lab, whose namespaces will be known again; it must be up."""
    _cookies[lab.holder.program] = frozenset(map(cookie, _rooms(lab)))
    return lab


def _rooms(lab: Lab) -> Iterator[Path]:
    for kinds in lab.holder.namespaces.values():
        yield Path(f"/proc/{lab.holder.program.pid}/fd/{kinds['net']}")


def cookie(path: Path) -> int:
    """The kernel's own name of a network namespace."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with namespaces.network(descriptor), socket.socket() as inside:
            return int.from_bytes(inside.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8), sys.byteorder)
    finally:
        os.close(descriptor)


def traces(lab: Lab) -> list[str]:
    """What is left of a lab that was up: files, processes called by its name, namespaces that anybody is in, holds
    or has mounted."""
    found = [str(path) for path in (lab.folder,) if path.exists()]
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if lab.name.encode() in words or _any_is_of(lab, [process / "ns/net", *(process / "fd").iterdir()]):
                found.append(f"{process.name}: {words}")
    mounted = [line.split()[4] for line in _mounts() if line.split()[3].startswith("net:")]
    return found + [point for point in mounted if _any_is_of(lab, [Path(point)], mounted=True)]


def _any_is_of(lab: Lab, paths: Iterable[Path], *, mounted: bool = False) -> bool:
    """Whether one of these leads to a network namespace of the lab. The number of a namespace that is gone is
    given to the next one that anybody makes, so only those with such a number are looked at closely."""
    numbers = {f"net:[{inode}]" for inode in lab.holder.inodes.values()}
    for path in paths:
        with suppress(OSError):
            if (mounted or str(path.readlink()) in numbers) and cookie(path) in _cookies[lab.holder.program]:
                return True
    return False


def outside() -> frozenset[str]:
    """The mounts and cards in this process's namespaces that labs of these tests might have made."""
    lines = (line.split() for line in _mounts())
    own = f"{state.ROOT}/{name('')}"
    mounts = {
        f"mount {words[0]} of {words[3]} at {words[4]}"
        for words in lines
        if words[4] in PLACES or words[3].startswith(own) or words[4].startswith(own)
    }
    return frozenset(mounts | {card for _, card in socket.if_nameindex() if CARDS.fullmatch(card)})


def _mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()
