"""Which launcher started this process, and how its ranks find each other without MPI: rank, address, secret."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import scrypt
from itertools import pairwise
from pathlib import Path
from socket import socket
from typing import Literal, NamedTuple

from scaling.errors import UsageError

# ---------------------------------------------------------------- launchers
# A launcher is known by its environment variables. Without the MPI library's PMI a launcher starts N runs of one
# rank, without a warning (open-mpi/ompi#13523).

SLURM = "srun --mpi=pmix -n {n} {command} (MPICH: --mpi=pmi2; srun --mpi=list shows what there is), or {mpirun}"
FLUX = "flux run -o pmi=pmix -n {n} {command}, or {mpirun}"
PALS = "mpiexec --pmi=pmix -n {n} {command}, or {mpirun}"
MPIRUN = "mpirun -np {n} {command}"


class Row(NamedTuple):
    """The variables in which a launcher writes a process's rank and the number of processes. The launcher counts
    only if the variables of `needs` are set, too. `instead`: the command by which its ranks find each other over
    MPI."""

    launcher: str
    rank: str
    size: str
    needs: tuple[str, ...] = ()
    instead: str = MPIRUN


# Launchers start each other: srun torchrun, mpirun torchrun, srun mpirun. All leave their variables, and a shell
# may have some of an earlier launch. The first row that applies is the newest:
# * torchrun and deepspeed set LOCAL_RANK in processes that any other launcher may have started;
# * mpirun may start its daemons by srun. PMI_FD, an open socket, is set for the ranks of MPICH's mpirun;
# * srun sets its variables anew, so PMI_* without a socket are older.
ROWS = (
    Row("torchrun", "RANK", "WORLD_SIZE", ("TORCHELASTIC_RUN_ID",)),
    Row("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    Row("mpirun", "PMI_RANK", "PMI_SIZE", ("PMI_FD",)),
    Row("deepspeed", "RANK", "WORLD_SIZE", ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")),
    Row("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", (), SLURM),
    Row("flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", (), FLUX),
    Row("PALS's mpiexec", "PALS_RANKID", "PMI_SIZE", (), PALS),
    Row("mpirun", "PMI_RANK", "PMI_SIZE"),
    Row("PyTorchJob", "RANK", "WORLD_SIZE", ("MASTER_ADDR", "MASTER_PORT")),
)


class Launch(NamedTuple):
    """A launcher: its number of processes (0 if unknown), the rank of this one, the command that works, the
    variables that say it, and the launcher that started this one."""

    launcher: str
    size: int
    rank: int
    instead: str
    by: str
    inside: str = ""

    @property
    def said(self) -> str:
        """Return `by torchrun (RANK, WORLD_SIZE), inside srun`."""
        return f"by {self.launcher} ({self.by}){f', inside {self.inside}' if self.inside else ''}"


def launched(environ: Mapping[str, str], command: str = "python -m scaling.run ...") -> Launch | None:
    """Return the newest launcher of several processes, this among them; None without one. The shell of a Slurm
    allocation has no SLURM_PROCID."""
    found = [launch for row in ROWS if (launch := _read(row, environ)) is not None]
    own = [one[1:3] for one in found if one.launcher in SPEAKING]
    found = [one for one in found if not (_copies(one) and one[1:3] in own)]
    if not found or (found[0].size == 1 and found[0].launcher != "mpirun"):
        return None
    newest, size = found[0], found[0].size or "N"
    older = dict.fromkeys(one.launcher for one in found if one.launcher != newest.launcher and one.by != newest.by)
    instead = newest.instead.format(n=size, command=command, mpirun=MPIRUN.format(n=size, command=command))
    return newest._replace(instead=instead, inside=", ".join(older))


# Launchers that may speak PMI, by which an MPI library finds its ranks.
SPEAKING = ("srun", "flux", "PALS's mpiexec")


def _copies(one: Launch) -> bool:
    """Whether a launcher of SPEAKING, or its job's script, may have set these variables from its own."""
    return one.by.startswith("PMI_") or one.launcher == "deepspeed"


def _read(row: Row, environ: Mapping[str, str]) -> Launch | None:
    rank, size = (_count(environ, name) for name in (row.rank, row.size))
    applies = row.rank in environ and all(map(environ.get, row.needs)) and (size or row.instead == PALS)
    if not applies or ("PMI_FD" in row.needs and not _has_socket(environ)):
        return None
    return Launch(row.launcher, size, rank, row.instead, f"{row.rank}, {row.size}")


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else 0


def _has_socket(environ: Mapping[str, str]) -> bool:
    """Whether PMI_FD is a socket of this process; a shell may have the variable of a launch before."""
    return Path(f"/proc/self/fd/{environ.get('PMI_FD', 'none')}").is_socket()


