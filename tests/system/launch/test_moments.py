"""TERM and Ctrl-C to a rank at moments of a run's whole life, under each launcher but Slurm's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

import pytest

from tests.support import moments
from tests.support.fresh_machine import REPOSITORY
from tests.support.matrix import cases
from tests.support.moments import COMMAND, Launch, Life, started
from tests.support.mpis import MPIS, Mpi
from tests.support.ranks import free_ports

OPENMPI5, MPICH = MPIS[1:]


def by_hand(folder: Path, environ: Mapping[str, str]) -> Launch:
    place = ("--ranks", "2", "--coordinator", f"127.0.0.1:{free_ports(1)[0]}")
    return started(folder, environ, *([*COMMAND, "--rank", str(rank), *place] for rank in (0, 1)))


def mpirun(mpi: Mpi, folder: Path, environ: Mapping[str, str]) -> Launch:
    return started(folder, {**environ, **mpi.environ(2)}, [str(mpi.mpirun), "-np", "2", *COMMAND])


def launch_mpirun(folder: Path, environ: Mapping[str, str]) -> Launch:
    path = f"{OPENMPI5.mpirun.parent}{os.pathsep}{environ['PATH']}"
    own = {**environ, "PATH": path, "VIRTUAL_ENV": sys.prefix}
    return started(folder, own, [str(REPOSITORY / "launch/mpirun"), "-np", "2", *COMMAND])


def torchrun(folder: Path, environ: Mapping[str, str]) -> Launch:
    pytest.importorskip("torch")
    words = ("--nproc-per-node", "2", "--master-port", str(free_ports(1)[0]), "--no-python")
    return started(folder, environ, [sys.executable, "-m", "torch.distributed.run", *words, *COMMAND])


LAUNCHERS: dict[str, moments.Start] = {
    "by-hand": by_hand, "mpirun": partial(mpirun, OPENMPI5), "mpich": partial(mpirun, MPICH),
    "launch-mpirun": launch_mpirun, "torchrun": torchrun,
}  # fmt: skip
EVERY = [(name, number) for name in LAUNCHERS for number in range(moments.COUNT)]
FEW = [("by-hand", 6), ("by-hand", 17), ("by-hand", 36), ("mpirun", 0), ("mpirun", 19), ("mpich", 0)]


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Life]:
    return cache(lambda launcher: Life(LAUNCHERS[launcher], tmp_path_factory.mktemp(launcher)))


@pytest.mark.parametrize(("launcher", "number"), cases(EVERY, FEW))
def test_a_signal_at_a_moment_ends_all(
    life: Callable[[str], Life], tmp_path: Path, launcher: str, number: int
) -> None:
    life(launcher).ends(tmp_path, number)
