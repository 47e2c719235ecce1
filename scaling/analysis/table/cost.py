"""The row that all costs of a report are relative to, and each row's rate beside it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from itertools import pairwise
from math import ceil, log
from typing import NamedTuple

from scaling.analysis.measured.cell import Cell
from scaling.analysis.statistics.intervals import Estimate, contrast
from scaling.analysis.table.catalogue import unranked_marks
from scaling.analysis.table.prices import ON_DEMAND, Match, Price, Prices
from scaling.analysis.table.rows import Row
from scaling.records.host import HostInfo
from scaling.records.point import Record
from scaling.records.run import Header

# ---------------------------------------------------------------- cost
#
# What training costs: machines paid whole, by the hour, over what they do. Pure.
#
# machines what takes part, N / devices of one rounded up, and at least the nodes of the row per sample machines
# x price per hour / 3600 / (samples/s) relative that over what a sample costs with the plain loop on one device
# of one machine: with one device a machine it is 1 / efficiency; with a base, over what a sample of that row
# costs, paired by round knee the largest world size whose last devices' samples cost at most `knee` times the
# mean of all
#
# Intervals are those of the rates, turned over. Left out: storage, transfers, the start of a machine, and the
# file's `minimum_s`, which is of a job and not of a sample.


HOUR_S = 3600.0
MILLION = 1e6
KNEE = 1.5
# A price older than this, in days before the run, says how old it is.
STALE_DAYS = 180
# Rows of which it is not known what they would cost, and why.
UNPRICED = {"FAILED": "failed", **{mark: f"{mark}: {why}" for mark, why in unranked_marks().items()}}
# Samples of one pass over what is trained on, where that is published; a test holds them to the catalogue of data.
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


# By a row's curve and world size.
Place = tuple[int, int]
# Without prices all devices cost the same.
_DEVICE = Price(name="device", match=Match(), devices=1, per_hour={ON_DEMAND: 1.0})


class Base(NamedTuple):
    """The row that costs are relative to: `ratios` are its rate over that of each row of the same work, paired by
    round (`base`)."""

    name: str
    row: Row
    ratios: Mapping[Place, Estimate]


class Pricing(NamedTuple):
    """What the user asks: the prices (None: all devices cost the same), how many samples an epoch has (0: what is
    known of the data), the knee, the row that costs are relative to (None: the own plain loop)."""

    prices: Prices | None
    epoch_samples: int = 0
    knee: float = KNEE
    base: Base | None = None

    @property
    def currency(self) -> str:
        """Empty without prices."""
        return self.prices.currency if self.prices else ""


class Bill(Record, frozen=True, kw_only=True):
    """What one row costs in `currency`; the interval of each figure is that of the row's rate, turned over.

    `per_million` and `per_epoch` are by how machines are bought (`on_demand`, `spot`), of 1e6 samples (sequences,
    where rates count tokens) and of one pass over the data; `devices_paid` counts those of all machines, used or
    not. `relative` is to the row that `base` names, None where that is of another work; with "" to the plain loop
    on one device, None without a baseline. `price_is_old` tells the day that the price was seen where that is long
    before the run. Without prices machines are devices, nothing has a price, and `price` and `currency` are empty.
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
    """Return what so many machines cost for so long."""
    return machines * per_hour * seconds / HOUR_S


def machines_of(row: Row, price: Price) -> int:
    """Return how many machines are paid: whole ones, with the nodes that servers have to themselves."""
    own = {server.host for server in row.server_use} if row.server_hosts == "dedicated" else set()
    return max(row.nodes, ceil(row.world_size / price.devices)) + len(own)


def turned_over(of: Estimate, factor: float = 1.0) -> Estimate:
    """Return factor / estimate, with the ends of its interval in each other's place."""
    low, high = (None if end is None else factor / end for end in (of.high, of.low))
    return Estimate(mean=factor / of.mean, low=low, high=high, n=of.n, df=of.df)


def bill(row: Row, header: Header, asked: Pricing) -> Bill | str:
    """Return what a row costs, or why that is not known."""
    reason = next((why for flag, why in UNPRICED.items() if flag in row.flags), "")
    price = None if reason else _price(row, header, asked)
    if reason or row.samples_per_s is None or price is None:
        return reason or "no price matches these machines"
    machines = machines_of(row, price)
    return Bill(
        strategy=row.strategy,
        interconnect=row.interconnect,
        options=row.options,
        world_size=row.world_size,
        price=price.name if asked.prices else "",
        currency=asked.currency,
        machines=machines,
        devices_paid=machines * price.devices,
        per_million=_per(row.samples_per_s, MILLION, price, machines) if asked.prices else {},
        per_epoch=_per(row.samples_per_s, _epoch(row, asked), price, machines) if asked.prices else {},
        relative=_over_base(row, header, asked) if asked.base else relative(row, machines),
        price_is_old=_old(price, header),
        emulated=bool(row.hardware.profile),
        base=asked.base.name if asked.base else "",
    )


