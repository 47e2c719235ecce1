"""Prices of machines, read from the user's file. None are shipped, since prices change.

currency = "USD"
[[price]]
name = "p3.8xlarge"
match = { gpu = "Tesla V100*" }        # or host, cpu, emulated: shell patterns
devices = 4                            # in one machine; a machine is paid whole
per_hour = { on_demand = 12.24 }
network = "tcp:10"                     # between machines; without it, that of the run
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from fnmatch import fnmatch
from math import inf
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from scaling import files
from scaling.errors import UsageError, told_by
from scaling.records.point import Record

ON_DEMAND = "on_demand"
# Environment variable for --prices.
VARIABLE = "SCALING_PRICES"


class Match(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machines of a price, as shell patterns; all given patterns must match."""

    gpu: str = ""
    host: str = ""
    cpu: str = ""
    emulated: str = ""

    def holds(self, *, gpu: str = "", host: str = "", cpu: str = "", emulated: str = "") -> bool:
        """Check a machine; a match without patterns matches none."""
        pairs = ((self.gpu, gpu), (self.host, host), (self.cpu, cpu), (self.emulated, emulated))
        given = [(pattern, name) for pattern, name in pairs if pattern]
        return bool(given) and all(fnmatch(name, pattern) for pattern, name in given)


class Price(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of a machine with `devices` devices.

    `per_hour`: by `on_demand`, `spot`, ..., in the file's currency.
    `seen`: day of the price, like 2018-02-01; `source`: its source.
    """

    name: str
    match: Match
    devices: int
    per_hour: dict[str, float]
    provider: str = ""
    region: str = ""
    minimum_s: float = 0.0
    seen: str = ""
    source: str = ""
    network: str = ""

    @property
    def hourly(self) -> float:
        """The price on demand; without one, the first."""
        return self.per_hour.get(ON_DEMAND, next(iter(self.per_hour.values())))


class Prices(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    currency: str
    price: tuple[Price, ...]


def read(path: Path) -> Prices:
    """Read a file of prices. Raises UsageError, in one line, if it is wrong."""
    try:
        return _sound(path, _decoded(files.read(path)))
    except OSError as error:
        raise UsageError(f"{_named(path)}: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"{_named(path)}: {error}") from None


def _named(path: Path) -> str:
    return told_by("--prices", VARIABLE, str(path))


def _decoded(text: bytes) -> Prices:
    """Decode TOML; dates may be strings or TOML dates."""
    plain = msgspec.toml.decode(text)
    return msgspec.convert(msgspec.to_builtins(plain), type=Prices)


def _sound(path: Path, prices: Prices) -> Prices:
    if not prices.currency.strip():
        raise UsageError(f'{_named(path)}: currency is empty; use currency = "USD"')
    for price in prices.price:
        if wrong := next(_wrong(price), ""):
            raise UsageError(f"{_named(path)}: {price.name}: {wrong}")
    return prices


def _wrong(price: Price) -> Iterator[str]:
    for how, value in price.per_hour.items():
        if not 0 <= value < inf:
            yield f"{how} = {value:g}: must be 0 or more"
    if not price.per_hour:
        yield "per_hour is empty; use per_hour = { on_demand = 3.06 }"
    if price.devices < 1:
        yield f"devices = {price.devices}: must be 1 or more"
    if not any(asdict(price.match).values()):
        yield 'match is empty and matches no machine; use match = { gpu = "Tesla V100*" }'
    if not 0 <= price.minimum_s < inf:
        yield f"minimum_s = {price.minimum_s:g}: must be 0 or more"
    if price.seen and not _is_day(price.seen):
        yield f"seen = {price.seen}: not a day; use one like 2018-02-01"


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
