"""Read hosts and slots of hostfiles: `node1 slots=4` of Open MPI, `node1:4` of MPICH and Intel MPI.

`#` begins a comment. A host without a count fits both formats. mpirun itself refuses other mistakes, but Open MPI
takes `node1:4` for a name.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from scaling import files
from scaling.errors import UsageError
from scaling.records.point import Record

Format = Literal["openmpi", "hydra"]
READERS: dict[Format, str] = {"openmpi": "Open MPI", "hydra": "MPICH and Intel MPI"}
# Open MPI's words for a count (orte/util/hostfile/hostfile_lex.l, PRRTE), and what only Hydra reads.
COUNTS, OF_HYDRA = ("slots", "cpu", "count"), {"binding", "user"}
EITHER = "write 'node1 slots=4' (Open MPI) or 'node1:4' (MPICH, Intel MPI)"


class Host(Record, frozen=True, kw_only=True):
    """A line of a hostfile: `slots` ranks, None if not given; `format`: None if both formats have such a line."""

    name: str
    slots: int | None
    format: Format | None
    line: int

    def written(self, form: Format) -> str:
        """Return the host and its count in a format."""
        if self.slots is None:
            return self.name
        return f"{self.name} slots={self.slots}" if form == "openmpi" else f"{self.name}:{self.slots}"


def read(path: Path) -> tuple[Host, ...]:
    """Read the hosts of a file in either format, in order. Raises UsageError with file and line."""
    try:
        text = files.read(path).decode()
    except OSError as error:
        raise UsageError(f"{path}: cannot read this hostfile: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: no hostfile but binary; write for example 'node1 slots=4'") from None
    return parse(text, str(path))


def parse(text: str, file: str) -> tuple[Host, ...]:
    """Parse a hostfile's text; `file` is its name in errors."""
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), 1):
        if words := re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split():
            try:
                hosts.append(_host(words, number))
            except ValueError as error:
                raise UsageError(f"{file}:{number}: {line.strip()!r}: {error}") from None
    if not hosts:
        raise UsageError(f"{file}: names no host; {EITHER}")
    return tuple(hosts)


def check(hosts: tuple[Host, ...], wanted: Format, file: str) -> None:
    """Raise UsageError for the first line that is not of format `wanted`, with the right line."""
    for host in hosts:
        if host.format not in (None, wanted):
            raise UsageError(
                f"{file}:{host.line}: '{host.written(host.format)}' is for {READERS[host.format]}, but mpirun "
                f"here is of {READERS[wanted]}: write '{host.written(wanted)}'"
            )


def _host(words: list[str], line: int) -> Host:
    given = dict(word.partition("=")[::2] for word in words[1:])
    name, count = _part(words[0])
    key = next((key for key in COUNTS if key in given), "")
    number = given.get(key, count)
    if number is not None and not re.fullmatch("[0-9]+", number):
        raise ValueError(f"{f'{key}={number}' if key else repr(number)} is not a number of ranks; {EITHER}")
    is_hydra = count is not None or bool(OF_HYDRA & given.keys())
    form: Format | None = "hydra" if is_hydra else "openmpi" if given else None
    return Host(name=name, slots=None if number is None else int(number), format=form, line=line)


def _part(word: str) -> tuple[str, str | None]:
    """Split `node1:4` into name and count. An IPv6 address with a count needs brackets."""
    try:
        ip_address(word)
    except ValueError:
        name, colon, count = word.rpartition(":") if word.rfind("]") < word.rfind(":") else (word, "", "")
        return (name, count) if colon else (word, None)
    return word, None
