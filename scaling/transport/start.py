"""Which launcher started this process, and how its ranks find each other without MPI: rank, address, secret."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from scaling.errors import UsageError

# ---------------------------------------------------------------- launchers
# A launcher is known by its environment variables. Without the MPI library's PMI a launcher starts N runs of one
# rank, without a warning (open-mpi/ompi#13523).


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
    size = _count(environ, f"{prefix}_SIZE")
    return Launch("mpirun", size, _count(environ, f"{prefix}_RANK"), MPIRUN) if size else None


def _counted(
    environ: Mapping[str, str], launcher: str, marker: str, size_name: str, rank_name: str, instead: str
) -> Launch | None:
    size = _count(environ, size_name)
    return Launch(launcher, size, _count(environ, rank_name), instead) if marker in environ and size > 1 else None


def _srun(environ: Mapping[str, str]) -> Launch | None:
    """None if another launcher's daemon was the task: PMI then has another size."""
    found = _counted(environ, "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", SLURM)
    return found if found and _count(environ, "PMI_SIZE") in (0, found.size) else None


def _pals(environ: Mapping[str, str]) -> Launch | None:
    """HPE Cray's mpiexec. Only PMI has the number of processes; without PMI any number is possible."""
    size = _count(environ, "PMI_SIZE")
    if "PALS_RANKID" not in environ or size == 1:
        return None
    return Launch("PALS's mpiexec", size, _count(environ, "PALS_RANKID"), PALS)


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else 0


# ---------------------------------------------------------------- ranks without MPI

Transport = Literal["mpi", "zmq"]
SECRET, COORDINATOR, POD = "SCALING_SECRET", "SCALING_COORDINATOR", "JOB_COMPLETION_INDEX"
LEAST_SECRET = 16
# Ports of jobs; torchrun's own store has MASTER_PORT.
FIRST_PORT, PORTS, AFTER_MASTER = 23_000, 9_000, 11
# What ends the flags: a script and its arguments follow.
SCRIPT_FOLLOWS = "--"
FLAGS = ("transport", "rank", "ranks", "coordinator")
ABOUT = (
    "Without MPI: ranks of srun, torchrun and flux talk over ZeroMQ (--transport mpi|zmq). By hand each rank has "
    "--rank R --ranks N --coordinator HOST:PORT, and all have one SCALING_SECRET. Other flags count on rank 0 "
    "alone."
)


class Start(NamedTuple):
    """A rank's place in a launch without MPI. `name`: a word for the launch, in the name of its secret's file.
    `command`: the command that this rank runs, for messages."""

    rank: int
    ranks: int
    host: str
    port: int
    name: str
    command: str = ""

    @property
    def coordinator(self) -> str:
        return f"{self.host}:{self.port}"


class Asked(NamedTuple):
    """The flags of a start, and the words that are left for the command."""

    transport: Transport | None
    rank: int | None
    ranks: int | None
    coordinator: str
    rest: tuple[str, ...]


def asked(argv: Sequence[str]) -> Asked:
    """Take the flags of a start from a command line, and a script's command after `--` as one word.
    Raises UsageError."""
    found: dict[str, str] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--")
        if word == SCRIPT_FOLLOWS:
            rest += ("--script", shlex.join(words))
        elif flag.startswith("--") and name in FLAGS:
            given = value if equals else next(words, "")
            if not given:
                raise UsageError(f"{flag}: needs a value")
            found[name] = given
        else:
            rest.append(word)
    kind = found.get("transport")
    if kind not in (None, "mpi", "zmq"):
        raise UsageError(f"--transport {kind}: must be mpi or zmq")
    numbers = {name: _number(f"--{name}", found.get(name)) for name in ("rank", "ranks")}
    _check(numbers["rank"], numbers["ranks"], kind, [name for name in found if name != "transport"])
    return Asked(kind, numbers["rank"], numbers["ranks"], found.get("coordinator", ""), tuple(rest))  # type: ignore[arg-type]


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        raise UsageError(f"{name} {text}: must be a number from 0")
    return int(text)


def _check(rank: int | None, ranks: int | None, kind: str | None, given: Sequence[str]) -> None:
    if given and kind == "mpi":
        raise UsageError(f"--{given[0]}: not with --transport mpi, whose launcher numbers the ranks")
    if rank is not None and ranks is None:
        raise UsageError("--rank and --ranks: give both, or none under a launcher")


