"""Real bytes for the scripted strategy: in each step every rank sends so many to rank 0 and gets them back."""

from __future__ import annotations

import socket
import time

from scaling.records.task import Task

CONNECT_S = 20.0
CHUNK_BYTES = 1 << 20


class Star:
    """TCP connections of one point, rank 0 in the middle, on the port that was reserved for it."""

    def __init__(self, task: Task, count_bytes: int) -> None:
        """Connect all ranks. Raises OSError when the port is taken or rank 0 cannot be reached."""
        self._count_bytes = count_bytes
        self._central = task.rank == 0
        where = (task.address, task.ports[0])
        self._peers = _accept(where, task.point.world_size - 1) if self._central else [_connect(where)]

    def exchange(self) -> None:
        """One step's traffic; returns when all of it has arrived."""
        for peer in self._peers:
            if self._central:
                _receive(peer, self._count_bytes)
            else:
                _send(peer, self._count_bytes)
        for peer in self._peers:
            if self._central:
                _send(peer, self._count_bytes)
            else:
                _receive(peer, self._count_bytes)

    def close(self) -> None:
        """Hang up."""
        for peer in self._peers:
            peer.close()


def _accept(where: tuple[str, int], count: int) -> list[socket.socket]:
    with socket.create_server(where, backlog=count) as server:
        server.settimeout(CONNECT_S)
        peers = [server.accept()[0] for _ in range(count)]
    for peer in peers:
        peer.settimeout(None)
    return peers


def _connect(where: tuple[str, int]) -> socket.socket:
    deadline_s = time.monotonic() + CONNECT_S
    while True:
        try:
            return socket.create_connection(where)
        except ConnectionRefusedError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


def _send(peer: socket.socket, count_bytes: int) -> None:
    chunk = memoryview(bytes(min(CHUNK_BYTES, count_bytes)))
    while count_bytes > 0:
        part = chunk[: min(len(chunk), count_bytes)]
        peer.sendall(part)
        count_bytes -= len(part)


def _receive(peer: socket.socket, count_bytes: int) -> None:
    buffer = bytearray(CHUNK_BYTES)
    while count_bytes > 0:
        got = peer.recv_into(buffer, min(CHUNK_BYTES, count_bytes))
        if not got:
            raise ConnectionError("connection closed by peer")
        count_bytes -= got
