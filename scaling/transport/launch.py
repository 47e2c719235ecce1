"""What every command under mpirun begins and ends with: the other ranks, and what becomes of an exception."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import sys
import termios
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from scaling.command import complain, open_streams
from scaling.errors import LaunchError
from scaling.transport import open_files
from scaling.transport.base import Cluster
from scaling.transport.inline import Hub
from scaling.transport.launchers import launched
from scaling.transport.mpi import connect

# Of the command whose errors begin with another name than it is started by.
NAMED = {"scaling": "scaling.run"}

# How often, and how long between, a rank that aborts looks whether its last words were read.
LOOKS, LOOK_S = 200, 0.01
# How long rank 0 may be behind the others, and the signals that launchers end ranks by.
WORD_S, ENDING = 10.0, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def as_rank(work: Callable[[Cluster], int], name: str) -> int:
    """Connect to the other ranks and do this rank's `work`; returns the exit code.

    An uncaught exception on one rank would hang the others, so it is printed and ends them all. `name` is the
    command's, for a LaunchError.
    """
    open_streams()
    try:
        open_files.allow()
        cluster = _connected(f"python -m {NAMED.get(name, name)} ...")
    except LaunchError as error:
        launch = launched(os.environ)
        if launch is None or launch.rank == 0:  # once, however many there are
            complain(error, name)
        else:
            leave_the_word_to_rank_0()
        return error.exit_code
    try:
        code = work(cluster)
        cluster.close()
    except BaseException:
        traceback.print_exc()
        abort(cluster, 1)
        raise
    return code


def abort(cluster: Cluster, code: int) -> None:
    """End all ranks once what this one printed was read."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
            wait_until_read(stream.fileno())
    cluster.abort(code)


def leave_the_word_to_rank_0() -> None:
    """Wait until the launcher ends this rank, for some seconds at most: it ends all when the first has ended, and
    rank 0 may not have said yet what all ranks met."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    signal.sigtimedwait(ENDING, WORD_S)


def _connected(command: str) -> Cluster:
    """MPI; without a launcher and without an MPI library, this process alone."""
    try:
        return connect(command)
    except LaunchError:
        if launched(os.environ):
            raise
        return Hub(1).rank(0)


def wait_until_read(fd: int) -> None:
    """Until whoever reads this pipe has taken what is in it, for 2 s at most.

    MPICH's launcher, told to abort, ends without what it has not read yet.
    """
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return
    for _ in range(LOOKS):
        unread = fcntl.ioctl(fd, termios.FIONREAD, bytes(4))
        if not int.from_bytes(unread, sys.byteorder):
            return
        time.sleep(LOOK_S)
