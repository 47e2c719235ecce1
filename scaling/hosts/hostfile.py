"""Read hostfiles: `node1 slots=4` of Open MPI, `node1:4` of MPICH and Intel MPI.

`#` begins a comment. A host without a count fits both formats. Lines that the MPI would misread or refuse (Open
MPI 4.1 and 5.0, MPICH 5.0) raise UsageError with file and line.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, get_args

from msgspec.structs import replace

from scaling import files
from scaling.errors import UsageError, near
from scaling.records.point import Record

Format = Literal["openmpi", "hydra"]
READERS: dict[Format, str] = {"openmpi": "Open MPI", "hydra": "MPICH and Intel MPI"}
# Open MPI's words for a count (orte/util/hostfile/hostfile_lex.l, PRRTE); `port` is sshd's.
COUNTS = ("slots", "cpu", "count")
MOST = tuple(dash.join(pair) for word in COUNTS for dash in "_-" for pair in (("max", word), (word, "max")))
KEYS: dict[Format, tuple[str, ...]] = {
    "openmpi": (*COUNTS, *MOST, "port", "username", "user_name", "user-name"),
    "hydra": ("binding", "user"),
}
COMMON = ("slots", "max_slots", "port", "username", "binding", "user")
EITHER = "write '{0} slots=4' (Open MPI) or '{0}:4' (MPICH, Intel MPI)"
COUNT = re.compile(r"[0-9]+")  # 0 is allowed: Open MPI does not use such hosts
NAME = re.compile(r"[A-Za-z0-9_+][\w.@+-]*|\[[0-9A-Fa-f:.]+\]", re.ASCII)


class Host(Record, frozen=True, kw_only=True):
    """A line of a hostfile.

    `slots`: the number of ranks, None if not given. `format`: None if both formats have such a line.
    `line`: counts from 1. `remark`: the comment after the host.
    `open_comment`: for the last host, the line of a comment that lacks a newline; else 0.
    """

    name: str
    slots: int | None
    format: Format | None
    line: int
    remark: str = ""
    open_comment: int = 0

    def __str__(self) -> str:
        return self.written(self.format or "openmpi")

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
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if words := _words(line):
                hosts.append(_host(words, number, line.partition("#")[2]))
                _once(hosts)
        except ValueError as error:
            raise UsageError(f"{file}:{number}: {line.strip()!r}: {error}") from None
    if not hosts:
        raise UsageError(f"{file}: names no host; {EITHER.format('node1')}")
    if "#" in line:
        hosts[-1] = replace(hosts[-1], open_comment=number)
    return tuple(hosts)


def check(hosts: tuple[Host, ...], wanted: Format, file: str) -> None:
    """Raise UsageError for the first line that the MPI of format `wanted` refuses, with the right line."""
    for host in hosts:
        if host.format is not None and host.format != wanted:
            raise UsageError(
                f"{file}:{host.line}: '{host}' is for {READERS[host.format]}, but mpirun here is of "
                f"{READERS[wanted]}: write '{host.written(wanted)}'"
            )
        if host.name.startswith("[") and wanted == "openmpi":
            plain = replace(host, name=host.name.strip("[]")).written(wanted)
            raise UsageError(f"{file}:{host.line}: '{host}': {READERS[wanted]} refuses brackets; write '{plain}'")
        if host.remark and wanted == "hydra":
            where = f"{file}:{host.line}: '{host} #{host.remark}'"
            raise UsageError(f"{where}: {READERS[wanted]} take a comment only on a line of its own")
        if host.open_comment and wanted == "openmpi":
            raise UsageError(
                f"{file}:{host.open_comment}: the last line is a comment without a line end, which "
                f"{READERS[wanted]} refuses; echo >> {file} ends it"
            )


def _words(line: str) -> list[str]:
    if line.endswith("\r"):
        raise ValueError(
            "ends as on Windows, which Open MPI refuses; write the file with Unix line ends (dos2unix)"
        )
    # MPIs do not split at other spaces, such as a no-break space.
    return re.findall(r"[^ \t\f\v]+", re.sub(r"[ \t\f\v]*=[ \t\f\v]*", "=", line.partition("#")[0]))


def _once(hosts: list[Host]) -> None:
    """Raise ValueError if the last host has slots on an earlier line, which Open MPI refuses."""
    last = hosts[-1]
    for host in hosts[:-1]:
        if last.name == host.name and last.format == "openmpi" == host.format:
            raise ValueError(f"{host.name} has its slots on line {host.line} already; keep one of the two")


def _host(words: list[str], line: int, remark: str) -> Host:
    name, count = _part(words[0])
    if not NAME.fullmatch(name) and not _is_address(name):
        raise ValueError(f"{name!r} is no host name; {EITHER.format('node1')}")
    given = dict(_option(word, name) for word in words[1:])
    if len(given) < len(words) - 1:
        raise ValueError("says the same thing twice")
    formats = {form for form in get_args(Format) for key in given if key in KEYS[form]}
    if count is not None:
        formats.add("hydra")
    if len(formats) > 1:
        raise ValueError(f"mixes two formats; {EITHER.format(name)}")
    return Host(
        name=name, slots=_slots(count, given, name), format=next(iter(formats), None), line=line, remark=remark
    )


def _part(word: str) -> tuple[str, str | None]:
    """Split `node1:4` into name and count. An IPv6 address with a count needs brackets."""
    if _is_address(word):
        return word, None
    name, colon, count = word.rpartition(":") if word.rfind("]") < word.rfind(":") else (word, "", "")
    return (name, count) if colon else (word, None)


def _is_address(word: str) -> bool:
    try:
        ip_address(word)
    except ValueError:
        return False
    return True


def _option(word: str, name: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise ValueError(f"{word!r} is no key=value; {EITHER.format(name)}")
    all_keys = [known for keys in KEYS.values() for known in keys]
    if key not in all_keys:
        raise ValueError(f"no MPI knows {key!r} here; {near(key, COMMON)}")
    return key, value


def _slots(count: str | None, given: dict[str, str], name: str) -> int | None:
    for key in (*COUNTS, *MOST):
        if key in given and not COUNT.fullmatch(given[key]):
            raise ValueError(f"{key}={given[key]} is not a number of ranks; write '{name} {key}=4'")
    if "port" in given and not COUNT.fullmatch(given["port"]):
        raise ValueError(f"port={given['port']} is not a port of sshd; write '{name} slots=4 port=22'")
    if count is not None and not COUNT.fullmatch(count):
        raise ValueError(f"{count!r} behind the colon is not a number of ranks; write '{name}:4'")
    numbers = [given[key] for key in COUNTS if key in given]
    if len(numbers) > 1:
        raise ValueError(f"counts its slots twice; write '{name} slots={numbers[0]}'")
    number = numbers[0] if numbers else count
    return None if number is None else int(number)
