"""launch/mpirun --agent --interface in a lab of two nodes: bytes are counted on both cards, under each MPI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import labs
from tests.support.fresh_machine import REPOSITORY
from tests.support.labs import needs_lab
from tests.support.mpis import Mpi, on_mpi_each

pytestmark = needs_lab
EXCHANGED_BYTES = 4_000_000
SWAP = f"""
import json, os, sys
from mpi4py import MPI
def sent():
    cards = ("ib0", "eth0")
    return {{card: int(open(f"/sys/class/net/{{card}}/statistics/tx_bytes").read()) for card in cards}}
before = sent()
MPI.COMM_WORLD.sendrecv(bytes({EXCHANGED_BYTES}), 1 - MPI.COMM_WORLD.rank, source=1 - MPI.COMM_WORLD.rank)
MPI.COMM_WORLD.Barrier()  # until now the last of them may wait in a socket
after = sent()
moved = {{card: after[card] - before[card] for card in after}}
sys.stdout.write(json.dumps([os.uname().nodename, MPI.Get_library_version().split("\\n")[0], moved]) + "\\n")
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with labs.lab("launch", slots=1, nics=()) as made:
        yield made.folder


@on_mpi_each("card", {"ib0": "openmpi4", "eth0": "mpich"})
def test_all_of_mpis_traffic_is_on_the_interface_that_was_named(folder: Path, mpi: Mpi, card: str) -> None:
    hosts = ["-f", f"{folder}/hostfile.mpich"] if mpi.name == "mpich" else ["--hostfile", f"{folder}/hostfile"]
    agent = f"{folder}/agent"
    mpirun = [str(REPOSITORY / "launch" / "mpirun"), "--agent", agent, "--interface", card, *hosts]
    prefix = mpi.mpirun.parents[1]
    base = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PRTE_"))}
    environ = {
        **base,
        "PATH": f"{prefix}/bin:{os.environ['PATH']}",
        "VIRTUAL_ENV": sys.prefix,
        "PYTHONPATH": str(REPOSITORY),
        # What a node is to see of the /tmp outside: all of this may be below it.
        "SCALING_LAB_PLACES": ":".join(
            map(str, (REPOSITORY, sys.prefix, prefix.parent.resolve(), prefix.resolve()))
        ),
    }
    done = subprocess.run(
        [agent, "--as-is", "node1", *mpirun, "-np", "2", "python", "-c", SWAP],
        capture_output=True, text=True, check=False, timeout=60, env=environ, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = sorted(map(json.loads, done.stdout.splitlines()))
    assert [host for host, _, _ in told] == ["node1", "node2"]
    for _, library, moved in told:
        assert library.startswith(mpi.banner)
        (other,) = set(moved) - {card}
        assert moved[card] >= EXCHANGED_BYTES
        assert moved[other] < EXCHANGED_BYTES / 100
