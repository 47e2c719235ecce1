"""Networks by name: the fabric file, and what a word of --interconnect was found to be.

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
from scaling.records.point import Record

GBIT = 1e9
VARIABLE = "SCALING_FABRIC"
AUTO = "auto"


class Entry(Record, frozen=True, forbid_unknown_fields=True):
    """A network as the fabric file describes it: by `interface`, by `subnet`, or by both."""

    interface: str = ""
    subnet: str = ""
    hca: str = ""
    rate_gbit: float | None = None


class Place(Record, frozen=True):
    """A host's address and interface on a network, and the card that RDMA may take.

    hca: "mlx5_0", several with commas; "" for sockets alone; "any" where NCCL may choose for itself.
    """

    address: str
    interface: str
    hca: str = ""


class Network(Record, frozen=True):
    """What a word of --interconnect was found to be: each host's place, and why this network.

    `rate_bits_per_s` is what one node's link carries, None where neither the kernel nor the fabric file knows;
    `subnet` is "" for one host alone, whose ranks meet on the loopback.
    """

    word: str
    why: str
    places: dict[str, Place]
    subnet: str = ""
    rate_bits_per_s: float | None = None


def describe(network: Network) -> str:
    """`ib (ib0, 10.10.0.0/24, 100 Gb/s)`, or `ib0 (10.10.0.0/24, 100 Gb/s): the fastest of 2 networks ...`."""
    interfaces = list(dict.fromkeys(place.interface for place in network.places.values()))
    cards = sorted({place.hca for place in network.places.values()} - {"", "any"})
    name = network.word
    if name == AUTO:
        name = interfaces.pop(0)
    parts = [*(one for one in interfaces if one != name), network.subnet if network.subnet != name else ""]
    parts.append(f"{network.rate_bits_per_s / GBIT:g} Gb/s" if network.rate_bits_per_s else "")
    parts.append(f"RDMA by {', '.join(cards)}" if cards else "")
    found = ", ".join(filter(None, parts))
    why = f": {network.why}" if network.word == AUTO else ""
    return f"{name} ({found}){why}" if found else f"{name}{why}"


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
    found = {name: _entry(path, name, table) for name, table in data.items()}
    for name, entry in found.items():
        _check(path, name, entry)
    return found


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
