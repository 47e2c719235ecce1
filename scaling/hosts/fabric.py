"""The fabric file, which describes networks by name.

[ib]
interface = "ib0"          # on every node
hca = "mlx5_0"             # RDMA over this card; without it, sockets over the interface
rate_gbit = 100            # per node; where it is not given, what the kernel says
subnet = "10.10.0.0/24"    # instead of `interface` where its name differs from node to node; may be wider than the
                           # nodes' own masks: 10.244.0.0/16 over a /24 or a /32 per node

hca = ["mlx5_0", "mlx5_1"] and hca = "mlx5_0,mlx5_1" are several cards, "mlx4_0:2" is one port of a card, "any"
leaves the choice to NCCL, and hca = { node1 = "mlx5_0", "gpu-*" = ["mlx5_2", "mlx5_3"] } names them by node, where
the first pattern counts that fits the host's name.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from ipaddress import IPv4Network
from pathlib import Path

import msgspec

from scaling import files
from scaling.errors import UsageError, told_by
from scaling.records.network import AUTO
from scaling.records.point import Record

VARIABLE = "SCALING_FABRIC"
CARD = re.compile(r"[\w.-]+(:\d+)?")

# One card, several with commas or as a list.
Cards = str | tuple[str, ...]


class Entry(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A network as the fabric file describes it: by `interface`, by `subnet`, or by both."""

    interface: str = ""
    subnet: str = ""
    hca: str | tuple[str, ...] | dict[str, Cards] = ""
    rate_gbit: float | None = None

    def cards(self, host: str) -> str | None:
        """The cards of a host, with commas; "" where the file names none, None where it does for others alone."""
        if not isinstance(self.hca, dict):
            return _joined(self.hca)
        fitting = (_joined(cards) for pattern, cards in self.hca.items() if fnmatchcase(host, pattern))
        return next(fitting, None)


def _joined(cards: Cards) -> str:
    listed = cards.split(",") if isinstance(cards, str) else cards
    return ",".join(card.strip() for card in listed)


def read(path: str | None) -> dict[str, Entry]:
    """The networks of a fabric file, none without one; every mistake is a UsageError that names file and key."""
    if path is None:
        return {}
    source = told_by("--fabric", VARIABLE, path)
    try:
        data = msgspec.toml.decode(files.read(Path(path)))
    except OSError as error:
        raise UsageError(f"{source}: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"{source}: not TOML: {error}") from None
    entries = {name: _entry(source, name, table) for name, table in data.items()}
    for name, entry in entries.items():
        _check(source, name, entry)
    return entries


def _entry(source: str, name: str, table: object) -> Entry:
    try:
        return msgspec.convert(table, Entry)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        key = where.strip("`").removeprefix("$").replace(".", " ")
        raise UsageError(f"{source}: [{name}]{key}: {what[0].lower()}{what[1:]}") from None


def _check(source: str, name: str, entry: Entry) -> None:
    if not entry.interface and not entry.subnet:
        raise UsageError(f'{source}: [{name}] has neither interface nor subnet; write interface = "ib0"')
    if entry.rate_gbit is not None and not 0 < entry.rate_gbit < float("inf"):
        raise UsageError(f"{source}: [{name}] rate_gbit = {entry.rate_gbit:g}: must be a number above 0")
    if name == AUTO:
        raise UsageError(f"{source}: [auto] means the fastest network; take another name")
    listed = list(entry.hca.values()) if isinstance(entry.hca, dict) else [entry.hca] if entry.hca else []
    if wrong := [card for cards in listed for card in _joined(cards).split(",") if not CARD.fullmatch(card)]:
        raise UsageError(f'{source}: [{name}] hca: {wrong[0]!r} is no card; write "mlx5_0" or "mlx5_0:1"')
    if entry.subnet:
        subnet(entry.subnet, f"{source}: [{name}] subnet")


def subnet(text: str, source: str) -> IPv4Network:
    """An IPv4 network; UsageError naming `source` for any other text."""
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise UsageError(f"{source} {text}: {error}; write for example 10.10.0.0/24") from None
