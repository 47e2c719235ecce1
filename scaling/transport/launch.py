"""The start and end of every command under mpirun: open files, the other ranks, uncaught exceptions."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import socket
import stat
import sys
import termios
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from scaling.command import complain, open_streams
from scaling.errors import LaunchError, UsageError
from scaling.transport import start, zmq
from scaling.transport.base import Cluster, Hub
from scaling.transport.launchers import launched
from scaling.transport.mpi import connect

# ---------------------------------------------------------------- open files


# MPI alone hangs or crashes with a dozen; an agent needs several for each point that lives side by side.
LEAST_OPEN_FILES, ENOUGH = 256, 1 << 16


def allow_open_files() -> None:
    """Raise this process's limit (`ulimit -n`) as far as allowed. Raises LaunchError if it stays too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = open_files_limit(soft, hard)
    if allowed != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def open_files_limit(soft: int, hard: int) -> int:
    """Return the new limit; RLIM_INFINITY is below all numbers. Raises LaunchError."""
    endless = resource.RLIM_INFINITY
    if endless not in (soft, hard) and hard < LEAST_OPEN_FILES:
        raise LaunchError(
            f"ulimit -n {hard}: a rank needs at least {LEAST_OPEN_FILES} open files; raise the limit (ulimit "
            "-Hn, /etc/security/limits.conf, LimitNOFILE of the service that starts it)"
        )
    if soft == endless:
        return soft
    return max(soft, ENOUGH if hard == endless else min(hard, ENOUGH))


# ---------------------------------------------------------------- launch

# The module of a command whose errors begin with another name.
NAMED = {"scaling": "scaling.run"}

# How often, and every how many seconds, a rank that aborts looks whether its output was read.
LOOKS, LOOK_S = 200, 0.01
PMI_S = 2.0
# How long rank 0 may be behind the others, and signals by which launchers end ranks.
WORD_S, ENDING = 10.0, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def as_rank(work: Callable[[Cluster, Sequence[str]], int], name: str, argv: Sequence[str]) -> int:
    """Connect to the other ranks, do this rank's `work` with the words that are left of `argv`, and return the
    exit code. An uncaught exception is printed and ends all ranks, which would hang. `name` is the command's."""
    open_streams()
    try:
        allow_open_files()
        asked = start.asked(argv)
        cluster = _connected(f"python -m {NAMED.get(name, name)} ...", asked)
    except (LaunchError, UsageError) as error:
        launch = launched(os.environ)
        if launch is None or launch.rank == 0:  # once, for any number of ranks
            complain(error, name)
        elif not rank_0_spoke():
            complain(f"rank {launch.rank} on {socket.gethostname()}: {error}", name)
        if launch is not None and launch.launcher == "mpirun":  # Slurm would kill all, and lose the exit code
            end_all(error.exit_code)
        return error.exit_code
    try:
        code = work(cluster, asked.rest)
        cluster.close()
    except BaseException:
        traceback.print_exc()
        abort(cluster, 1)
        raise
    return code


def abort(cluster: Cluster, code: int) -> None:
    """End all ranks after the output of this one was read."""
    _let_read()
    cluster.abort(code)


def _let_read() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
            wait_until_read(stream.fileno())


def end_all(code: int) -> None:
    """Have MPICH's launcher end all ranks over PMI 1: they would wait for one that leaves early."""
    with suppress(KeyError, ValueError, OSError):
        fd = int(os.environ["PMI_FD"])
        _let_read()
        os.write(fd, b"cmd=init pmi_version=1 pmi_subversion=1\n")
        if select.select([fd], [], [], PMI_S)[0] and b"rc=0" in os.read(fd, 200):
            os.write(fd, f"cmd=abort exitcode={code}\n".encode())


def rank_0_spoke() -> bool:
    """Whether the launcher ends this rank within `WORD_S`, because rank 0 met the same error and ended. Otherwise
    rank 0 did not meet it, and this rank must print it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    return signal.sigtimedwait(ENDING, WORD_S) is not None


def _connected(command: str, asked: start.Asked) -> Cluster:
    """The cluster over ZeroMQ if the launch is without MPI, else of MPI; this process alone without a launcher and
    an MPI library."""
    if (found := start.start(asked, os.environ)) is not None:
        secret = start.Secret(os.environ, Path("results"), found.name)
        return zmq.connect(found._replace(command=command), secret)
    try:
        return connect(command)
    except LaunchError:
        if launched(os.environ):
            raise
        return Hub(1).rank(0)


def wait_until_read(fd: int) -> None:
    """Wait, 2 s at most, until this pipe is empty: MPICH's launcher drops unread output when it aborts."""
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return
    for _ in range(LOOKS):
        unread = fcntl.ioctl(fd, termios.FIONREAD, bytes(4))
        if not int.from_bytes(unread, sys.byteorder):
            return
        time.sleep(LOOK_S)