def start(wanted: Asked, environ: Mapping[str, str]) -> Start | None:
    """Return this rank's place if the launch is without MPI; None if MPI is the transport, or the rank is alone.
    Raises UsageError if rank 0's address is unknown."""
    if wanted.transport == "mpi":
        return None
    if wanted.ranks is not None:
        rank = _by_hand(wanted.rank, wanted.ranks, environ.get(POD, ""))
        return _placed(rank, wanted.ranks, wanted.coordinator or environ.get(COORDINATOR, ""), "hand")
    launch = launched(environ)
    if launch is None or launch.size < 2:
        return None
    if wanted.transport is None and (launch.launcher == "mpirun" or _has_pmi(environ)):
        return None
    address = wanted.coordinator or environ.get(COORDINATOR, "") or _of_launcher(launch, environ)
    return _placed(launch.rank, launch.size, address, _job(environ))


def _by_hand(rank: int | None, ranks: int, pod: str) -> int:
    """Return --rank, or the index of this pod in an Indexed Job of Kubernetes."""
    told, by = (rank, f"--rank {rank}") if rank is not None else (_number(POD, pod or None), f"{POD}={pod}")
    if told is None:
        raise UsageError(f"--ranks {ranks}: needs --rank R too; {POD} is it in an Indexed Job of Kubernetes")
    if told >= ranks:
        raise UsageError(f"{by}: must be below --ranks {ranks}")
    return told


def _has_pmi(environ: Mapping[str, str]) -> bool:
    """Whether the launcher speaks a protocol by which an MPI library finds its ranks."""
    return any(name in environ for name in ("PMIX_RANK", "PMI_RANK", "PMI_FD", "PMI_SIZE"))


def _placed(rank: int, ranks: int, address: str, name: str) -> Start:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"--coordinator {address} (or {COORDINATOR}): must be HOST:PORT, rank 0's address for all ranks, like "
            "node1:23456"
        )
    return Start(rank, ranks, host, int(port), f"{name}-{port}" if name == "hand" else name)


def _of_launcher(launch: Launch, environ: Mapping[str, str]) -> str:
    """Return rank 0's address as srun and torchrun tell it; "" from others."""
    if launch.launcher == "torchrun" and environ.get("MASTER_PORT", "").isdecimal():
        return f"{environ.get('MASTER_ADDR', '127.0.0.1')}:{int(environ['MASTER_PORT']) + AFTER_MASTER}"
    if launch.launcher == "srun":
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST", "")
        number = sum(
            int(environ.get(name, "0") or 0) * by for name, by in (("SLURM_JOB_ID", 16), ("SLURM_STEP_ID", 1))
        )
        return f"{first_node(nodes)}:{FIRST_PORT + number % PORTS}" if nodes else ""
    return ""


def first_node(nodes: str) -> str:
    """Return the first host of Slurm's list: `gpu[003-007,9],login` is gpu003."""
    found = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes


def _job(environ: Mapping[str, str]) -> str:
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "FLUX_JOB_ID", "TORCHELASTIC_RUN_ID", "MASTER_PORT")
    return re.sub(r"\W", "_", "-".join(environ[name] for name in names if environ.get(name))) or "launch"


class Secret:
    """The launch's secret: SCALING_SECRET, else a file that rank 0 writes where all ranks see it."""

    def __init__(self, environ: Mapping[str, str], folder: Path, name: str) -> None:
        self._given = environ.get(SECRET, "")
        self._path = folder / f".secret-{name}"
        if self._given and len(self._given) < LEAST_SECRET:
            raise UsageError(
                f"{SECRET}: has {len(self._given)} characters; take {LEAST_SECRET} or more, at random"
            )

    @property
    def missing(self) -> str:
        where = self._path.absolute()
        return f"its secret is not at {where}: set {SECRET} for all ranks, or start them in one shared folder"

    def made(self) -> str:
        """Return the secret; rank 0 writes a new one to the file, which only this user can read."""
        if self._given:
            return self._given
        text = os.urandom(32).hex()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        return text

    def read(self) -> str | None:
        """Return the secret on another rank; None while there is no file of this user alone."""
        if self._given:
            return self._given
        try:
            about = self._path.lstat()
            is_ours = stat.S_ISREG(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077
            return self._path.read_text() or None if is_ours else None
        except OSError:
            return None

    def forget(self) -> None:
        """Delete the file: all ranks have come, or none will."""
        if not self._given:
            with suppress(OSError):
                self._path.unlink()
