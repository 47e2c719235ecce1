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


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (OPEN_MPI, ("mpirun", 2, 1)),
        (PMI, ("mpirun", 2, 1)),
        (SRUN, ("srun", 2, 1)),
        ({**SRUN, **PMI}, ("srun", 2, 1)),
        (TORCHRUN, ("torchrun", 4, 3)),
        (FLUX, ("flux", 8, 5)),
        ({"PALS_RANKID": "1", **PMI}, ("PALS's mpiexec", 2, 1)),
        ({"PALS_RANKID": "1"}, ("PALS's mpiexec", 0, 1)),
        (PYTORCH_JOB, ("PyTorchJob", 4, 3)),
        ({**PYTORCH_JOB, "LOCAL_RANK": "1"}, ("deepspeed", 4, 3)),
    ],
    ids=[
        *("Open MPI", "MPICH", "srun", "srun with PMI-2", "torchrun", "flux", "PALS", "PALS without PMI"),
        *("PyTorchJob", "deepspeed"),
    ],
)
def test_a_launcher_is_known_by_its_variables(environ: dict[str, str], expected: tuple[str, int, int]) -> None:
    found = launched(environ)
    assert found is not None
    assert (found.launcher, found.size, found.rank) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"},
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1"},
        {"WORLD_SIZE": "2", "RANK": "0"},
        {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "1", "RANK": "0"},
        {"FLUX_JOB_SIZE": "1", "FLUX_TASK_RANK": "0"},
        {"PALS_RANKID": "0", "PMI_SIZE": "1", "PMI_RANK": "0", "OMPI_COMM_WORLD_SIZE": "x"},
    ],
    ids=["none", "batch shell", "one task", "a user's variables", "torchrun of one", "flux of one", "PALS of one"],
)
def test_one_process_is_no_launch_of_several(environ: dict[str, str]) -> None:
    found = launched(environ)
    assert found is None or found.size == 1


BY_SRUN, BY_TORCHRUN = "by srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS)", "by torchrun (RANK, WORLD_SIZE), inside "
BY_MPIRUN = "by mpirun (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({**TORCHRUN, **SRUN}, ("torchrun", 4, 3, f"{BY_TORCHRUN}srun")),
        ({**TORCHRUN, **SRUN, **PMI}, ("torchrun", 4, 3, f"{BY_TORCHRUN}srun")),
        ({**TORCHRUN, **OPEN_MPI}, ("torchrun", 4, 3, f"{BY_TORCHRUN}mpirun")),
        ({**TORCHRUN, **LEFT}, ("torchrun", 4, 3, f"{BY_TORCHRUN}mpirun")),
        ({**TORCHRUN, **OPEN_MPI, **SRUN}, ("torchrun", 4, 3, f"{BY_TORCHRUN}mpirun, srun")),
        ({**OPEN_MPI, **SRUN}, ("mpirun", 2, 1, f"{BY_MPIRUN}, inside srun")),
        ({**OPEN_MPI, **PYTORCH_JOB}, ("mpirun", 2, 1, f"{BY_MPIRUN}, inside PyTorchJob")),
        ({**SRUN, **LEFT}, ("srun", 2, 1, f"{BY_SRUN}, inside mpirun")),
        ({**SRUN, **LEFT, "PMI_FD": "999"}, ("srun", 2, 1, f"{BY_SRUN}, inside mpirun")),
        ({**SRUN, **PYTORCH_JOB}, ("srun", 2, 1, f"{BY_SRUN}, inside PyTorchJob")),
        ({**SRUN, "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "9"},
         ("srun", 2, 1, f"{BY_SRUN}, inside PyTorchJob")),
    ],
    ids=[
        "srun > torchrun", "srun with PMI-2 > torchrun", "mpirun > torchrun", "leftovers > torchrun",
        "srun > mpirun > torchrun", "srun > mpirun", "PyTorchJob > mpirun", "leftovers > srun",
        "leftovers of MPICH > srun", "leftovers of PyTorch > srun", "a script that copies srun's numbers",
    ],
)  # fmt: skip
def test_the_newest_launcher_counts(environ: dict[str, str], expected: tuple[str, int, int, str]) -> None:
    found = launched(environ)
    assert found is not None
    assert (found.launcher, found.size, found.rank, found.said) == expected


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


@pytest.mark.parametrize(
    ("environ", "way"),
    [
        (SRUN, "srun --mpi=pmix -n 2 python -m scaling check (MPICH: --mpi=pmi2; srun --mpi=list"),
        (TORCHRUN, "mpirun -np 4 python -m scaling check"),
        (FLUX, "flux run -o pmi=pmix -n 8 python -m scaling check, or mpirun -np 8 python -m scaling check"),
        ({"PALS_RANKID": "0"}, "mpiexec --pmi=pmix -n N python -m scaling check, or mpirun -np N"),
    ],
    ids=["srun", "torchrun", "flux", "PALS"],
)
def test_the_working_command_is_printed(environ: dict[str, str], way: str) -> None:
    found = launched(environ, "python -m scaling check")
    assert found is not None
    assert found.instead.startswith(way)


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
