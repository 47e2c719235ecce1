"""The fabric file, which describes networks by name.

[ib]
interface = "ib0"          # on every node
hca = "mlx5_0"             # RDMA over this card; without it, sockets over the interface
rate_gbit = 100            # per node; where it is not given, what the kernel says
subnet = "10.10.0.0/24"    # instead of `interface` where its name differs from node to node
"""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import msgspec

from scaling.errors import UsageError
from scaling.records.network import AUTO
from scaling.records.point import Record

VARIABLE = "SCALING_FABRIC"


class Entry(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A network as the fabric file describes it: by `interface`, by `subnet`, or by both."""

    interface: str = ""
    subnet: str = ""
    hca: str = ""
    rate_gbit: float | None = None


def read(path: str | None) -> dict[str, Entry]:
    """The networks of a fabric file, none without one; every mistake is a UsageError that names file and key."""
    if path is None:
        return {}
    try:
        data = msgspec.toml.decode(Path(path).read_bytes())
    except OSError as error:
        raise UsageError(f"--fabric {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--fabric {path}: not TOML: {error}") from None
    entries = {name: _entry(path, name, table) for name, table in data.items()}
    for name, entry in entries.items():
        _check(path, name, entry)
    return entries


def _entry(path: str, name: str, table: object) -> Entry:
    try:
        return msgspec.convert(table, Entry)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        key = where.strip("`").removeprefix("$").replace(".", " ")
        raise UsageError(f"--fabric {path}: [{name}]{key}: {what[0].lower()}{what[1:]}") from None


def _check(path: str, name: str, entry: Entry) -> None:
    if not entry.interface and not entry.subnet:
        raise UsageError(f'--fabric {path}: [{name}] has neither interface nor subnet; write interface = "ib0"')
    if entry.rate_gbit is not None and not 0 < entry.rate_gbit < float("inf"):
        raise UsageError(f"--fabric {path}: [{name}] rate_gbit = {entry.rate_gbit:g}: must be a number above 0")
    if name == AUTO:
        raise UsageError(f"--fabric {path}: [auto] means the fastest network; take another name")
    if entry.subnet:
        subnet(entry.subnet, f"--fabric {path}: [{name}] subnet")


def subnet(text: str, source: str) -> IPv4Network:
    """An IPv4 network; UsageError naming `source` for any other text."""
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise UsageError(f"{source} {text}: {error}; write for example 10.10.0.0/24") from None
