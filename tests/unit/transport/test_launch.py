"""Joining a launch: its launcher, and its limit of open files."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaling.errors import LaunchError
from scaling.transport import launch
from scaling.transport.launch import ENOUGH, open_files_limit
from scaling.transport.start import launched
from tests.support.golden import check_golden

# How a rank ends: its last words reach the launcher first.

WORDS = b"Traceback (most recent call last):\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_it_waits_until_its_words_are_read(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            os.read(pipe[0], len(WORDS))

    monkeypatch.setattr(time, "sleep", sleep)
    os.write(pipe[1], WORDS)
    launch.wait_until_read(pipe[1])
    assert len(slept) == 3


def test_it_never_waits_for_ever(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    os.write(pipe[1], WORDS)
    launch.wait_until_read(pipe[1])
    assert sum(slept) == pytest.approx(2.0)


def test_a_file_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waited"))
    with (tmp_path / "log").open("wb") as log:
        log.write(WORDS)
        launch.wait_until_read(log.fileno())


@pytest.mark.parametrize(
    ("rank", "ended", "said"),
    [
        ("0", False, "scaling: error: too few files\n"),
        ("1", True, ""),
        ("1", False, f"scaling: error: rank 1 on {socket.gethostname()}: too few files\n"),
    ],
)
def test_rank_0_says_what_all_ranks_met_and_others_what_it_did_not_meet(
    rank: str, ended: bool, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The launcher ends all of them when the first one has ended."""
    slept: list[float] = []

    def wait(_: object, seconds: float) -> int | None:
        slept.append(seconds)
        return signal.SIGTERM if ended else None

    def refuse() -> None:
        raise LaunchError("too few files")

    monkeypatch.setattr(launch, "allow_open_files", refuse)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    monkeypatch.setattr(signal, "sigtimedwait", wait)
    for name, value in {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": rank}.items():
        monkeypatch.setenv(name, value)
    assert launch.as_rank(lambda *_: pytest.fail("connected"), lambda _: 2, pytest.fail, "scaling", ()) == 2
    assert capsys.readouterr().err == said
    assert slept == ([] if rank == "0" else [launch.WORD_S])


# Every launcher is known by what it leaves in the environment, and one that starts no MPI is told what would.

SRUN = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}
FLUX = {"FLUX_JOB_SIZE": "8", "FLUX_TASK_RANK": "5", "FLUX_JOB_ID": "f2"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
PMI = {"PMI_SIZE": "2", "PMI_RANK": "1"}
PYTORCH_JOB = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "n1", "MASTER_PORT": "23456"}
LEFT = {"PMI_RANK": "0", "PMI_SIZE": "1"}


COPIED = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "9"}
# Of several launchers the newest counts. One process is no launch of several.
LAUNCHES = {
    "Open MPI": OPEN_MPI,
    "MPICH": PMI,
    "srun": SRUN,
    "srun with PMI-2": {**SRUN, **PMI},
    "torchrun": TORCHRUN,
    "flux": FLUX,
    "PALS": {"PALS_RANKID": "1", **PMI},
    "PALS without PMI": {"PALS_RANKID": "1"},
    "PyTorchJob": PYTORCH_JOB,
    "deepspeed": {**PYTORCH_JOB, "LOCAL_RANK": "1"},
    "none": {},
    "batch shell of srun": {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"},
    "one task of srun": {**SRUN, "SLURM_STEP_NUM_TASKS": "1"},
    "a user's variables": {"WORLD_SIZE": "2", "RANK": "0"},
    "torchrun of one": {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "1", "RANK": "0"},
    "flux of one": {"FLUX_JOB_SIZE": "1", "FLUX_TASK_RANK": "0"},
    "PALS of one": {"PALS_RANKID": "0", "PMI_SIZE": "1", "PMI_RANK": "0", "OMPI_COMM_WORLD_SIZE": "x"},
    "srun > torchrun": {**TORCHRUN, **SRUN},
    "srun with PMI-2 > torchrun": {**TORCHRUN, **SRUN, **PMI},
    "mpirun > torchrun": {**TORCHRUN, **OPEN_MPI},
    "leftovers > torchrun": {**TORCHRUN, **LEFT},
    "srun > mpirun > torchrun": {**TORCHRUN, **OPEN_MPI, **SRUN},
    "srun > mpirun": {**OPEN_MPI, **SRUN},
    "PyTorchJob > mpirun": {**OPEN_MPI, **PYTORCH_JOB},
    "leftovers > srun": {**SRUN, **LEFT},
    "leftovers of MPICH > srun": {**SRUN, **LEFT, "PMI_FD": "999"},
    "leftovers of PyTorch > srun": {**SRUN, **PYTORCH_JOB},
    "a script that copies srun's numbers": {**SRUN, **COPIED},
}


def test_which_launcher_counts_and_which_command_would_work() -> None:
    lines = []
    for name, environ in LAUNCHES.items():
        found = launched(environ, "python -m scaling check")
        said = f"rank {found.rank} of {found.size}, {found.said}; else {found.instead}" if found else "-"
        lines.append(f"{name}: {said}")
    check_golden("launchers.txt", "\n".join([*lines, ""]))


def test_mpiruns_own_word_counts_where_srun_started_its_daemons() -> None:
    """A daemon on each of 4 nodes, one rank in all: the rank has the daemon's variables too. MPICH's have a
    socket."""
    daemon, (ours, theirs) = {**SRUN, "SLURM_STEP_NUM_TASKS": "4"}, socket.socketpair()
    with ours, theirs:
        mpich = launched({**daemon, "PMI_SIZE": "1", "PMI_RANK": "0", "PMI_FD": str(ours.fileno())})
    open_mpi = launched({**daemon, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"})
    for found in (mpich, open_mpi):
        assert found is not None
        assert (found.launcher, found.size) == ("mpirun", 1)


# How many files a rank may open: raised as far as the system lets it, refused where that is too few.

ENDLESS = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "allowed"),
    [
        (1024, 4096, 4096),
        (20, 1 << 20, ENOUGH),
        (1024, ENDLESS, ENOUGH),
        (1 << 20, 1 << 20, 1 << 20),
        (ENDLESS, ENDLESS, ENDLESS),
    ],
)
def test_the_limit_is_raised_and_never_lowered(soft: int, hard: int, allowed: int) -> None:
    assert open_files_limit(soft, hard) == allowed


def test_too_few_are_refused() -> None:
    with pytest.raises(LaunchError, match=r"ulimit -n 64: .* needs at least 256 open files"):
        open_files_limit(20, 64)
