"""Costs of rows: machines are paid whole, by the hour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timezone
from fnmatch import fnmatch
from itertools import pairwise
from math import ceil, inf, log
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import asdict

from scaling import files
from scaling.analysis.measured.cell import Cell
from scaling.analysis.statistics.intervals import Estimate, differences, interval
from scaling.analysis.table.catalogue import unranked_marks
from scaling.analysis.table.rows import Row, shared
from scaling.errors import UsageError, told_by
from scaling.records.point import Record
from scaling.records.run import Header
from scaling.text import HOUR_S

# ---------------------------------------------------------------- prices
#
# Prices of machines, read from the user's file. None are shipped, since prices change.
#
# currency = "USD"
# [[price]]
# name = "p3.8xlarge"
# match = { gpu = "Tesla V100*" }        # or host, cpu, emulated: shell patterns
# devices = 4                            # in one machine; a machine is paid whole
# per_hour = { on_demand = 12.24 }
# network = "tcp:10"                     # between machines, for readers of the file


ON_DEMAND = "on_demand"
# Environment variable for --prices.
PRICES_VARIABLE = "SCALING_PRICES"


class Match(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machines of a price, as shell patterns; all given patterns must match."""

    gpu: str = ""
    host: str = ""
    cpu: str = ""
    emulated: str = ""

    def holds(self, **machine: str) -> bool:
        """Check a machine; a match without patterns matches none."""
        given = {name: pattern for name, pattern in asdict(self).items() if pattern}
        return bool(given) and all(fnmatch(machine.get(name, ""), pattern) for name, pattern in given.items())


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


def read_prices(path: Path) -> Prices:
    """Read a file of prices. Raises UsageError, in one line, if it is wrong."""
    named = told_by("--prices", PRICES_VARIABLE, str(path))
    plain = msgspec.to_builtins(files.toml(path, named))  # dates may be strings or TOML dates
    try:
        prices = msgspec.convert(plain, type=Prices)
    except msgspec.ValidationError as error:
        raise UsageError(f"{named}: {error}") from None
    if not prices.currency.strip():
        raise UsageError(f'{named}: currency is empty; use currency = "USD"')
    for price in prices.price:
        if wrong := next(_wrong(price), ""):
            raise UsageError(f"{named}: {price.name}: {wrong}")
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
    try:
        date.fromisoformat(price.seen or "2018-02-01")
    except ValueError:
        yield f"seen = {price.seen}: not a day; use one like 2018-02-01"


# ---------------------------------------------------------------- cost
#
# * machines: N / devices of a machine, rounded up; at least the nodes of the row
# * per sample: machines x price per hour / 3600 / (samples/s)
# * relative: per sample, over the plain loop on one device (or over the base row, paired by round)
# * not counted: storage, transfers, the start of machines, `minimum_s`


MILLION = 1e6
KNEE = 1.5
# Days before the run; an older price gets a note.
STALE_DAYS = 180
# Marks of rows without a cost, with the reason.
UNPRICED = {"FAILED": "failed", **{mark: f"{mark}: {why}" for mark, why in unranked_marks().items()}}
# Training samples by data. A test compares them with the catalogue of data.
EPOCHS: Mapping[str, int] = {
    "digits": 1_437,
    "mnist": 60_000,
    "fashion-mnist": 60_000,
    "cifar10": 50_000,
    "imagenet": 1_281_167,
    "imagenet-tfrecord": 1_281_167,
    "imagenet-rec": 1_281_167,
    "caltech256": 15_420,
    "imdb": 25_000,
}


# A row's curve and world size.
Place = tuple[int, int]
# Without prices all devices cost the same.
_DEVICE = Price(name="device", match=Match(), devices=1, per_hour={ON_DEMAND: 1.0})


class Base(NamedTuple):
    """The row that costs are relative to, and its rate over that of each row of the same work, paired by round."""

    name: str
    row: Row
    ratios: Mapping[Place, Estimate]


class Pricing(NamedTuple):
    """What the user asks for. `epoch_samples` = 0: the published number. Without `base`, the plain loop."""

    prices: Prices | None
    epoch_samples: int = 0
    knee: float = KNEE
    base: Base | None = None

    @property
    def currency(self) -> str:
        return self.prices.currency if self.prices else ""


class Bill(Record, frozen=True, kw_only=True):
    """The cost of one row. Intervals are those of its rate, inverted.

    `per_million`, `per_epoch`: of 1e6 samples or sequences, of an epoch; by `on_demand`, `spot`, ...
    `devices_paid`: devices of all machines, used or not.
    `relative`: to the row `base`; if that is "", to the plain loop on one device; None without one of this work.
    `price_is_old`: the day of a price that is much older than the run.
    `price`, `currency`: empty without prices; then a machine is a device.
    """

    strategy: str
    interconnect: str
    options: dict[str, str]
    world_size: int
    price: str
    currency: str
    machines: int
    devices_paid: int
    per_million: dict[str, Estimate]
    per_epoch: dict[str, Estimate] = {}
    relative: Estimate | None = None
    price_is_old: str = ""
    emulated: bool = False
    base: str = ""


def paid(seconds: float, per_hour: float, machines: int = 1) -> float:
    return machines * per_hour * seconds / HOUR_S


def machines_of(row: Row, price: Price) -> int:
    """Return the number of paid machines, dedicated nodes of servers included."""
    own = {server.host for server in row.server_use} if row.server_hosts == "dedicated" else set()
    return max(row.nodes, ceil(row.world_size / price.devices)) + len(own)


