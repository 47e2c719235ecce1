"""Whether hosts reach each other over a network, and by which interface: TCP connections that nobody holds to one.

The kernel chooses the way as it will for the exchange, rules and all, so the address that a connection got here
says by which interface it left.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Sequence

from scaling.records.messages import Way

BACKLOG = 1024


def door(address: str) -> socket.socket:
    """A socket that takes connections at an address without ever serving them. Raises OSError where the address is
    not this host's."""
    return socket.create_server((address, 0), backlog=BACKLOG)


class Attempts:
    """Connections that are being made, all at once."""

    def __init__(self, peers: Sequence[tuple[str, int]], until_s: float) -> None:
        self._until_s = until_s
        self._ways: list[Way | None] = [None] * len(peers)
        self._open: dict[int, tuple[int, socket.socket]] = {}
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
        """How each peer was reached, in their order; None while some may yet be."""
        for fd, _ in self._poller.poll(0):
            number, sock = self._open.pop(fd)
            self._poller.unregister(fd)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._ways[number] = Way(error=os.strerror(code)) if code else Way(source=sock.getsockname()[0])
            sock.close()
        if self._open and now_s < self._until_s:
            return None
        for _, sock in self._open.values():
            sock.close()
        self._open.clear()
        return tuple(way or Way(error="timed out") for way in self._ways)
