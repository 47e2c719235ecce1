"""Wait until a process listens at its address."""

from __future__ import annotations

import contextlib
import errno
import socket
import time

CONNECT_S = 1.0
# Between two tries.
LOOK_S = 0.005


def refuses(address: str, port: int) -> bool:
    """Return whether nothing listens there yet: a reserved port without a listener refuses connections. Other
    errors (unknown name, silent host) are left to the caller's own connection."""
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.settimeout(CONNECT_S)
        return probe.connect_ex((address, port)) == errno.ECONNREFUSED
    return False


def until_it_listens(address: str, port: int, within_s: float) -> None:
    """Wait until a reserved address accepts connections, for at most `within_s`. Never raises. A library that is
    refused once waits long before it retries: torch's store and Horovod 0.5 s, ZeroMQ 0.1 s. After the timeout the
    library's own connection reports the failure."""
    for _ in range(round(within_s / LOOK_S)):
        if not refuses(address, port):
            return
        time.sleep(LOOK_S)
