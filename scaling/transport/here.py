"""Start the ranks of one machine without a launcher: one per device, forks of the process that becomes rank 0.

A fork repeats no import and needs no command line. Rank 0's port is open before the first fork, so no other
program can take it. The secret stays in memory. The kernel ends the other ranks when rank 0 ends, for any reason.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from scaling.errors import LaunchError, UsageError
from scaling.text import counted, signal_name
from scaling.transport.start import SECRET, Secret, Start

LOOPBACK, BACKLOG = "127.0.0.1", 128
MOST = 64  # ranks of a CPU; a larger number is a typing error
PR_SET_PDEATHSIG = 1
LEAVE_S = 5.0


class Here(NamedTuple):
    """A rank that this package has started: its place, the secret of all, and on rank 0 the other processes."""

    place: Start
    secret: Secret
    pids: tuple[int, ...] = ()

    def check(self) -> None:
        """Raise LaunchError if a rank has ended before all have come."""
        for rank, pid in enumerate(self.pids, 1):
            if (ended := os.waitpid(pid, os.WNOHANG))[0]:
                code = os.waitstatus_to_exitcode(ended[1])
                how = signal_name(-code) if code < 0 else f"exit code {code}"
                raise LaunchError(f"rank {rank} ended before all ranks had come: {how}")

    def leave(self, code: int) -> int:
        """End a forked rank. Rank 0 waits for the others, which have said goodbye, and returns the code."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if self.place.rank:
            os._exit(code)
        import psutil  # type: ignore[import-untyped, unused-ignore]

        psutil.wait_procs([psutil.Process(pid) for pid in self.pids if psutil.pid_exists(pid)], LEAVE_S)
        return code


def ranks(wanted: int | None, devices: Callable[[], tuple[int, str]], name: str) -> Here:
    """Fork the other ranks, and return this process's place in each of them. If no number is `wanted`, each of the
    `devices` has one. Signals stay blocked until `Signals` takes them.
    Raises UsageError for too many ranks, and LaunchError if a fork fails."""
    cpus = os.cpu_count() or 1
    if wanted is not None and wanted > MOST * cpus:
        raise UsageError(f"--ranks {wanted}: this machine has {counted(cpus, 'CPU')}")
    size, kind = devices() if wanted is None else (wanted, "")
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP))
    listener = socket.create_server((LOOPBACK, 0), backlog=max(BACKLOG, size))
    place = Start(0, size, LOOPBACK, listener.getsockname()[1], "by scaling itself (--ranks N)", listener=listener)
    secret = Secret({SECRET: token_hex()}, Path(), place)
    if size > 1:
        each = kind and f", one on each {kind}"
        sys.stderr.write(f"{name}: starts {size} ranks{each} (--ranks N takes another number)\n")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    pids, first = [], os.getpid()
    for rank in range(1, size):
        try:
            pids.append(os.fork())
        except OSError as error:
            raise LaunchError(f"rank {rank} of {size} cannot be started: {error.strerror}") from None
        if not pids[-1]:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != first:  # it has ended already
                os._exit(1)
            listener.close()
            return Here(place._replace(rank=rank, listener=None), secret)
    return Here(place, secret, tuple(pids))
