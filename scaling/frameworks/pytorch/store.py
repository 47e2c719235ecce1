"""torch's key-value store through which ranks find each other, on the chosen network only."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore

from scaling.frameworks.listening import until_it_listens


def open_store(address: str, port: int, *, hosts: bool, timeout: timedelta) -> TCPStore:
    """Open the store at this address, which one process `hosts`. Raises torch's DistStoreError after `timeout`.
    torch's default listens on all interfaces of the host."""
    listening = _bound(address, port) if hosts else None
    if not hosts:
        until_it_listens(address, port, timeout.total_seconds())
    return TCPStore(
        address, port, is_master=hosts, timeout=timeout, wait_for_workers=False, master_listen_fd=listening
    )


def _bound(address: str, port: int) -> int:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((address, port))
        return one.detach()
