"""The cheapest cluster for a target: the fewest machines whose lower end reaches it, by the user's prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling.analysis import prices
from scaling.analysis.prices import Price, Prices
from scaling.errors import UsageError
from scaling.records.point import Record
from scaling.text import as_json, printable, rounded
from scaling.tools.predict import asking, infer
from scaling.tools.predict.case import Case, network
from scaling.tools.predict.flags import Asked
from scaling.tools.predict.forecast import (
    FARTHEST,
    FARTHEST_COLD,
    HIGH,
    LEAST_DRAWS,
    LOW,
    WIDEST,
    Outlook,
    carried,
    outlook,
)
from scaling.tools.predict.model import Floats
from scaling.tools.predict.priors import Priors
from scaling.tools.predict.setting import At

# The lower end of a one-sided 80 % interval, and the upper.
LOWER, UPPER = 0.2, 0.8
MOST_COUNTS = 48


class Plan(Record, frozen=True, kw_only=True):
    """A cluster that reaches the target: `machines` of a price, the batch per device, and what it does."""

    price: str
    machines: int
    devices: int
    batch_size: int
    network: str
    hourly: float
    samples_per_s: float
    lower: float
    upper: float
    efficiency: float
    fewest: int

    @property
    def cost_of_a_million(self) -> float:
        """Of as many samples, at the median rate."""
        return self.hourly / 3600 * 1e6 / self.samples_per_s


def planned(asked: Asked, case: Case, priors: Priors) -> str:
    """The clusters that reach the target, cheapest first. Raises UsageError where none can be named."""
    if asked.prices is None or asked.target is None:
        raise UsageError("--target: needs --prices FILE")
    file = prices.read(asked.prices)
    fitting = [price for price in file.price if _is_ours(price, case)]
    if not fitting:
        raise UsageError(
            f"--prices {asked.prices}: no price matches {case.device or 'a device without a name (--device)'}; "
            "another device's rate is not predicted: measure one of it"
        )
    look = outlook(case, priors)
    tried = list(_plans(asked, look, fitting))
    found = sorted((plan for plan in tried if isinstance(plan, Plan)), key=lambda one: (one.hourly, one.machines))
    if not found:
        raise UsageError(f"--target {asked.target:g}: no world size that may be claimed reaches it by 80 %")
    write = _json if asked.format == "json" else _table
    left_out = tuple(
        f"{name}: no number of machines that may be claimed reaches it" for name in tried if isinstance(name, str)
    )
    noted = case._replace(notes=(*case.notes, *look.doubts, *asking.supposed(asked, case), *left_out))
    return write(asked, noted, file, found)


def _is_ours(price: Price, case: Case) -> bool:
    """Whether this price is of the device that was measured."""
    name = case.device
    if case.emulated:
        return price.match.holds(emulated=name)
    return price.match.holds(gpu=name) or price.match.holds(cpu=name)


def _plans(asked: Asked, look: Outlook, fitting: Sequence[Price]) -> Iterator[Plan | str]:
    """Of each price and batch a plan, or its name where there is none."""
    for price in fitting:
        for model, batch, rate in look.case.rates:
            if model == look.case.model:
                yield _fewest(asked, look, price, batch, rate) or f"{price.name}, batch {batch}"


def _fewest(asked: Asked, look: Outlook, price: Price, batch: int, rate: float) -> Plan | None:
    """The fewest of these machines whose lower end reaches the target."""
    case = look.case
    # Without a run there must be a --network: it is of machines whose price tells none.
    word = price.network or asked.network if case.cold else asked.network or price.network
    target = (asked.target or 0.0) / case.units_per_sample
    setting = replace(case.setting, step_s=batch / rate / case.accumulation, compress=asked.compress)
    if word:
        link, line = network(word, emulated=case.emulated)
        setting = replace(setting, link=link, line_bytes_per_s=line)
    if setting.link == "none":
        raise UsageError(
            f"--prices: {price.name}: nothing is known between machines: give --network, such as tcp:25"
        )
    own = look._replace(posterior=carried(look.posterior, setting), rate=rate)
    return _first(own, _machines(target, rate, price, case), price, batch, word or "the run's", target)


class _Rates(NamedTuple):
    """What some counts of machines do, samples/s: medians, and what 80 % and 20 % of draws are above; `claimed`
    where the interval is not too wide."""

    counts: Sequence[int]
    middle: Floats
    lower: Floats
    upper: Floats
    claimed: NDArray[np.bool_]

    @classmethod
    def of(cls, look: Outlook, price: Price, counts: Sequence[int]) -> _Rates:
        """Predict them."""
        devices, steps = price.devices, look.case.accumulation
        points = [At(world_size=count * devices, nodes=count, accumulation=steps) for count in counts]
        predicted = infer.predict(look.posterior, points)
        found = infer.quantiles(predicted.log_efficiency, predicted.weights, [0.5, LOWER, UPPER, LOW, HIGH])
        middle, lower, upper, low, high = np.exp(found)
        ideal = np.array([at.world_size * look.rate for at in points])
        claimed = ((high - low) / 2 <= WIDEST) & (look.posterior.even >= LEAST_DRAWS)
        return cls(counts, middle * ideal, lower * ideal, upper * ideal, claimed)

    def first(self, target: float) -> int | None:
        """The place of the first that reaches it and may be claimed."""
        reached = np.flatnonzero((self.lower >= target) & self.claimed)
        return int(reached[0]) if len(reached) else None


def _machines(target: float, rate: float, price: Price, case: Case) -> list[int]:
    """Counts to try, from what perfect scaling would need: each up to 16, then in steps of a sixteenth."""
    most = (FARTHEST_COLD if case.cold else FARTHEST * case.largest) // price.devices
    found: list[int] = []
    count = max(1, int(target / rate / price.devices * 0.9))
    while count <= most and len(found) < MOST_COUNTS:
        found.append(count)
        count += max(1, count // 16)
    return found


def _first(
    look: Outlook, counts: Sequence[int], price: Price, batch: int, word: str, target: float
) -> Plan | None:
    if not counts:
        return None
    tried = _Rates.of(look, price, counts)
    index = tried.first(target)
    if index is None:
        return None
    hopeful = int(np.flatnonzero(tried.upper >= target)[0])
    fewest = tried.counts[hopeful]
    if index and counts[index] - counts[index - 1] > 1:  # those between, which were left out
        between = _Rates.of(look, price, range(counts[index - 1] + 1, counts[index]))
        sooner = between.first(target)
        tried, index = (tried, index) if sooner is None else (between, sooner)
    machines, devices = tried.counts[index], tried.counts[index] * price.devices
    middle, lower, upper = (float(values[index]) for values in (tried.middle, tried.lower, tried.upper))
    return Plan(
        price=price.name, machines=machines, devices=devices, batch_size=batch, network=word,
        hourly=machines * price.hourly, samples_per_s=middle, lower=lower, upper=upper,
        efficiency=middle / devices / look.rate, fewest=min(fewest, machines),
    )  # fmt: skip


def _alike(found: Sequence[Plan]) -> list[Plan]:
    """Those that the cheapest cannot be told from: they would cost no more if they needed the fewest machines that
    are likely, and it the most."""
    first = found[0]
    return [plan for plan in found[1:] if plan.hourly * plan.fewest / plan.machines <= first.hourly]


def _table(asked: Asked, case: Case, file: Prices, found: Sequence[Plan]) -> str:
    lines = [f"PREDICTED, not measured: clusters that reach {asked.target:g} {case.unit}/s by 80 %: {case.title}"]
    lines += [f"note: {note}" for note in case.notes]
    lines += [_line(plan, case, file.currency) for plan in found]
    rivals = _alike(found)
    if rivals:
        names = ", ".join(f"{plan.machines} x {plan.price}" for plan in rivals)
        lines.append(
            f"not distinguishable from the first: {names}; what would decide: an exchange on 2 machines of either"
        )
    return "\n".join(map(printable, lines)) + "\n"


def _line(plan: Plan, case: Case, currency: str) -> str:
    each = case.units_per_sample
    return (
        f"PREDICTED  {plan.machines} x {plan.price} ({plan.devices} devices, batch {plan.batch_size}, "
        f"{plan.network}): {plan.hourly:,.2f} {currency}/h, {each * plan.samples_per_s:,.0f} {case.unit}/s "
        f"(80 % at least {each * plan.lower:,.0f}), efficiency {100 * plan.efficiency:.0f} %, "
        f"{plan.cost_of_a_million / each:,.2f} {currency} a million {case.unit}"
    )


def _json(asked: Asked, case: Case, file: Prices, found: Sequence[Plan]) -> str:
    rivals = [plan.price for plan in _alike(found)]
    plain = {
        "kind": "PREDICTED", "interval_percent": 80, "target": asked.target, "unit": case.unit,
        "units_per_sample": case.units_per_sample, "currency": file.currency,
        "title": case.title, "notes": list(case.notes), "plans": msgspec.to_builtins(found),
        "not_distinguishable_from_first": rivals,
    }  # fmt: skip
    return as_json(rounded(plain))
