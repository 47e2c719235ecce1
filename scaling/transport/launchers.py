"""Which launcher started this process, by its environment variables, and what to start if its ranks are alone.

Without the MPI library's PMI a launcher starts N runs of one rank, without a warning (open-mpi/ompi#13523).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Launch(NamedTuple):
    """A launcher: its number of processes (0 if unknown), the rank of this one, and the command that works."""

    launcher: str
    size: int
    rank: int
    instead: str


SLURM = "srun --mpi=pmix -n {n} {command} (MPICH: --mpi=pmi2; srun --mpi=list shows what there is), or {mpirun}"
FLUX = "flux run -o pmi=pmix -n {n} {command}, or {mpirun}"
PALS = "mpiexec --pmi=pmix -n {n} {command}, or {mpirun}"
MPIRUN = "mpirun -np {n} {command}"


def launched(environ: Mapping[str, str], command: str = "python -m scaling.run ...") -> Launch | None:
    """Return the launcher of several processes, this among them; None without one. Open MPI's variable comes
    first: its mpirun may start ranks by srun, which leaves both. The shell of a Slurm allocation has no
    SLURM_PROCID."""
    found = (
        _mpi(environ, "OMPI_COMM_WORLD")
        or _srun(environ)
        or _counted(environ, "torchrun", "TORCHELASTIC_RUN_ID", "WORLD_SIZE", "RANK", MPIRUN)
        or _counted(environ, "flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_RANK", FLUX)
        or _pals(environ)
        or _mpi(environ, "PMI")
    )
    if found is None:
        return None
    count = found.size or "N"
    mpirun = MPIRUN.format(n=count, command=command)
    return found._replace(instead=found.instead.format(n=count, command=command, mpirun=mpirun))


def _mpi(environ: Mapping[str, str], prefix: str) -> Launch | None:
    size = _number(environ, f"{prefix}_SIZE")
    return Launch("mpirun", size, _number(environ, f"{prefix}_RANK"), MPIRUN) if size else None


def _counted(
    environ: Mapping[str, str], launcher: str, marker: str, size_name: str, rank_name: str, instead: str
) -> Launch | None:
    size = _number(environ, size_name)
    return Launch(launcher, size, _number(environ, rank_name), instead) if marker in environ and size > 1 else None


def _srun(environ: Mapping[str, str]) -> Launch | None:
    """None if another launcher's daemon was the task: PMI then has another size."""
    found = _counted(environ, "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", SLURM)
    return found if found and _number(environ, "PMI_SIZE") in (0, found.size) else None


def _pals(environ: Mapping[str, str]) -> Launch | None:
    """HPE Cray's mpiexec. Only PMI has the number of processes; without PMI any number is possible."""
    size = _number(environ, "PMI_SIZE")
    if "PALS_RANKID" not in environ or size == 1:
        return None
    return Launch("PALS's mpiexec", size, _number(environ, "PALS_RANKID"), PALS)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else 0
