"""launch/mpirun for real, under each MPI of the matrix: on this host, and on hosts that an agent stands for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.fresh_machine import REPOSITORY, usable_cores
from tests.support.mpis import MPIS, Mpi, kill_tree, on_mpi

# A file per rank: MPICH mixes what several print at a time.
SAY = """
import json, os
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
with open(f"rank{rank}", "x") as file:
    json.dump([os.uname().nodename, os.getcwd(), dict(os.environ)], file)
"""
# As sshd: another host name, nothing of the caller's environment. Nothing here initialises MPI: such hosts have
# their shared memory in common.
AGENT = """\
#!/bin/sh
host=$1; shift
exec env -i PATH=/usr/bin:/bin HOME=/ unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a process another host name")
every_mpi = pytest.mark.parametrize("mpi", MPIS, ids=str)


def launch(mpi: Mpi, *arguments: str, cwd: Path, **environ: str) -> str:
    path = f"{mpi.mpirun.parent}{os.pathsep}{os.environ['PATH']}"
    base = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PRTE_"))}
    wanted = {**base, "PATH": path, "VIRTUAL_ENV": sys.prefix, **environ}
    process = subprocess.Popen(
        [str(REPOSITORY / "launch" / "mpirun"), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=wanted, cwd=cwd,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        kill_tree(process)
        raise
    assert process.returncode == 0, err.decode()
    return out.decode()


def said(folder: Path) -> list[tuple[str, str, dict[str, str]]]:
    files = sorted(folder.glob("rank*"))
    return [(host, cwd, environ) for host, cwd, environ in (json.loads(file.read_text()) for file in files)]


def hostfile(mpi: Mpi, folder: Path, *hosts: tuple[str, int]) -> tuple[str, str]:
    line, flag = ("{}:{}", "-f") if mpi.name == "mpich" else ("{} slots={}", "--hostfile")
    (folder / "hosts").write_text("".join(line.format(*host) + "\n" for host in hosts))
    return flag, "hosts"


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    path = tmp_path / "agent"
    path.write_text(AGENT)
    path.chmod(0o755)
    return path


@every_mpi
def test_ranks_beyond_the_cores_start_in_the_callers_folder(mpi: Mpi, tmp_path: Path) -> None:
    ranks = usable_cores() + 1
    launch(mpi, "-np", str(ranks), "python", "-c", SAY, cwd=tmp_path)
    told = said(tmp_path)
    assert [cwd for _, cwd, _ in told] == [str(tmp_path)] * ranks
    assert {environ["SCALING_VIEW"] for _, _, environ in told} == {"plain"}


@on_mpi("openmpi5")
def test_printed_command_runs_in_a_shell(mpi: Mpi, tmp_path: Path) -> None:
    text = launch(mpi, "--print", "-np", "2", "python", "-c", SAY, cwd=tmp_path)
    assert said(tmp_path) == []
    subprocess.run(["/bin/sh", "-c", text], check=True, cwd=tmp_path)
    assert len(said(tmp_path)) == 2


@needs_root
@every_mpi
def test_ranks_on_other_hosts_have_the_environment_of_the_call(mpi: Mpi, tmp_path: Path, agent: Path) -> None:
    ours: dict[str, Any] = {
        "SCALING_FABRIC": "/a b/c;d.toml",
        "NCCL_SOCKET_IFNAME": "=ib0,ib1",
        "GLOO_SOCKET_IFNAME": 'it\'s "$HOME" \\ *',
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": f"{REPOSITORY}:/nowhere",
    }
    where = hostfile(mpi, tmp_path, ("far1", 2), ("far2", 2))
    launch(mpi, "--agent", str(agent), *where, "-np", "4", "python", "-c", SAY, cwd=tmp_path, **ours)
    told = said(tmp_path)
    assert [host for host, _, _ in told] == ["far1", "far1", "far2", "far2"]
    for _, cwd, environ in told:
        assert {name: environ.get(name) for name in ours} == ours
        assert environ["VIRTUAL_ENV"] == sys.prefix
        assert f"{sys.prefix}/bin" in environ["PATH"].split(os.pathsep)
        assert cwd == str(tmp_path)


@needs_root
@on_mpi("mpich")
def test_more_ranks_than_slots_spread_over_the_hosts(mpi: Mpi, tmp_path: Path, agent: Path) -> None:
    where = hostfile(mpi, tmp_path, ("far1", 1), ("far2", 1))
    launch(mpi, "--agent", str(agent), *where, "-np", "4", "python", "-c", SAY, cwd=tmp_path)
    assert sorted(host for host, _, _ in said(tmp_path)) == ["far1", "far1", "far2", "far2"]


@on_mpi("openmpi5")
def test_a_sweep(mpi: Mpi, tmp_path: Path) -> None:
    fake = ("--strategy", "fake:a", "--rounds", "1", "--windows", "3", "--window-s", "0.02")
    where = ("-f", str(REPOSITORY / "hostfiles" / "local"))
    flag = where if mpi.name == "mpich" else ("--hostfile", where[1])
    table = launch(mpi, *flag, "-np", "2", "python", "-m", "scaling.run", *fake, cwd=tmp_path)
    assert "fake:a" in table
    assert len(list((tmp_path / "results").iterdir())) == 1


@needs_root
@pytest.mark.parametrize("mpi", MPIS[:2], ids=str)
def test_what_kubeflows_operator_sets_leads_to_the_workers(mpi: Mpi, tmp_path: Path, agent: Path) -> None:
    _, name = hostfile(mpi, tmp_path, ("far1", 1), ("far2", 1))
    operators = {"OMPI_MCA_orte_default_hostfile": str(tmp_path / name), "OMPI_MCA_plm_rsh_agent": str(agent)}
    launch(mpi, "python", "-c", SAY, cwd=tmp_path, **operators)
    assert [host for host, _, _ in said(tmp_path)] == ["far1", "far2"]
