"""Reads ranks, hosts and slots from mpirun's arguments for `./launch/mpirun`. The arguments are never changed."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from launch import _mpi

if TYPE_CHECKING:
    from scaling.hosts import hostfile

# number of values of an option, by its name without dashes; 0 if not listed
TWO_VALUES = ("mca", "gmca", "omca", "prtemca", "pmixmca", "genv", "env")
ONE_VALUE = """
    n np c N npernode npersocket ppn perhost H host hosts hostfile machinefile machine default-hostfile f x
    map-by rank-by bind-to wdir wd path prefix output output-filename display personality app am tune timeout
    stdin rankfile rf cpu-set cpu-list report-uri runtime-options with-ft preload-files launcher-hostfile
    memory-alloc-kinds genvlist genvexcl envlist envexcl configfile rankmap launcher launcher-exec bootstrap
    bootstrap-exec rmk topolib membind demux errfile-pattern outfile-pattern gpus-per-proc iface localhost
    nameserver pmi-port prepend-pattern usize
"""
VALUES = {**dict.fromkeys(TWO_VALUES, 2), **dict.fromkeys(ONE_VALUE.split(), 1)}
PROGRAM = ""
RANKS = ("n", "np", "c")
HOSTFILES = ("hostfile", "machinefile", "machine", "default-hostfile", "f")
HOSTS = ("H", "host", "hosts")
# format of hostfiles, and the variable that names one
FORMATS: Mapping[str, hostfile.Format] = {
    "openmpi4": "openmpi",
    "openmpi5": "openmpi",
    "mpich": "hydra",
    "intel": "hydra",
}
HOSTFILE_VARIABLE = {
    "openmpi4": "OMPI_MCA_orte_default_hostfile",
    "openmpi5": "PRTE_MCA_prte_default_hostfile",
    "mpich": "HYDRA_HOST_FILE",
    "intel": "I_MPI_HYDRA_HOST_FILE",
}
MANAGERS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE", "COBALT_JOBID")  # batch systems: know slots


class Call(NamedTuple):
    """The contents of mpirun's arguments. `ranks` is 0 if not given; `programs` are positions."""

    ranks: int
    hostfiles: tuple[str, ...]
    hosts: tuple[str, ...]
    exported: frozenset[str]
    programs: tuple[int, ...]

    @classmethod
    def read(cls, words: Sequence[str]) -> Call:
        """Read the words after our flags. SystemExit(2) for a wrong number of ranks, which Open MPI 5 would
        replace silently."""
        found = list(parts(words))

        def values(*names: str) -> tuple[str, ...]:
            return tuple(given[0] for name, given in found if name in names and given)

        return cls(
            ranks=sum(_mpi.rank_count(f"-{name}", "".join(given)) for name, given in found if name in RANKS),
            hostfiles=values(*HOSTFILES),
            hosts=tuple(host for listed in values(*HOSTS) for host in listed.split(",")),
            exported=frozenset(value.partition("=")[0] for value in values("x")),
            programs=tuple(int(place) for place in values(PROGRAM)),
        )


def parts(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each option of mpirun with its values, and PROGRAM with its position. A program ends at `:`."""
    left = deque(words)
    while left:
        word = left.popleft()
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("--") and name in ("print", "agent", "interface"):
            _mpi.fail(f"--{name} comes first: ./launch/mpirun --{name} ... -np 2 python -m scaling.run")
        if not word.startswith("-"):
            yield PROGRAM, [str(len(words) - len(left) - 1)]
            while left and left.popleft() != ":":
                pass
        elif equals:
            yield name, [value]
        else:
            yield name, [left.popleft() for _ in range(min(VALUES.get(name, 0), len(left)))]


def is_crowded(call: Call, mpi: str, environ: Mapping[str, str]) -> bool:
    """Return True if there are more ranks than known slots. SystemExit(2) for a bad hostfile."""
    told = slots(call, listed(call, mpi, environ), environ)
    return told is not None and call.ranks > told


def listed(call: Call, mpi: str, environ: Mapping[str, str]) -> list[hostfile.Host]:
    """Read the hosts of all hostfiles. SystemExit(2) if one is malformed or in another MPI's format."""
    # imported late: scaling may be missing when this file is imported
    from scaling import errors
    from scaling.hosts import hostfile

    default = environ.get(HOSTFILE_VARIABLE.get(mpi, ""))
    found: list[hostfile.Host] = []
    try:
        for file in call.hostfiles or ([default] if default else []):
            hosts = hostfile.read(Path(file))
            if mpi in FORMATS:
                hostfile.check(hosts, FORMATS[mpi], file)
            found += hosts
    except errors.UsageError as error:
        _mpi.fail(str(error))
    return found


def slots(call: Call, hosts: Iterable[hostfile.Host], environ: Mapping[str, str]) -> int | None:
    """Count the ranks that fit; None if unknown."""
    counts = [_mpi.cores() if host.slots is None and is_here(host.name) else host.slots for host in hosts]
    if call.hosts:
        return None if counts else total(map(count_of, call.hosts))
    if counts:
        return total(counts)
    if any(name in environ for name in MANAGERS):
        return int(environ["SLURM_NTASKS"]) if environ.get("SLURM_NTASKS", "").isdecimal() else None
    return _mpi.cores()


def total(counts: Iterable[int | None]) -> int | None:
    """Add up the counts; None if one is unknown."""
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def count_of(host: str) -> int | None:
    """Return the slots of a `--host` entry: 1 without a number, None for `node1:*` (all slots)."""
    count = host.rpartition(":")[2] if ":" in host else "1"
    return int(count) if count.isdecimal() else None


def is_here(name: str) -> bool:
    return name in ("localhost", "127.0.0.1", socket.gethostname(), socket.gethostname().partition(".")[0])
