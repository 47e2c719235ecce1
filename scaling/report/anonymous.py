"""`--anonymous`: a run without names of hosts, programs, users and folders.

It replaces texts of the header and the records before the analysis, so that no format can forget it. Network
addresses, names of networks and cards, and UUIDs of GPUs stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast, get_args

from msgspec import Struct
from msgspec.structs import fields, replace

from scaling.quiet.notes import FOREIGN_LOAD
from scaling.records.run import Header, PointRecord, PointWarning
from scaling.records.telemetry import Foreign
from scaling.report.material import Material, Place, Source

T = TypeVar("T")

FOLDER = "/…"
# Fields that the analysis knows by their values. None of them names a host.
_KEPT = frozenset({"strategy", "model", "data", "cause", "name"})
# Their folders say nothing about a user.
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/usr/", "/etc/", "/lib", "/bin/")
_SIGN = r"[^\s/:;,'\"`()<>|=]"
_PATH = re.compile(rf"(?<![\w.…])(?:~[\w.-]+/|/{_SIGN}+/)(?:/|{_SIGN})*")
_LOGS = "/logs/"


class Disguise:
    """Replaces the names of these hosts by node1, node2, ..., and paths by `/…/file.ext`."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._nodes: dict[str, str] = {}
        for number, host in enumerate(dict.fromkeys(filter(None, hosts)), 1):
            self._nodes |= {name: f"node{number}" for name in _names(host) if name not in self._nodes}
        longest = sorted(self._nodes, key=len, reverse=True)
        names = "|".join(map(re.escape, longest)) or r"(?!)"
        # With the domain that others may add: node1.corp.example.
        self._hosts = re.compile(rf"(?<![A-Za-z0-9])({names})(?:\.[A-Za-z][\w-]*)*(?![A-Za-z0-9])")

    def text(self, text: str) -> str:
        """Return a text without names of hosts and folders."""
        return self._hosts.sub(lambda found: self._nodes[found[1]], _PATH.sub(_without_folder, text))

    def material(self, material: Material) -> Material:
        """Return the material of a report without these names."""
        found = Material(
            self.of(material.header),
            self.of(material.records),
            self.of(tuple(material.joined)),
            [Source(self.text(source.name), source.sha256) for source in material.sources],
            material.pricing,
            self.of(tuple(material.predictions)),
            self.of(material.certificate),
            material.summaries,
        )
        found.over_time = self.of(material.over_time)
        return found

    def place(self, place: Place) -> Place:
        """Return the place of a run without these names: of an absolute path the folder's name."""
        folder = Path(place.run)
        run = self.text(folder.name if folder.is_absolute() else place.run)
        page = f"{run}/{Path(place.page).name}" if place.page else ""
        return place._replace(run=run, page=page, event=self.text(place.event))

    def of(self, value: T) -> T:
        """Return a Struct or plain data with all its texts replaced."""
        return cast(T, self._of(value))

    def _of(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case Foreign():
                return replace(value, name="")
            case PointWarning(kind="foreign-load"):
                return replace(value, text=FOREIGN_LOAD)
            case Struct():
                named = [name for name in _texts(type(value)) if getattr(value, name)]
                return replace(value, **{name: self._of(getattr(value, name)) for name in named})
            case dict():
                return {self._nodes.get(key, key): self._of(one) for key, one in value.items()}
            case list() | tuple():
                return type(value)(map(self._of, value))
        return value

    def stream(self, stream: TextIO) -> TextIO:
        """Return a stream that writes to `stream` without these names."""
        return cast(TextIO, _Stream(stream, self))


class _Stream:
    def __init__(self, stream: TextIO, disguise: Disguise) -> None:
        self._stream, self._disguise = stream, disguise
        self.encoding, self.flush = stream.encoding, stream.flush

    def write(self, text: str) -> int:
        return self._stream.write(self._disguise.text(text))


def _names(host: str) -> Iterator[str]:
    """Yield a host's name and its first label; an address has no labels."""
    yield host
    first, dot, _ = host.partition(".")
    if dot and not host.replace(".", "").isdecimal():
        yield first


def _without_folder(found: re.Match[str]) -> str:
    path = found[0]
    if path.startswith(_SYSTEM):
        return path
    _, logs, log = path.rpartition(_LOGS)
    if logs:
        return f"{logs[1:]}{log}"
    name = path.rpartition("/")[2]
    return f"{FOLDER}/{name}" if "." in name.strip(".") else FOLDER


@cache
def _texts(kind: type[Struct]) -> tuple[str, ...]:
    """Return the fields of a record that may hold texts, without those that are kept."""
    return tuple(one.name for one in fields(kind) if one.name not in _KEPT and _has_text(one.type))


def _has_text(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind is Foreign or bool(_texts(kind))
    return kind is str or kind is Any or any(map(_has_text, get_args(kind)))


def hosts_of(header: Header, records: Sequence[PointRecord] = ()) -> Iterator[str]:
    """Yield the names of a run's hosts, some of them often."""
    yield from (host.hostname for host in header.hosts)
    yield from header.host_of_rank
    for record in records:
        yield from (*record.hosts, *record.point.hosts)
        yield from (rank.host for rank in record.ranks)
        yield from (helper.host for helper in record.helpers)
