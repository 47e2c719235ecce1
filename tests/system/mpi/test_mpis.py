"""`mpirun` of the matrix: every MPI runs its own library, crowded and unbound, and can be stopped."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.mpis import MPIS, Mpi, mpirun, on_mpi

SAY = """
import json, os
from mpi4py import MPI
mine = [MPI.Get_library_version(), sorted(os.sched_getaffinity(0)), MPI.COMM_WORLD.rank]
said = MPI.COMM_WORLD.gather(mine)
if said: print(json.dumps(said))
"""


@pytest.mark.parametrize("mpi", MPIS, ids=str)
def test_ranks_beyond_the_cores_run_unbound_on_the_library_of_their_mpirun(mpi: Mpi) -> None:
    ranks = len(os.sched_getaffinity(0)) + 1
    done = mpirun(mpi, ranks, "-c", SAY)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [rank for _, _, rank in said] == list(range(ranks))
    assert all(library.startswith(mpi.banner) for library, _, _ in said)
    assert all(cpus == sorted(os.sched_getaffinity(0)) for _, cpus, _ in said)


@on_mpi("openmpi4")
def test_exit_code_environment_and_folder_pass(mpi: Mpi, tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), os.environ['WORD']); sys.exit(3)"
    done = mpirun(mpi, 1, "-c", code, env={"WORD": "passed"}, cwd=tmp_path)
    assert (done.returncode, done.stdout.split()) == (3, [str(tmp_path), "passed"])


@on_mpi("mpich")
def test_launch_that_hangs_is_killed_with_all_its_ranks(mpi: Mpi, tmp_path: Path) -> None:
    code = "import os, time; open(str(os.getpid()), 'w').close(); time.sleep(600)"
    with pytest.raises(TimeoutError, match=r"ran past 2 s"):
        mpirun(mpi, 2, "-c", code, timeout=2, cwd=tmp_path)
    ranks = [int(path.name) for path in tmp_path.iterdir()]
    assert len(ranks) == 2
    assert not any(psutil.pid_exists(pid) for pid in ranks)


def test_missing_mpi_fails_and_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(AssertionError, match=r"run \./launch/test"):
        mpirun(MPIS[0], 1, "-c", "")


@pytest.mark.parametrize(("user", "asked"), [(0, {"openmpi4", "openmpi5"}), (1000, set())])
def test_permission_to_run_as_root_is_asked_for_root_alone(
    monkeypatch: pytest.MonkeyPatch, user: int, asked: set[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert {mpi.name for mpi in MPIS if "OMPI_ALLOW_RUN_AS_ROOT" in mpi.environ(1)} == asked
