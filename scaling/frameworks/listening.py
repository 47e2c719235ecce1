"""Whether a process of a framework's own listens where it was told to."""

from __future__ import annotations

import contextlib
import errno
import socket

CONNECT_S = 1.0


def refuses(address: str, port: int) -> bool:
    """Whether nothing listens there yet: a reserved address that is not yet served refuses. What else is wrong, an
    unknown name or a host that is silent, is for whoever connects to say."""
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.settimeout(CONNECT_S)
        return probe.connect_ex((address, port)) == errno.ECONNREFUSED
    return False
