"""The MPIs of the test matrix, installed by ./launch/test, and `mpirun` under any of them."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import psutil
import pytest

from launch import _mpi
from scaling.records.point import Record
from tests.support.matrix import cases

# For python -c before `-m scaling.run FLAG...`: rank 0 has patience for some seconds alone.
IMPATIENT = (
    "import sys\nfrom scaling.agent import agent\nfrom scaling.run import __main__ as run, ranks\n"
    "agent.BEAT_S, ranks.SILENT_S = 1.0, 8.0\nsys.exit(run.main(sys.argv[3:]))\n"
)


class Mpi(Record, frozen=True, kw_only=True):
    """One MPI: its name, the prefix it is installed in, and what its library says of itself."""

    name: str
    banner: str

    @property
    def mpirun(self) -> Path:
        """Its mpirun; AssertionError where ./launch/test has not installed it."""
        path = Path(sys.prefix, "mpis", self.name, "bin", "mpirun")
        assert path.is_file(), f"no {path}: the tests need three MPIs; run ./launch/test, which installs them"
        return path

    def environ(self, ranks: int) -> dict[str, str]:
        """The variables that the launcher would add for so many ranks here."""
        return _mpi.mpi_environ(self.mpirun, ranks)

    def __str__(self) -> str:
        return self.name


MPIS = (
    Mpi(name="openmpi4", banner="Open MPI v4.1"),
    Mpi(name="openmpi5", banner="Open MPI v5.0"),
    Mpi(name="mpich", banner="MPICH Version"),
)


def on_mpi(*default: str) -> pytest.MarkDecorator:
    """Run a test on these MPIs, and on the others in the matrix."""
    return pytest.mark.parametrize("mpi", cases(MPIS, [mpi for mpi in MPIS if mpi.name in default]), ids=str)


def on_mpi_each(argument: str, default: Mapping[Any, str]) -> pytest.MarkDecorator:
    """Run a test with each value of `argument` on the MPI named ("" for none), and on the others in the matrix."""
    pairs = [(mpi, value) for value in default for mpi in MPIS]
    chosen = [(mpi, value) for mpi, value in pairs if default[value] == mpi.name]
    ids = [f"{mpi}-{getattr(value, 'name', value)}" for mpi, value in pairs]
    return pytest.mark.parametrize(("mpi", argument), cases(pairs, chosen), ids=ids)


def mpirun(
    mpi: Mpi,
    ranks: int,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `mpirun -np ranks python ARGUMENT...` to its end, with text output, in a session of its own.

    As root and with more ranks than cores too. After `timeout` seconds all of it is killed, and
    TimeoutError shows what was printed until then.
    """
    command = [str(mpi.mpirun), "-np", str(ranks), sys.executable, *arguments]
    environ = {**os.environ, **mpi.environ(ranks), **(env or {})}
    # Into files: a process that outlives mpirun would hold a pipe open.
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environ, cwd=cwd, start_new_session=True
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            kill_tree(process)
            said = (text(out) + text(err))[-4000:]
            raise TimeoutError(f"{shlex.join(command)} ran past {timeout} s; it said:\n{said}") from None
        return subprocess.CompletedProcess(command, process.returncode, text(out), text(err))


class Running(NamedTuple):
    """A launch under an mpirun, and the file that has its output."""

    process: subprocess.Popen[bytes]
    out: Path

    def said(self) -> str:
        return self.out.read_text()


@contextlib.contextmanager
def running(mpi: Mpi, ranks: int, *arguments: str, cwd: Path) -> Iterator[Running]:
    """Start `mpirun -np ranks python ARGUMENT...` in a session of its own; at the end it is killed."""
    command = [str(mpi.mpirun), "-np", str(ranks), sys.executable, *arguments]
    with (cwd / "out").open("w") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd,
            env={**os.environ, **mpi.environ(ranks)}, start_new_session=True,
        )  # fmt: skip
    try:
        yield Running(process, cwd / "out")
    finally:
        process.kill()
        process.wait()


def text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all its descendants, and see them gone: MPICH gives each rank its own session."""
    descendants = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for descendant in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            descendant.kill()
    psutil.wait_procs(descendants, timeout=5)
