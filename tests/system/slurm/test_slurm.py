"""launch/slurm.sbatch, submitted for real to a Slurm of two nodes on this host (slurm.py)."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import AF_INET

import psutil
import pytest

from tests.support import slurm
from tests.support.fresh_machine import REPOSITORY
from tests.support.mpis import MPIS, Mpi
from tests.support.slurm import LIMIT_S, Cluster
from tests.support.waiting import eventually

SCRIPT = REPOSITORY / "launch" / "slurm.sbatch"
NODES = ("slurm-a", "slurm-b")
FAKE = ("--strategy", "fake:a", "--world-sizes", "1,4", "--rounds", "1", "--windows", "3", "--window-s", "0.02")
SLOW = ("--strategy", "fake:a", "--rounds", "50", "--windows", "3", "--window-s", "0.1")
# By name, since both nodes have this host's addresses: `auto` would take them for a bridge's.
CARDS = [
    name
    for name, addresses in psutil.net_if_addrs().items()
    if name != "lo"
    for one in addresses
    if one.family == AF_INET
]
TWO_EACH = ("--ntasks-per-node=2", "--gpus-per-node=2", "--cpus-per-task=1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if reason := slurm.missing() or (None if CARDS else "no network card with an IPv4 address"):
        pytest.skip(reason)
    with slurm.cluster(NODES, cpus=32, gpus=4) as started:
        yield started


def submit(cluster: Cluster, folder: Path, *arguments: str, mpi: Mpi | None = None, **environ: str) -> str:
    """Submit the script from `folder`, two tasks on each node; the job's id."""
    path = os.environ["PATH"] if mpi is None else f"{mpi.mpirun.parent}{os.pathsep}{os.environ['PATH']}"
    wanted = {"SCALING_ROOT": str(REPOSITORY), "VIRTUAL_ENV": sys.prefix, "PATH": path, **environ}
    command = (
        "sbatch",
        "--parsable",
        "--output=%j.out",
        *TWO_EACH,
        str(SCRIPT),
        "--interconnect",
        CARDS[0],
        *arguments,
    )
    return cluster.run(*command, cwd=folder, **wanted).strip()


def output(folder: Path, job: str) -> str:
    return (folder / f"{job}.out").read_text()


@pytest.mark.parametrize(("launcher", "mpi"), [("", MPIS[0]), ("", MPIS[1]), ("srun", MPIS[1])], ids=str)
def test_a_rank_per_task_on_both_nodes(cluster: Cluster, tmp_path: Path, launcher: str, mpi: Mpi) -> None:
    job = submit(cluster, tmp_path, *FAKE, mpi=mpi, SCALING_LAUNCHER=launcher)
    assert cluster.wait(job) == "COMPLETED 0:0", output(tmp_path, job)
    table = output(tmp_path, job)
    assert re.search(r"hosts +slurm-a slurm-b \(2 hosts, 4 ranks", table), table
    for size in (1, 4):
        assert re.search(rf"^ +{size}  ", table, re.MULTILINE), table


def bare(cluster: Cluster, folder: Path, plugin: str, mpi: Mpi) -> str:
    """What `srun` itself prints, started by hand on both nodes, and its exit code."""
    words = [sys.executable, "-m", "scaling.run", *FAKE[:2], "--interconnect", CARDS[0], "--dry-run"]
    command = f"srun --mpi={plugin} -N 2 -n 2 {shlex.join(words)} 2>&1; echo code $?"
    library = mpi.environ(2).get("MPI4PY_LIBMPI", "")
    return cluster.run("sh", "-c", command, cwd=folder, MPI4PY_LIBMPI=library, PYTHONPATH=str(REPOSITORY))


@pytest.mark.parametrize(("plugin", "mpi"), [("pmix", MPIS[1]), ("pmi2", MPIS[2])], ids=str)
def test_srun_alone_starts_one_launch(cluster: Cluster, tmp_path: Path, plugin: str, mpi: Mpi) -> None:
    said = bare(cluster, tmp_path, plugin, mpi)
    assert "2 ranks on 2 hosts" in said
    assert said.endswith("code 0\n"), said


@pytest.mark.parametrize("plugin", ["none", "pmi2"])
def test_srun_without_a_pmi_that_the_mpi_speaks_is_refused_once(
    cluster: Cluster, tmp_path: Path, plugin: str
) -> None:
    """Each task would write a table of its own, of one rank."""
    said = bare(cluster, tmp_path, plugin, MPIS[1])
    assert said.count("scaling: error: srun started 2 ranks, and in mpi4py's MPI (Open MPI v5") == 1, said
    assert "start them by: srun --mpi=pmix -n 2 python -m scaling.run ..." in said
    assert said.endswith("code 2\n"), said


def test_its_own_lines_are_those_of_a_gpu_cluster(cluster: Cluster, tmp_path: Path) -> None:
    wanted = {"SCALING_ROOT": str(REPOSITORY), "VIRTUAL_ENV": sys.prefix, "SCALING_LAUNCHER": "nobody"}
    job = cluster.run("sbatch", "--parsable", "--output=%j.out", str(SCRIPT), cwd=tmp_path, **wanted).strip()
    shown = cluster.run("scontrol", "-o", "show", "job", job)
    for words in ("NumNodes=2", "NumCPUs=64 NumTasks=8 CPUs/Task=8", "TresPerNode=gres:gpu:4", "JobName=scaling"):
        assert words in shown
    assert cluster.wait(job) == "FAILED 2:0"
    assert output(tmp_path, job) == "launch: SCALING_LAUNCHER=nobody: neither mpirun nor srun\n"


def test_a_failed_point_is_the_jobs_exit_code(cluster: Cluster, tmp_path: Path) -> None:
    fails = ("--option", "fail=segfault", "--option", "fail_world=4", "--option", "fail_rank=3")
    job = submit(cluster, tmp_path, *FAKE, *fails, mpi=MPIS[0])
    assert cluster.wait(job) == "FAILED 1:0"
    assert "crash(SIGSEGV)" in output(tmp_path, job)


def test_a_folder_that_is_not_the_repository(cluster: Cluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, *FAKE, SCALING_ROOT="")
    assert cluster.wait(job) == "FAILED 2:0"
    (line,) = output(tmp_path, job).splitlines()
    assert (
        line == f"launch: {tmp_path} is not the repository of scaling: submit from its root, or set SCALING_ROOT"
    )


def test_the_signal_before_the_time_is_up_ends_it_with_the_table(cluster: Cluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, *SLOW, mpi=MPIS[0])
    runs = "results/*/run.jsonl"
    eventually(
        lambda: any(len(run.read_text().splitlines()) > 3 for run in tmp_path.glob(runs)),
        lambda: output(tmp_path, job),
        within_s=LIMIT_S,
    )
    cluster.run("scancel", "--batch", "--signal=TERM", job)
    assert cluster.wait(job) == "FAILED 143:0", output(tmp_path, job)
    assert "Baselines, images/s" in output(tmp_path, job)
