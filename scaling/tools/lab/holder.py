"""The process that keeps a lab's namespaces open: `python -m scaling.tools.lab.holder NAME`, started by `up`.

For each node, and for the switch between them, a child makes the namespaces and furnishes them; the holder
opens them through /proc and lets the child go. It ends, and with it all namespaces and links, unless it is
told to stay: an `up` that dies half-way leaves nothing running.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from scaling.records.point import Record
from scaling.tools.lab import namespaces as ns
from scaling.tools.lab.state import SWITCH, folder

STAY = b"stay\n"


class Opened(Record, frozen=True, kw_only=True):
    """What the holder answers: its pid and, as in state.Holder, its descriptors and the networks' identities;
    or why it could not."""

    pid: int = 0
    namespaces: dict[str, dict[str, int]] = {}
    inodes: dict[str, int] = {}
    error: str = ""


def main(arguments: list[str]) -> int:
    """Make the rooms of NAME NODE..., answer on stdout, then wait to be told to stay."""
    name, *nodes = arguments
    if os.fork():
        os._exit(0)  # whoever called has no child to wait for
    try:
        opened = open_all(name, nodes)
    except OSError as error:
        opened = Opened(error=f"{error.filename}: {error.strerror}" if error.filename else error.strerror or "")
    os.write(1, msgspec.json.encode(opened) + b"\n")
    if os.read(0, len(STAY)) != STAY:
        return 1
    os.chdir("/")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    while True:
        signal.pause()


def open_all(name: str, nodes: list[str]) -> Opened:
    """Make and open the namespaces of the switch and of all nodes. Raises OSError."""
    opened = {SWITCH: make(ns.NEWNET, ("net",), furnish_switch)}
    flags = ns.NEWNET | ns.NEWUTS | ns.NEWIPC | ns.NEWNS
    for node in nodes:
        opened[node] = make(flags, ns.KINDS, partial(furnish_node, node, folder(name)))
    inodes = {room: os.fstat(kinds["net"]).st_ino for room, kinds in opened.items()}
    return Opened(pid=os.getpid(), namespaces=opened, inodes=inodes)


def make(flags: int, kinds: tuple[str, ...], furnish: Callable[[], None]) -> dict[str, int]:
    """Descriptors of new namespaces that a child has made and furnished. Raises its OSError."""
    ready, tell = os.pipe()
    leave, stay = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(stay)
        _furnish(flags, furnish, tell, leave)
    os.close(tell)
    os.close(leave)
    answer = os.read(ready, 4096).decode()
    try:
        if answer:
            number, _, where = answer.partition(" ")
            raise OSError(int(number), os.strerror(int(number)), where or None)
        return {kind: os.open(f"/proc/{child}/ns/{kind}", os.O_RDONLY) for kind in kinds}
    finally:
        os.close(stay)
        os.close(ready)
        os.waitpid(child, 0)


def _furnish(flags: int, furnish: Callable[[], None], tell: int, leave: int) -> None:
    """In the child: answers by closing `tell`, after the errno and the place when it failed."""
    try:
        ns.unshare(flags)
        furnish()
    except OSError as error:
        os.write(tell, f"{error.errno} {error.filename or ''}".encode())
    os.close(tell)
    select.select([leave], [], [])
    os._exit(0)


def furnish_switch() -> None:
    """No firewall looks at what the bridges pass on."""
    for path in Path("/proc/sys/net/bridge").glob("bridge-nf-call-*"):
        path.write_text("0")


def furnish_node(node: str, files: Path) -> None:
    """Host name, hosts, /tmp, /dev/shm and /sys of its own. The /tmp outside stays in the lab's folder, so that
    remote.py finds there what is to be shared."""
    socket.sethostname(node)
    ns.mount("none", "/", flags=ns.MS_REC | ns.MS_PRIVATE)
    ns.mount("/tmp", files / "tmp", flags=ns.MS_BIND | ns.MS_REC)
    ns.mount("tmpfs", "/tmp", "tmpfs", data="mode=1777")
    ns.mount("tmpfs", "/dev/shm", "tmpfs", data="mode=1777")
    ns.mount(files / "hosts", "/etc/hosts", flags=ns.MS_BIND)
    _mount_sys(files / "sys")
    # Hosts inherit what the machine uses, which may pace by itself (bbr), and remember rates of earlier
    # connections; the link alone shall decide.
    Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text("reno")
    Path("/proc/sys/net/ipv4/tcp_no_metrics_save").write_text("1")


def _mount_sys(beside: Path) -> None:
    """/sys shows the cards of the network namespace that it was mounted in; control groups are as before."""
    ns.mount("sysfs", beside, "sysfs")
    if Path("/sys/fs/cgroup").is_dir():
        ns.mount("/sys/fs/cgroup", beside / "fs/cgroup", flags=ns.MS_BIND | ns.MS_REC)
    ns.mount(beside, "/sys", flags=ns.MS_MOVE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
