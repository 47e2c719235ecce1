"""launch/mpirun on a machine of stubs: what each MPI says of itself, and how a call of it ended."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from tests.support.fresh_machine import OPENMPI5 as OPENMPI5
from tests.support.fresh_machine import REPOSITORY, Machine

OPENMPI4 = "mpirun (Open MPI) 4.1.4"
MPICH = "HYDRA build details:\n    Version:  5.0.2"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005"
NAMES = {OPENMPI4: "openmpi4", OPENMPI5: "openmpi5", MPICH: "mpich", INTEL: "intel"}
OPENMPI = (OPENMPI4, OPENMPI5)
HERE = {"VIRTUAL_ENV": sys.prefix, "PYTHONPATH": str(REPOSITORY)}
PROGRAM = (f"{sys.prefix}/bin/python", "-m", "scaling.run")

every_mpi = pytest.mark.parametrize("version", NAMES, ids=NAMES.get)


def launched(machine: Machine, *arguments: str, **environ: str) -> dict[str, Any]:
    """How mpirun was called: argv, environ."""
    done = machine.run("launch/mpirun", *arguments, **HERE | environ)
    assert done.returncode == 0, done.stderr
    call: dict[str, Any] = json.loads(done.stdout)
    return call


def refused(machine: Machine, *arguments: str, **environ: str) -> str:
    """The one line that a call ends in which mpirun never saw."""
    done = machine.run("launch/mpirun", *arguments, **HERE | environ)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("launch: ")
    return line


def mpi_variables(environ: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in environ.items() if re.match("OMPI_|PRTE_|I_MPI|MPI4PY|HYDRA", key)}
