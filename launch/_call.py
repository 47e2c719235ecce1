"""Reads ranks, hosts and slots from mpirun's arguments for `./launch/mpirun`. The arguments are never changed."""

from __future__ import annotations

import re
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from launch import _mpi

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
# The format of a hostfile, and the variable that names the file, by launcher.
FORMATS = {"Open MPI": "{} slots={}", "MPICH and Intel MPI": "{}:{}"}
OPEN_MPI, HYDRA = FORMATS
READERS = {"openmpi4": OPEN_MPI, "openmpi5": OPEN_MPI, "mpich": HYDRA, "intel": HYDRA}
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


def listed(call: Call, mpi: str, environ: Mapping[str, str]) -> list[Host]:
    """Read the hosts of all hostfiles. SystemExit(2) if one is malformed or in another MPI's format."""
    default = environ.get(HOSTFILE_VARIABLE.get(mpi, ""))
    every = call.hostfiles or filter(None, [default])
    return [host for file in every for host in read(file, READERS.get(mpi, ""))]


# ---------------------------------------------------------------- hostfiles
# `#` begins a comment. A host without a count fits both formats. mpirun itself refuses other mistakes, but Open
# MPI takes `node1:4` for a name.

# Open MPI's words for a count (orte/util/hostfile/hostfile_lex.l, PRRTE), and what only Hydra reads
COUNTS, OF_HYDRA = ("slots", "cpu", "count"), {"binding", "user"}
EITHER = "write 'node1 slots=4' (Open MPI) or 'node1:4' (MPICH, Intel MPI)"


class Host(NamedTuple):
    """A line of a hostfile: `slots` ranks, None if not given; `reader`: "" if every MPI reads such a line."""

    name: str
    slots: int | None
    reader: str


def read(file: str, reader: str) -> list[Host]:
    """Read the hosts of a file in the format of `reader`, "" for any. SystemExit(2) with file and line."""
    # imported late: scaling may be missing when this file is imported
    from scaling import files

    try:
        lines = files.read(Path(file)).decode().splitlines()
    except OSError as error:
        _mpi.fail(f"{file}: cannot read this hostfile: {error.strerror}")
    except UnicodeDecodeError:
        _mpi.fail(f"{file}: no hostfile but binary; write for example 'node1 slots=4'")
    hosts = []
    for number, line in enumerate(lines, 1):
        if words := re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split():
            try:
                hosts.append(host := host_of(words))
            except ValueError as error:
                _mpi.fail(f"{file}:{number}: {line.strip()!r}: {error}")
            if reader and host.reader and host.reader != reader:
                found, right = (written(host, one) for one in (host.reader, reader))
                said = f"'{found}' is for {host.reader}, but mpirun here is of {reader}: write '{right}'"
                _mpi.fail(f"{file}:{number}: {said}")
    if not hosts:
        _mpi.fail(f"{file}: names no host; {EITHER}")
    return hosts


def written(host: Host, reader: str) -> str:
    """Write a host and its count, if it has one, for `reader`."""
    return host.name if host.slots is None else FORMATS[reader].format(host.name, host.slots)


def host_of(words: Sequence[str]) -> Host:
    """Read a line's words. Raises ValueError."""
    given = dict(word.partition("=")[::2] for word in words[1:])
    name, count = words[0], None
    try:
        ip_address(name)  # an IPv6 address with a count needs brackets
    except ValueError:
        if name.rfind("]") < name.rfind(":"):
            name, _, count = name.rpartition(":")
    key = next((key for key in COUNTS if key in given), "")
    slots = given.get(key, count)
    if slots is not None and not re.fullmatch("[0-9]+", slots):
        raise ValueError(f"{f'{key}={slots}' if key else repr(slots)} is not a number of ranks; {EITHER}")
    is_hydra = count is not None or bool(OF_HYDRA & given.keys())
    return Host(name, None if slots is None else int(slots), HYDRA if is_hydra else OPEN_MPI if given else "")


# ---------------------------------------------------------------- slots


def slots(call: Call, hosts: Iterable[Host], environ: Mapping[str, str]) -> int | None:
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