def turned_over(of: Estimate, factor: float = 1.0) -> Estimate:
    """Return factor / estimate; the ends of the interval are swapped."""
    low, high = (None if end is None else factor / end for end in (of.high, of.low))
    return Estimate(mean=factor / of.mean, low=low, high=high, n=of.n, df=of.df)


def bill(row: Row, header: Header, asked: Pricing) -> Bill | str:
    """Return the cost of a row, or the reason why it is unknown."""
    reason = _unpriced(row)
    price = None if reason else _price(row, header, asked.prices)
    if reason or row.samples_per_s is None or price is None:
        return reason or "no price matches these machines"
    machines, rate, prices = machines_of(row, price), row.samples_per_s, asked.prices
    samples = {"per_million": MILLION, "per_epoch": asked.epoch_samples or EPOCHS.get(row.workload.data, 0)}
    costs = {
        name: {how: turned_over(rate, paid(of, cost, machines)) for how, cost in price.per_hour.items()}
        for name, of in samples.items()
        if prices and of
    }
    measured = datetime.fromtimestamp(header.created_unix_s, timezone.utc).date()
    is_old = price.seen and (measured - date.fromisoformat(price.seen)).days > STALE_DAYS
    return Bill(
        **shared(Bill, row),
        price=price.name if prices else "",
        currency=asked.currency,
        machines=machines,
        devices_paid=machines * price.devices,
        per_million=costs.get("per_million", {}),
        per_epoch=costs.get("per_epoch", {}),
        relative=_over_base(row, header, asked, asked.base) if asked.base else relative(row, machines),
        price_is_old=price.seen if is_old else "",
        emulated=bool(row.hardware.profile),
        base=asked.base.name if asked.base else "",
    )


def _unpriced(row: Row) -> str:
    return next((why for flag, why in UNPRICED.items() if flag in row.flags), "")


def _over_base(row: Row, header: Header, asked: Pricing, base: Base) -> Estimate | None:
    """Return a sample's cost over that of the base. None if either is unknown, the base costs nothing, or the row
    learnt less."""
    ratio = base.ratios.get((row.curve, row.world_size))
    own, of_base = (_spent(one, header, asked) for one in (row, base.row))
    if row.learnt_less or ratio is None or own is None or of_base is None or of_base[0] <= 0:
        return None
    return ratio.times(own[0] / of_base[0])


def relative(row: Row, machines: int | None = None) -> Estimate | None:
    """Return a sample's cost over that of the plain loop on one device; None without an efficiency. Without
    `machines`, every machine has one device: 1 / efficiency."""
    if row.efficiency is None or row.learnt_less or "MISLABELLED" in row.flags:
        return None
    return turned_over(row.efficiency, 1.0 if machines is None else machines / row.world_size)


def knee(rows: Sequence[Row], header: Header, asked: Pricing) -> int | None:
    """Return the largest world size up to which each step's added samples cost at most `asked.knee` times the
    mean. None if fewer than two world sizes have a price."""
    known = [(row.world_size, *spent) for row in rows if (spent := _spent(row, header, asked))]
    found = None
    for (_, cost, rate), (world_size, dearer, faster) in pairwise(known):
        mean = dearer / faster
        if faster <= rate or (dearer - cost) / (faster - rate) > asked.knee * mean:
            break
        found = world_size
    return found if found or len(known) < 2 else known[0][0]


def _spent(row: Row, header: Header, asked: Pricing) -> tuple[float, float] | None:
    """The price of an hour, and samples/s; None if either is unknown."""
    price = None if _unpriced(row) else _price(row, header, asked.prices)
    if price is None or row.samples_per_s is None:
        return None
    return machines_of(row, price) * price.hourly, row.samples_per_s.mean


def _price(row: Row, header: Header, prices: Prices | None) -> Price | None:
    """Return the first price that matches; None without one, or if the hosts have several prices."""
    if prices is None:
        return _DEVICE
    machines = [
        {"gpu": host.gpus[0].name if host.gpus else "", "host": host.hostname, "cpu": host.cpu_model}
        for host in header.hosts
    ]
    if row.hardware.profile:
        machines = [{"emulated": row.hardware.profile}]
    first, *others = (next((one for one in prices.price if one.match.holds(**of)), None) for of in machines)
    return first if all(one is first for one in others) else None


# ---------------------------------------------------------------- base row


def why_not(row: Row) -> str:
    """Return why costs cannot be relative to this row; "" if they can."""
    return _unpriced(row) or ("its samples teach less" if row.learnt_less else "")


def base(name: str, row: Row, rows: Sequence[Row], cells: Sequence[Cell]) -> Base:
    """Make `row` the base of all `rows`; `cells` are theirs, in the same order."""
    logs, found = _log_rates(cells[rows.index(row)]), dict[Place, Estimate]()
    # Batch, precision and devices may differ.
    work = attrgetter("workload.model", "workload.data", "workload.pass_")
    for other, cell in zip(rows, cells, strict=True):
        if other is row:
            found[other.curve, other.world_size] = Estimate(mean=1.0, low=None, high=None, n=row.rounds)
        elif work(other) == work(row) and (shared := differences(logs, _log_rates(cell))):
            found[other.curve, other.world_size] = interval(list(shared.values())).exp()
    return Base(name, row, found)


def _log_rates(cell: Cell) -> dict[int, float]:
    return {number: log(rate) for number, rate in zip(cell.times, cell.rates, strict=True)}
