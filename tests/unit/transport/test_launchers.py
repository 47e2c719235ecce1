"""Every launcher is known by what it leaves in the environment, and one that starts no MPI is told what would."""

from __future__ import annotations

import pytest

from scaling.transport.launchers import launched

SRUN = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}
FLUX = {"FLUX_JOB_SIZE": "8", "FLUX_TASK_RANK": "5", "FLUX_JOB_ID": "f2"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
PMI = {"PMI_SIZE": "2", "PMI_RANK": "1"}


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
    ],
    ids=["Open MPI", "MPICH", "srun", "srun with PMI-2", "torchrun", "flux", "PALS", "PALS without PMI"],
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


def test_mpiruns_own_word_counts_where_srun_started_its_daemons() -> None:
    """A daemon on each of 4 nodes, one rank in all: the rank has the daemon's variables too."""
    daemon = {**SRUN, "SLURM_STEP_NUM_TASKS": "4"}
    for own in ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, {"PMI_SIZE": "1", "PMI_RANK": "0"}):
        found = launched({**daemon, **own})
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
def test_the_line_that_works_is_told(environ: dict[str, str], way: str) -> None:
    found = launched(environ, "python -m scaling check")
    assert found is not None
    assert found.instead.startswith(way)
