"""Torch's key-value store in which ranks find each other, listening on the chosen network alone."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore

from scaling.frameworks.listening import until_it_listens


def open_store(address: str, port: int, *, hosts: bool, timeout: timedelta) -> TCPStore:
    """The store at this address, which one process `hosts`; raises torch's DistStoreError after `timeout`.

    By itself torch would listen on all interfaces of the host.
    """
    listening = _bound(address, port) if hosts else None
    if not hosts:
        until_it_listens(address, port, timeout.total_seconds())
    return TCPStore(
        address, port, is_master=hosts, timeout=timeout, wait_for_workers=False, master_listen_fd=listening
    )


def _bound(address: str, port: int) -> int:
    """A socket that the store will own. OSError where the port is taken."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((address, port))
        return one.detach()
