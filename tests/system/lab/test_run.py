"""`lab run`: a real mpirun over the nodes, its signals, its exit code, and nothing of it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scaling.tools.lab import state
from scaling.tools.lab.state import Lab
from tests.support import labs
from tests.support.labs import needs_lab
from tests.support.mpis import Mpi, on_mpi
from tests.support.waiting import eventually

pytestmark = needs_lab
# What a rank tells: where it is, which lab it is told of, and that it can compute with the others.
HELLO = """
import os, socket, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank)
told = [os.environ[name] for name in ("SCALING_LAB", "SCALING_FABRIC")]
print(world.rank, socket.gethostname(), *told, total, os.getcwd(), flush=True)
open(f"{sys.argv[1]}/rank{world.rank}", "w").close()
world.Barrier()
sys.exit(int(sys.argv[2]))
"""
WAIT = """
import pathlib, sys, time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
pathlib.Path(sys.argv[1], f"rank{MPI.COMM_WORLD.rank}").touch()
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with labs.lab("run") as made:
        yield made


def run(lab: Lab, folder: Path, program: str, *arguments: str, ranks: int = 4) -> list[str]:
    script = folder / "program.py"
    script.write_text(program)
    flags = ["run", "--name", lab.name, "--", "-np", str(ranks)]
    return [sys.executable, "-m", "scaling", "lab", *flags, "python", str(script), *arguments]


@contextmanager
def waiting(lab: Lab, folder: Path) -> Iterator[subprocess.Popen[str]]:
    words = run(lab, folder, WAIT, str(folder))
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(words, cwd=labs.ROOT, stdout=said, stderr=said, text=True)
    try:
        eventually(lambda: len(list(folder.glob("rank*"))) == 4, (folder / "said").read_text, of=process)
        yield process
    finally:
        process.kill()
        process.wait()


@on_mpi("openmpi5")
def test_ranks_are_spread_over_the_nodes_and_the_exit_code_is_theirs(mpi: Mpi, lab: Lab, tmp_path: Path) -> None:
    words = run(lab, tmp_path, HELLO, str(tmp_path), "3")
    environ = {**os.environ, "PATH": f"{mpi.mpirun.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        words, cwd=labs.ROOT, env=environ, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 3, done.stderr
    told = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert Counter(words[1] for words in told) == {"node1": 2, "node2": 2}, done.stderr
    assert {tuple(words[2:]) for words in told} == {(lab.name, f"{lab.folder}/fabric.toml", "6", str(labs.ROOT))}
    assert len(list(tmp_path.glob("rank*"))) == 4
    assert state.processes(lab) == []
    assert not (lab.folder / "run.json").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_and_all_of_it(lab: Lab, tmp_path: Path, number: int, code: int) -> None:
    with waiting(lab, tmp_path) as process:
        process.send_signal(number)
        assert process.wait(120) == code
    assert state.processes(lab) == []


def test_a_lab_is_not_taken_down_under_a_run(tmp_path: Path) -> None:
    lab = labs.make("busy")
    try:
        with waiting(lab, tmp_path) as process:
            told = f"pid {process.pid}: -np 4 python"
            shown = labs.command("status", "--name", lab.name).stdout
            assert "a run is active since" in shown
            assert told in shown
            for command in (["down", "--name", lab.name], ["run", "--name", lab.name, "--", "hostname"]):
                refused = labs.command(*command)
                assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
                assert f"a run is active ({told}" in refused.stderr
            done = labs.command("down", "--name", lab.name, "--force")
            assert done.returncode == 0, done.stderr
            assert process.wait(120) != 0
    finally:
        labs.end("busy")
    assert labs.traces(lab) == []


def test_what_a_killed_run_leaves_is_a_run_that_is_on(lab: Lab, tmp_path: Path) -> None:
    with waiting(lab, tmp_path) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        on = state.run_on(lab)
        assert on is not None
        assert on.program.pid != process.pid
        refused = labs.command("down", "--name", lab.name)
        assert refused.returncode == 2
        assert f"(pid {on.program.pid}: " in refused.stderr
        state.end(lambda: state.processes_of(lab, on))
    assert state.run_on(lab) is None
    assert state.load(lab.name) == lab


def test_the_callers_environment_reaches_ranks_only_by_forwarding(lab: Lab, tmp_path: Path) -> None:
    """What the launcher forwards is there on every node; what it does not is missing on the others."""
    tell = "import os, socket; print(socket.gethostname(), os.environ.get('NCCL_A'), os.environ.get('UNKNOWN_B'))"
    words = run(lab, tmp_path, tell)
    environ = {**os.environ, "NCCL_A": "a", "UNKNOWN_B": "b"}
    done = subprocess.run(
        words, cwd=labs.ROOT, env=environ, capture_output=True, text=True, check=False, timeout=120
    )
    told = {tuple(line.split()) for line in done.stdout.splitlines()}
    assert {("node1", "a", "b"), ("node2", "a", "None")} == told
