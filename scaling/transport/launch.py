"""The start and end of every command under mpirun: signals, open files, the other ranks, uncaught exceptions."""

from __future__ import annotations

import ctypes
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
from functools import partial
from pathlib import Path
from secrets import token_hex
from types import FrameType
from typing import NamedTuple, TypeVar

from scaling import files
from scaling.command import complain, open_streams
from scaling.errors import Interrupted, LaunchError, UsageError
from scaling.text import counted, signal_name
from scaling.transport import start
from scaling.transport.base import Cluster, Hub
from scaling.transport.mpi import connect
from scaling.transport.start import SECRET, Secret, Start, launched

# ---------------------------------------------------------------- signals that ask for the end
# From the first moment of a rank on: Ctrl-C, SIGTERM, SIGUSR1, SIGHUP.

# A launcher may pass on one Ctrl-C as two signals.
AGAIN_S = 1.0
STDERR = 2


class Signals:
    """Signals that ask for the end, kept until they can be passed on. USR1 means Ctrl-C: every mpirun passes it on
    and goes on forwarding its ranks' output (launch/mpirun sends it). SIGHUP stays ignored under nohup. If the
    process is stuck, the first signal prints what is being loaded, and the next one ends the process."""

    def __init__(self) -> None:
        self.fd, told = os.pipe()  # readable after a signal
        for fd in (self.fd, told):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        self._interrupt: Callable[[int], None] | None = None
        self._waits: Callable[[], bool] = lambda: self._early is not None
        self._early: int | None = None
        self._noted_s = 0.0
        self._asking = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._asking.append(signal.SIGHUP)
        self.at_exit: Callable[[], None] = lambda: None  # called before a second signal ends the process
        self._listen()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._asking)  # a rank's first line blocks them

    def early(self) -> int | None:
        """Return the first signal that came before `hand_to`."""
        return self._early

    def _listen(self) -> None:
        for number in self._asking:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if not self._waits():
            self._noted_s = now_s
            _say_what_is_loaded(number)
        elif now_s - self._noted_s > AGAIN_S:
            self.at_exit()
            os._exit(Interrupted(number).exit_code)
        if self._interrupt is None:
            self._early = self._early or number
        else:
            self._interrupt(number)

    def hand_to(self, interrupt: Callable[[int], None], waits: Callable[[], bool]) -> None:
        """Call `interrupt` for each signal, also for an earlier one; `waits` tells whether one is still unnoticed.
        Handlers are set again, because UCX, below MPI, takes SIGHUP and ignores it."""
        self._listen()
        self._interrupt, self._waits = interrupt, waits
        if self._early is not None:
            interrupt(self._early)


def _say_what_is_loaded(number: int) -> None:
    if what := files.loading_now():
        with suppress(OSError):
            os.write(
                STDERR,
                f"scaling: {signal_name(number)} waits for {what}; the next one ends scaling at once\n".encode(),
            )


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


# ---------------------------------------------------------------- ranks of one machine without a launcher
# One per device, forks of the process that becomes rank 0. A fork repeats no import and needs no command line.
# Rank 0's port is open before the first fork, so no other program can take it. The secret stays in memory. The
# kernel ends the other ranks when rank 0 ends, for any reason.

LOOPBACK, BACKLOG = "127.0.0.1", 128
MOST = 64  # ranks of a CPU; a larger number is a typing error
PR_SET_PDEATHSIG = 1
LEAVE_S = 5.0


class Forked(NamedTuple):
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


def forked(wanted: int | None, devices: Callable[[], tuple[int, str]], name: str) -> Forked:
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
            return Forked(place._replace(rank=rank, listener=None), secret)
    return Forked(place, secret, tuple(pids))


# ---------------------------------------------------------------- launch

# The module of a command whose errors begin with another name.
NAMED = {"scaling": "scaling.run"}

# How often, and every how many seconds, a rank that aborts looks whether its output was read.
LOOKS, LOOK_S = 200, 0.01
PMI_S = 2.0
# How long rank 0 may be behind the others, and signals by which launchers end ranks.
WORD_S, ENDING = 10.0, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)

Asked = TypeVar("Asked")


def as_rank(
    work: Callable[[Cluster, Signals, Sequence[str], Asked | int | None], int],
    read: Callable[[Sequence[str]], Asked | int],
    devices: Callable[[Asked], tuple[int, str]],
    name: str,
    argv: Sequence[str] | None,
) -> int:
    """Connect to the other ranks, do this rank's `work`, and return the exit code. An uncaught exception is
    printed and ends all ranks, which would hang. `name` is the command's.
    On rank 0 `read` parses the words that are left of `argv`, by default sys.argv. It returns an exit code after
    help or a mistake. `work` gets these words and the result, which is None on other ranks.
    Without a launcher `devices` counts the devices and names their kind."""
    open_streams()
    own: Forked | None = None
    try:
        allow_open_files()
        place = start.asked(sys.argv[1:] if argv is None else argv)
        if start.is_alone(place, os.environ):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, forks would end without an exit code
            found = read(place.rest)
            if isinstance(found, int):
                return found
            own = forked(place.ranks, partial(devices, found), name)
        signals = Signals()
        cluster = _connected(f"python -m {NAMED.get(name, name)} ...", place, signals, own)
    except Interrupted as stop:
        end_all(stop.exit_code)
        return stop.exit_code
    except (LaunchError, UsageError) as error:
        launch = launched(os.environ)
        if launch is None or launch.rank == 0:  # once, for any number of ranks
            complain(error, name)
        elif not rank_0_spoke():
            complain(f"rank {launch.rank} on {socket.gethostname()}: {error}", name)
        end_all(error.exit_code)
        return error.exit_code
    try:
        asked = read(place.rest) if cluster.rank == 0 else None
        # After help or a mistake, other ranks wait to be released.
        code = asked if isinstance(asked, int) and cluster.size == 1 else work(cluster, signals, place.rest, asked)
        cluster.close()
    except BaseException:
        traceback.print_exc()
        abort(cluster, 1)
        raise
    return own.leave(code) if own else code


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
    launch = launched(os.environ)
    if launch is None or launch.launcher != "mpirun":
        return  # Slurm would kill all, and lose the exit code
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


def _connected(command: str, asked: start.Asked, signals: Signals, own: Forked | None) -> Cluster:
    """The cluster over ZeroMQ if the launch is without MPI, else of MPI; this process alone without a launcher and
    an MPI library."""
    if (place := own.place if own else start.start(asked, os.environ)) is not None:
        try:
            from scaling.transport import zmq
        except ImportError:
            why = "without MPI ranks talk over pyzmq, which is not installed: pip install pyzmq"
            raise LaunchError(why) from None
        secret = own.secret if own else Secret(os.environ, Path("results"), place)
        if place.rank == 0:
            signals.at_exit = secret.forget

        def early() -> int | None:
            if own:
                own.check()
            return signals.early()

        return zmq.connect(place._replace(command=command), secret, early)
    if number := signals.early():
        launch = launched(os.environ)
        if launch is None or launch.rank == 0:
            complain("the ranks had not started", "scaling", signal_name(number))
        # The mpirun of Open MPI 5 may hang (PMIX_ERR_UNREACH) if a rank leaves before others have connected.
        if "OMPI_COMM_WORLD_RANK" not in os.environ:
            raise Interrupted(number)
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
