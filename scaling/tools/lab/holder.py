"""The process that keeps a lab's namespaces open: `python -m scaling.tools.lab.holder NAME`, started by `up`.

For each node and the switch, a child creates and furnishes namespaces. The holder opens them through /proc, then
the child ends. Without the order to stay, the holder ends and all namespaces with it. So a failed `up` leaves
nothing.
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

from scaling.tools.lab import namespaces as ns
from scaling.tools.lab.state import SWITCH, Holder, folder, program

STAY = b"stay\n"


def main(arguments: list[str]) -> int:
    """Create the namespaces of NAME NODE..., answer on stdout (a Holder, or the error), then wait for the order to
    stay."""
    name, *nodes = arguments
    if os.fork():
        os._exit(0)  # detach: the caller has no child to wait for
    answer: Holder | str
    try:
        rooms = {SWITCH: make(ns.NEWNET, ("net",), furnish_switch)}
        flags = ns.NEWNET | ns.NEWUTS | ns.NEWIPC | ns.NEWNS
        for node in nodes:
            rooms[node] = make(flags, ns.KINDS, partial(furnish_node, node, folder(name)))
        inodes = {room: os.fstat(kinds["net"]).st_ino for room, kinds in rooms.items()}
        answer = Holder(program=program(os.getpid()), namespaces=rooms, inodes=inodes)
    except OSError as error:
        answer = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or ""
    os.write(1, msgspec.json.encode(answer) + b"\n")
    if os.read(0, len(STAY)) != STAY:
        return 1
    os.chdir("/")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    while True:
        signal.pause()


def make(flags: int, kinds: tuple[str, ...], furnish: Callable[[], None]) -> dict[str, int]:
    """Create namespaces in a child, furnish them and return their descriptors. Raises the child's OSError."""
    ready, tell = os.pipe()
    leave, stay = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(stay)
        try:
            ns.unshare(flags)
            furnish()
        except OSError as error:
            os.write(tell, f"{error.errno} {error.filename or ''}".encode())
        os.close(tell)  # furnished, or failed
        select.select([leave], [], [])
        os._exit(0)
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


def furnish_switch() -> None:
    """Exempt the bridges' traffic from firewalls."""
    for path in Path("/proc/sys/net/bridge").glob("bridge-nf-call-*"):
        path.write_text("0")


def furnish_node(node: str, files: Path) -> None:
    """Give a node its own host name, hosts, /tmp, /dev/shm and /sys. remote.py shares the outer /tmp."""
    socket.sethostname(node)
    ns.mount("none", "/", flags=ns.MS_REC | ns.MS_PRIVATE)
    ns.mount("/tmp", files / "tmp", flags=ns.MS_BIND | ns.MS_REC)
    ns.mount("tmpfs", "/tmp", "tmpfs", data="mode=1777")
    ns.mount("tmpfs", "/dev/shm", "tmpfs", data="mode=1777")
    ns.mount(files / "hosts", "/etc/hosts", flags=ns.MS_BIND)
    # A new /sys shows the cards of the node's network namespace. Control groups stay the machine's.
    beside = files / "sys"
    ns.mount("sysfs", beside, "sysfs")
    if Path("/sys/fs/cgroup").is_dir():
        ns.mount("/sys/fs/cgroup", beside / "fs/cgroup", flags=ns.MS_BIND | ns.MS_REC)
    ns.mount(beside, "/sys", flags=ns.MS_MOVE)
    # Nodes inherit bbr, which paces on its own, and rates of earlier connections. Only the link must decide.
    Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text("reno")
    Path("/proc/sys/net/ipv4/tcp_no_metrics_save").write_text("1")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
