"""torch's key-value store through which ranks find each other, on the chosen network only."""

from __future__ import annotations

import socket
from datetime import timedelta
from functools import partial

from torch.distributed import TCPStore

from scaling.frameworks.listening import until_it_listens
from scaling.frameworks.pytorch import installed


def open_store(address: str, port: int, *, hosts: bool, timeout: timedelta) -> TCPStore:
    """Open the store at this address, which one process `hosts`. Raises torch's DistStoreError after `timeout`.
    torch's default listens on all interfaces of the host."""
    open_ = partial(TCPStore, address, port, is_master=hosts, timeout=timeout, wait_for_workers=False)
    if not hosts:
        until_it_listens(address, port, timeout.total_seconds())
        return open_()
    # With libuv torch 2.4 to 2.7 take no bound socket.
    return open_(master_listen_fd=_bound(address, port), use_libuv=not installed.is_before(2, 8))


def _bound(address: str, port: int) -> int:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((address, port))
        return one.detach()