# ---------------------------------------------------------------- ranks without MPI

Transport = Literal["mpi", "zmq"]
SECRET, COORDINATOR, POD = "SCALING_SECRET", "SCALING_COORDINATOR", "JOB_COMPLETION_INDEX"
LEAST_SECRET, KEY_BYTES = 16, 32
BOOT = Path("/proc/sys/kernel/random/boot_id")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Ports of jobs; torchrun's own store has MASTER_PORT.
FIRST_PORT, PORTS, AFTER_MASTER = 23_000, 9_000, 11
# What ends the flags: a script and its arguments follow.
SCRIPT_FOLLOWS = "--"
FLAGS = ("transport", "rank", "ranks", "coordinator")
ABOUT = (
    "Without a launcher one rank starts on each GPU of this machine, else on each core; --ranks N starts N. "
    "Without MPI: ranks of srun, torchrun and flux talk over ZeroMQ (--transport mpi|zmq). By hand each rank has "
    "--rank R --ranks N --coordinator HOST:PORT, and all have one SCALING_SECRET. Other flags count on rank 0 "
    "alone."
)


class Start(NamedTuple):
    """A rank's place in a launch without MPI. `said`: how the ranks are known. `command`: the command that this
    rank runs, for messages. `listener`: rank 0's port, if it is open already."""

    rank: int
    ranks: int
    host: str
    port: int
    said: str = "by hand (--rank, --ranks)"
    command: str = ""
    listener: socket | None = None

    @property
    def coordinator(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


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
    kind = found.pop("transport", None)
    if kind not in (None, "mpi", "zmq"):
        raise UsageError(f"--transport {kind}: must be mpi or zmq")
    rank, ranks = (_number(f"--{name}", found.get(name)) for name in ("rank", "ranks"))
    if ranks == 0:
        raise UsageError("--ranks 0: must be a number from 1")
    if found and kind == "mpi":
        raise UsageError(f"--{next(iter(found))}: not with --transport mpi, whose launcher numbers the ranks")
    if rank is not None and ranks is None:
        raise UsageError(f"--rank {rank}: needs --ranks N too; leave it out under a launcher")
    return Asked(kind, rank, ranks, found.get("coordinator", ""), tuple(rest))  # type: ignore[arg-type]


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        raise UsageError(f"{name} {text}: must be a number from 0")
    return int(text)


def is_alone(wanted: Asked, environ: Mapping[str, str]) -> bool:
    """Whether no launcher has started this process, and no flag gives it a place: it starts all ranks itself.
    Raises UsageError for --ranks under a launcher, or if WORLD_SIZE has no launcher."""
    by_hand = wanted.rank is not None or wanted.coordinator or (wanted.ranks is not None and POD in environ)
    if wanted.transport == "mpi" or by_hand:
        return False
    found = next((launch for row in ROWS if (launch := _read(row, environ)) is not None), None)
    if wanted.ranks is not None and found is not None:
        raise UsageError(f"--ranks {wanted.ranks}: the ranks are numbered {found.said}; leave it out")
    if found is None and wanted.ranks is None and _count(environ, "WORLD_SIZE") > 1:
        raise UsageError(
            f"WORLD_SIZE={environ['WORLD_SIZE']}: for a launch RANK, MASTER_ADDR and MASTER_PORT must be set too; "
            "to start one rank on each device of this machine unset WORLD_SIZE"
        )
    return found is None and "PMIX_RANK" not in environ


def start(wanted: Asked, environ: Mapping[str, str]) -> Start | None:
    """Return this rank's place if a launcher or its flags give it one without MPI; None if MPI is the transport.
    Raises UsageError if rank 0's address is unknown."""
    if wanted.transport == "mpi":
        return None
    given = wanted.coordinator or environ.get(COORDINATOR, "")
    if wanted.ranks is not None:
        return _placed(_by_hand(wanted.rank, wanted.ranks, environ.get(POD, "")), wanted.ranks, given)
    launch = launched(environ)
    if launch is None or launch.size < 2 or (wanted.transport is None and _speaks_mpi(launch, environ)):
        return None
    place = _placed(launch.rank, launch.size, given or _of_launcher(launch, environ))
    return place._replace(said=launch.said)


def _by_hand(rank: int | None, ranks: int, pod: str) -> int:
    """Return --rank, or the index of this pod in an Indexed Job of Kubernetes."""
    told, by = (rank, f"--rank {rank}") if rank is not None else (_number(POD, pod or None), f"{POD}={pod}")
    if told is None:
        raise UsageError(f"--ranks {ranks}: needs --rank R too; {POD} is it in an Indexed Job of Kubernetes")
    if told >= ranks:
        raise UsageError(f"{by}: must be below --ranks {ranks}")
    return told


def _speaks_mpi(launch: Launch, environ: Mapping[str, str]) -> bool:
    """Whether an MPI library finds its ranks by this launcher. In a step of Slurm the variables of PMI may be
    older."""
    if launch.launcher == "srun":
        return environ.get("PMIX_NAMESPACE", "").startswith("slurm.") or _has_socket(environ)
    return launch.launcher == "mpirun" or (
        launch.launcher in SPEAKING
        and any(name in environ for name in ("PMIX_RANK", "PMI_RANK", "PMI_FD", "PMI_SIZE"))
    )


def _placed(rank: int, ranks: int, address: str) -> Start:
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"--coordinator {address} (or {COORDINATOR}): must be HOST:PORT, rank 0's address for all ranks, like "
            "node1:23456"
        )
    return Start(rank, ranks, host, int(port))


