"""Start scaling.run for a benchmark, with this machine's mpirun."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from launch import _mpi
from scaling.records import store
from scaling.records.events import Finished
from scaling.records.run import PointRecord


def command(ranks: int, flags: Sequence[str], results: Path) -> tuple[list[str], dict[str, str]]:
    """The mpirun command line and its environment."""
    mpirun = _mpi.find_mpirun()
    line = [str(mpirun), "-np", str(ranks), sys.executable, "-m", "scaling.run", "--results", str(results), *flags]
    return line, {**os.environ, **_mpi.mpi_environ(mpirun, ranks)}


def start(ranks: int, flags: Sequence[str], results: Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
    line, environ = command(ranks, flags, results)
    return subprocess.Popen(line, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)


def measured(ranks: int, flags: Sequence[str], results: Path) -> tuple[PointRecord, ...]:
    """Run it to its end and return its records; RuntimeError with its output when a point failed."""
    line, environ = command(ranks, flags, results)
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    (folder,) = results.iterdir()
    records = store.load(folder)[1]
    assert all(isinstance(record.outcome, Finished) for record in records)
    return records
