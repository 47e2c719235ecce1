"""Whether a process that others connect to listens where it was told to."""

from __future__ import annotations

import contextlib
import errno
import socket
import time

CONNECT_S = 1.0
# Between two looks.
LOOK_S = 0.005


def refuses(address: str, port: int) -> bool:
    """Whether nothing listens there yet: a reserved address that is not yet served refuses. What else is wrong, an
    unknown name or a host that is silent, is for whoever connects to say."""
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.settimeout(CONNECT_S)
        return probe.connect_ex((address, port)) == errno.ECONNREFUSED
    return False


def until_it_listens(address: str, port: int, within_s: float) -> None:
    """Wait for who serves a reserved address, so much at most: what then connects, refused once, would wait long
    before it tries again (torch's store and Horovod half a second, ZeroMQ a tenth). Where nobody listens in
    time, whoever connects will say so."""
    for _ in range(round(within_s / LOOK_S)):
        if not refuses(address, port):
            return
        time.sleep(LOOK_S)