def _over_base(row: Row, header: Header, asked: Pricing) -> Estimate | None:
    """A sample's cost over that of the base; None where either is not known, or that of the base is nothing, or
    the row's samples taught less."""
    assert asked.base is not None
    if row.learnt_less:
        return None
    ratio = asked.base.ratios.get((row.curve, row.world_size))
    own, of_base = (_spent(one, header, asked) for one in (row, asked.base.row))
    if ratio is None or own is None or of_base is None or of_base[0] <= 0:
        return None
    return ratio.times(own[0] / of_base[0])


def relative(row: Row, machines: int | None = None) -> Estimate | None:
    """Return a sample's cost over that with the plain loop on one device: 1 / efficiency where every machine has
    one device (`machines` not given); None without an efficiency."""
    if row.efficiency is None or row.learnt_less or "MISLABELLED" in row.flags:
        return None
    return turned_over(row.efficiency, 1.0 if machines is None else machines / row.world_size)


def knee(rows: Sequence[Row], header: Header, asked: Pricing) -> int | None:
    """Return the largest world size of a curve up to which every step's added samples cost at most `asked.knee`
    times the mean; None where fewer than two world sizes have a price."""
    known = [(row.world_size, *spent) for row in rows if (spent := _spent(row, header, asked))]
    found = None
    for (_, cost, rate), (world_size, dearer, faster) in pairwise(known):
        mean = dearer / faster
        if faster <= rate or (dearer - cost) / (faster - rate) > asked.knee * mean:
            break
        found = world_size
    return found if found or len(known) < 2 else known[0][0]


def _spent(row: Row, header: Header, asked: Pricing) -> tuple[float, float] | None:
    """Per hour, and samples/s."""
    price = None if UNPRICED.keys() & set(row.flags) else _price(row, header, asked)
    if price is None or row.samples_per_s is None:
        return None
    return machines_of(row, price) * price.hourly, row.samples_per_s.mean


def _per(rate: Estimate, samples: float, price: Price, machines: int) -> dict[str, Estimate]:
    """Of so many samples, by how machines are bought."""
    return {
        how: turned_over(rate, paid(samples, per_hour, machines))
        for how, per_hour in price.per_hour.items()
        if samples
    }


def _epoch(row: Row, asked: Pricing) -> int:
    return asked.epoch_samples or EPOCHS.get(row.workload.data, 0)


def _price(row: Row, header: Header, asked: Pricing) -> Price | None:
    """The first that matches; None where none does, or the hosts are of several prices."""
    prices = asked.prices
    if prices is None:
        return _DEVICE
    if row.hardware.profile:
        return next((one for one in prices.price if one.match.holds(emulated=row.hardware.profile)), None)
    first, *others = (_of_host(host, prices) for host in header.hosts)
    return first if all(one is first for one in others) else None


def _of_host(host: HostInfo, prices: Prices) -> Price | None:
    gpu = host.gpus[0].name if host.gpus else ""
    kind = {"gpu": gpu, "host": host.hostname, "cpu": host.cpu_model}
    return next((one for one in prices.price if one.match.holds(**kind)), None)


def _old(price: Price, header: Header) -> str:
    if not price.seen:
        return ""
    measured = datetime.fromtimestamp(header.created_unix_s, timezone.utc).date()
    return price.seen if (measured - date.fromisoformat(price.seen)).days > STALE_DAYS else ""


# ---------------------------------------------------------------- cost base


def why_not(row: Row) -> str:
    """Why costs cannot be relative to this row; "" where they can."""
    less = "its samples taught less" if row.learnt_less else ""
    return next((why for flag, why in UNPRICED.items() if flag in row.flags), less)


def base(name: str, row: Row, rows: Sequence[Row], cells: Sequence[Cell]) -> Base:
    """Return `row` as the base of all `rows`, whose records stand in `cells` in the same order."""
    logs = _log_rates(cells[rows.index(row)])
    found: dict[Place, Estimate] = {}
    for other, cell in zip(rows, cells, strict=True):
        if other is row:
            found[other.curve, other.world_size] = Estimate(mean=1.0, low=None, high=None, n=row.rounds)
        elif _has_same_work(other, row) and (shared := _differences(logs, _log_rates(cell))):
            found[other.curve, other.world_size] = contrast(shared, None).exp()
    return Base(name, row, found)


def _has_same_work(one: Row, other: Row) -> bool:
    """Whether a sample of the one is worth a sample of the other: batch, precision and devices may differ."""
    return (one.workload.model, one.workload.data, one.workload.pass_) == (
        other.workload.model, other.workload.data, other.workload.pass_
    )  # fmt: skip


def _log_rates(cell: Cell) -> dict[int, float]:
    return {number: log(rate) for number, rate in zip(cell.times, cell.rates, strict=True)}


def _differences(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """The one's less the other's, over the rounds that both have."""
    return [one[number] - other[number] for number in sorted(one.keys() & other.keys())]
