"""What every command under mpirun begins and ends with: the other ranks, and what becomes of an exception."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from scaling.errors import LaunchError, ScalingError
from scaling.transport.base import Cluster
from scaling.transport.inline import Hub
from scaling.transport.mpi import connect, launched_size


def as_rank(work: Callable[[Cluster], int], name: str) -> int:
    """Connect to the other ranks and do this rank's `work`; returns the exit code.

    An uncaught exception on one rank would hang the others, so it is printed and ends them all. `name` is the
    command's, for a LaunchError.
    """
    for stream in ("stdout", "stderr"):  # closed by the shell: nobody listens, but writing must not fail
        if getattr(sys, stream) is None:
            setattr(sys, stream, Path(os.devnull).open("w"))  # noqa: SIM115
    try:
        cluster = _connected()
    except LaunchError as error:
        complain(error, name)
        return error.exit_code
    try:
        code = work(cluster)
        cluster.close()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        cluster.abort(1)
        raise
    return code


def complain(error: ScalingError, name: str) -> None:
    """An error of the user's or the launch's, in one line."""
    sys.stderr.write(f"{name}: error: {' '.join(str(error).split())}\n")
    sys.stderr.flush()


def _connected() -> Cluster:
    """MPI; without a launcher and without an MPI library, this process alone."""
    try:
        return connect()
    except LaunchError:
        if launched_size(os.environ):
            raise
        return Hub(1).rank(0)