def _of_launcher(launch: Launch, environ: Mapping[str, str]) -> str:
    """Return rank 0's address as srun and the launchers of PyTorch tell it; "" from others."""
    if launch.by == "RANK, WORLD_SIZE" and (master := _count(environ, "MASTER_PORT")):
        port = master + (AFTER_MASTER if master + AFTER_MASTER < 65536 else -AFTER_MASTER)
        host = environ.get("MASTER_ADDR", "127.0.0.1")
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if launch.launcher == "srun":
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST", "")
        number = _count(environ, "SLURM_JOB_ID") * 16 + _count(environ, "SLURM_STEP_ID")
        return f"{first_node(nodes)}:{FIRST_PORT + number % PORTS}" if nodes else ""
    return ""


def first_node(nodes: str) -> str:
    """Return the first host of Slurm's list: `gpu[003-007,9],login` is gpu003."""
    found = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes


# A secret of fewer different steps from character to character, or pairs of characters, is no random one:
# `aaaaaaaaaaaaaaaa` has 1 and 1, sixteen random hex digits have about 11 and 15.
LEAST_STEPS, LEAST_PAIRS = 6, 12


def looks_random(text: str) -> bool:
    pairs = {*pairwise(text)}
    return len(pairs) >= LEAST_PAIRS and len({ord(one) - ord(other) for one, other in pairs}) >= LEAST_STEPS


class Secret:
    """The launch's secret: SCALING_SECRET, else a random one in a file that rank 0 writes where all ranks see it.
    The file's name has rank 0's address, which only one launch can have at a time."""

    def __init__(self, environ: Mapping[str, str], folder: Path, place: Start) -> None:
        self._given, self._salt = environ.get(SECRET, ""), f"scaling {place.coordinator}".encode()
        # localhost is another address on each machine; hosts' names may differ in containers of one
        host = BOOT.read_text()[:8] if place.host in LOOPBACK else place.host
        self._path = folder / f".secret-{re.sub(r'[^A-Za-z0-9.-]', '_', host)}-{place.port}"
        if self._given and (len(self._given) < LEAST_SECRET or not looks_random(self._given)):
            raise UsageError(
                f"{SECRET}: can be guessed, it has {len(self._given)} characters; take random ones: "
                "openssl rand -hex 32"
            )

    @property
    def missing(self) -> str:
        where = self._path.absolute()
        return f"its secret is not at {where}: set {SECRET} for all ranks, or start them in one shared folder"

    def made(self) -> bytes:
        """Return rank 0's key. A given secret is hashed slowly, with the launch's address, since all that a
        connection shows can be compared with guesses."""
        return self._slow() if self._given else os.urandom(KEY_BYTES)

    @cache  # noqa: B019 - one for the process
    def _slow(self) -> bytes:
        return scrypt(self._given.encode(), salt=self._salt, n=1 << 15, r=8, p=1, maxmem=1 << 26, dklen=KEY_BYTES)

    def show(self, key: bytes) -> None:
        """Write the key to a file that only this user can read. The address must be bound: the file of another
        launch that has it is a leftover."""
        if self._given:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key.hex())

    def read(self) -> bytes | None:
        """Return the key on another rank; None while there is no file of this user alone."""
        if self._given:
            return self._slow()
        with suppress(OSError, ValueError):
            about = self._path.lstat()
            is_ours = stat.S_ISREG(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077
            return (bytes.fromhex(self._path.read_text()) or None) if is_ours else None
        return None

    def forget(self) -> None:
        """Delete the file: all ranks have come, or none will."""
        if not self._given:
            with suppress(OSError):
                self._path.unlink()
