"""TCP connections of this host: whether hosts reach each other, and the bytes and busy time of each connection.

The counters come from the kernel by netlink (sock_diag; tcpi_bytes_acked and tcpi_busy_time of struct tcp_info in
linux/tcp.h). Bytes over busy time are what a path can carry. RDMA is not counted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import sys
import termios
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, NamedTuple

from scaling.records.messages import Admit, Admitting, Reach, Reached, Way
from scaling.records.telemetry import Flow

# ---------------------------------------------------------------- reach
# The kernel chooses the way as for an exchange. The local address of a connection shows its interface.


BACKLOG = 1024
MESSAGE = memoryview(bytes(1 << 20))
# More than the largest packet, also before network cards cut it. A slow network need not take the whole message.
ENOUGH_BYTES = 1 << 16
IP_MTU, IP_AND_ICMP_BYTES = 14, 28


class Door:
    """Takes connections at an address of this host and drops what they send. Raises OSError at another one."""

    def __init__(self, address: str) -> None:
        self._listening = socket.create_server((address, 0), backlog=BACKLOG)
        self._listening.setblocking(False)
        self._taken: list[socket.socket] = []
        self.port: int = self._listening.getsockname()[1]

    def read(self) -> None:
        with suppress(OSError):  # no more connections, or no more files
            while True:
                self._taken.append(self._listening.accept()[0])
        self._taken = [one for one in self._taken if _goes_on(one)]

    def close(self) -> None:
        for one in (self._listening, *self._taken):
            one.close()


def _goes_on(sock: socket.socket) -> bool:
    """Drop what has come; return whether more may come."""
    try:
        while sock.recv(len(MESSAGE), socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    sock.close()
    return False


class Attempts:
    """Connections to several peers, made at the same time, each with a message."""

    def __init__(self, peers: Sequence[tuple[str, int]], until_s: float) -> None:
        self._until_s = until_s
        self._ways: list[Way | None] = [None] * len(peers)
        self._open: dict[int, tuple[int, socket.socket]] = {}
        self._unsent: dict[int, int] = {}  # bytes, of those that are connected
        self._poller = select.poll()
        for number, peer in enumerate(peers):
            self._begin(number, peer)

    def _begin(self, number: int, peer: tuple[str, int]) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        code = sock.connect_ex(peer)
        if code not in (0, errno.EINPROGRESS):
            self._ways[number] = Way(error=os.strerror(code))
            sock.close()
            return
        self._open[sock.fileno()] = (number, sock)
        self._poller.register(sock, select.POLLOUT)

    def ways(self, now_s: float) -> tuple[Way, ...] | None:
        """Return how each peer was reached, in order; None while some are pending."""
        for fd, _ in self._poller.poll(0):
            self._poller.unregister(fd)
            if code := self._open[fd][1].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._end(fd, Way(error=os.strerror(code)))
            else:
                self._unsent[fd] = len(MESSAGE)
        for fd in [*self._unsent]:
            self._send(fd)
        if self._open and now_s < self._until_s:
            return None
        for fd in [*self._open]:
            self._end(fd, self._late(fd))
        return tuple(way or Way(error="timed out") for way in self._ways)

    def _send(self, fd: int) -> None:
        """Send more; end once the other kernel has acknowledged all."""
        _, sock = self._open[fd]
        try:
            if self._unsent[fd]:
                self._unsent[fd] -= sock.send(MESSAGE[-self._unsent[fd] :])
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(fd, Way(error=os.strerror(error.errno or 0)))
            return
        if not self._unsent[fd] + _unacknowledged_bytes(sock):
            self._end(fd, Way(source=sock.getsockname()[0]))

    def _late(self, fd: int) -> Way:
        """Return what is known of a connection whose time is over."""
        _, sock = self._open[fd]
        if fd not in self._unsent:
            return Way(error="timed out")
        passed = len(MESSAGE) - self._unsent[fd] - _unacknowledged_bytes(sock)
        return Way(source=sock.getsockname()[0]) if passed >= ENOUGH_BYTES else Way(error=_lost(sock))

    def _end(self, fd: int, way: Way) -> None:
        number, sock = self._open.pop(fd)
        self._unsent.pop(fd, None)
        self._ways[number] = way
        sock.close()


def _unacknowledged_bytes(sock: socket.socket) -> int:
    return int.from_bytes(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def _lost(sock: socket.socket) -> str:
    """Return what is known of a message that got no answer: small packets pass, and the MTU may be too large."""
    mtu = sock.getsockopt(socket.IPPROTO_IP, IP_MTU)
    return (
        f"it connects, but 1 MiB does not pass: this host's MTU is {mtu}, and a switch or the other "
        f"host may take less (ping -M do -s {mtu - IP_AND_ICMP_BYTES} ADDRESS)"
    )


class Proving:
    """The open doors of one host, and its connection attempts to other hosts."""

    def __init__(self) -> None:
        self.doors: dict[str, Door] = {}
        self._attempts: dict[str, Attempts] = {}
        self._opened: list[Admitting] = []

    def obey(self, order: Admit | Reach, now_s: float) -> None:
        """Open or close a door, or start connecting to the doors of other hosts."""
        if isinstance(order, Reach):
            self._attempts[order.network] = Attempts(order.peers, now_s + order.within_s)
            return
        if old := self.doors.pop(order.network, None):
            old.close()
        if order.address:
            self._opened.append(self._open(order))

    def _open(self, order: Admit) -> Admitting:
        try:
            self.doors[order.network] = Door(order.address)
        except OSError as error:
            return Admitting(network=order.network, error=error.strerror or str(error))
        return Admitting(network=order.network, port=self.doors[order.network].port)

    def answers(self, now_s: float) -> list[Admitting | Reached]:
        for door in self.doors.values():
            door.read()
        ended = {network: attempts.ways(now_s) for network, attempts in self._attempts.items()}
        reached = [Reached(network=network, ways=ways) for network, ways in ended.items() if ways is not None]
        for answer in reached:
            del self._attempts[answer.network]
        opened, self._opened = self._opened, []
        return [*opened, *reached]


# ---------------------------------------------------------------- connections

ESTABLISHED = 1 << 1
INFO = 1 << 1
MICRO = 1e-6
# Fewer bytes between two addresses are control messages.
LEAST_BYTES = 100_000


class Connection(NamedTuple):
    """The two ends of a TCP connection."""

    address: str
    port: int
    peer: str
    peer_port: int


class Account(NamedTuple):
    """Counters of a connection since it was made."""

    acked_bytes: int
    busy_s: float


Reading = Mapping[Connection, Account]


def read() -> Reading:
    """Read all connections to other hosts; none if the kernel does not answer (a sandbox, a container)."""
    # Takes 0.1 s.
    from pyroute2 import DiagSocket  # type: ignore[import-untyped, unused-ignore]
    from pyroute2.netlink.exceptions import NetlinkError  # type: ignore[import-untyped, unused-ignore]

    accounts: dict[Connection, Account] = {}
    try:
        with DiagSocket() as diag:
            diag.bind()
            for family in (socket.AF_INET, socket.AF_INET6):
                answers = diag.get_sock_stats(family=family, states=ESTABLISHED, extensions=INFO)
                accounts.update(account for answer in answers for account in _account(answer))
    except (OSError, NetlinkError):
        return {}
    return accounts


def since(before: Reading, now: Reading) -> tuple[Flow, ...]:
    """Return the traffic between two readings, from each address to each peer."""
    sent_bytes: defaultdict[tuple[str, str], int] = defaultdict(int)
    busy_s: defaultdict[tuple[str, str], float] = defaultdict(float)
    for connection, account in now.items():
        old = before.get(connection, Account(0, 0.0))
        path = (connection.address, connection.peer)
        sent_bytes[path] += account.acked_bytes - old.acked_bytes
        busy_s[path] = max(busy_s[path], account.busy_s - old.busy_s)
    return tuple(
        Flow(address=path[0], peer=path[1], sent_bytes=count, busy_s=busy_s[path])
        for path, count in sorted(sent_bytes.items())
        if count >= LEAST_BYTES
    )


def _account(answer: Any) -> Iterator[tuple[Connection, Account]]:
    address, peer = _plain(answer["idiag_src"]), _plain(answer["idiag_dst"])
    info = answer.get_attr("INET_DIAG_INFO")
    if address == peer or not info or "tcpi_busy_time" not in info:
        return
    connection = Connection(address, answer["idiag_sport"], peer, answer["idiag_dport"])
    yield connection, Account(info["tcpi_bytes_acked"], info["tcpi_busy_time"] * MICRO)


def _plain(text: str) -> str:
    """Return the address; IPv4 addresses mapped to IPv6 (gRPC's sockets) become IPv4."""
    address = ip_address(text)
    return str(getattr(address, "ipv4_mapped", None) or address)
