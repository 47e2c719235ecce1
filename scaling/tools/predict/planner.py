"""The cheapest clusters that reach a rate, by the user's prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from scaling.analysis.table import cost
from scaling.analysis.table.cost import Price
from scaling.errors import UsageError
from scaling.records.point import Record
from scaling.text import as_json, printable, rounded
from scaling.tools.predict.asking import FARTHEST, FARTHEST_COLD, over, supposed
from scaling.tools.predict.fit import ONE_SIDED, predict
from scaling.tools.predict.flags import Asked
from scaling.tools.predict.forecast import WIDEST, Case, Outlook, doubts, outlook
from scaling.tools.predict.model import Floats
from scaling.tools.predict.setting import At


class Plan(Record, frozen=True, kw_only=True):
    """A cluster; `fewest` machines may do. Ends are of a one-sided 80 % interval."""

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


class _Rates(NamedTuple):
    """Samples/s of 1, 2, ... machines of one price with one batch. `lower` is 0 if it is not claimed."""

    price: Price
    batch: int
    network: str
    alone: float
    middle: Floats
    lower: Floats
    upper: Floats

    def plan(self, target: float) -> Plan | None:
        reached = np.flatnonzero(self.lower >= target)
        if not len(reached):
            return None
        index, devices = int(reached[0]), (int(reached[0]) + 1) * self.price.devices
        middle, lower, upper = (float(one[index]) for one in (self.middle, self.lower, self.upper))
        return Plan(
            price=self.price.name, machines=index + 1, devices=devices, batch_size=self.batch,
            network=self.network, hourly=(index + 1) * self.price.hourly, samples_per_s=middle,
            lower=lower, upper=upper, efficiency=middle / devices / self.alone,
            fewest=int(np.flatnonzero(self.upper >= target)[0]) + 1,
        )  # fmt: skip


def planned(asked: Asked, case: Case) -> str:
    """List the clusters that reach the target, cheapest first. Raises UsageError if there is none."""
    assert asked.prices is not None and asked.target is not None
    file = cost.read_prices(asked.prices)
    fitting = [price for price in file.price if _is_ours(price, case)]
    if not fitting:
        raise UsageError(
            f"--prices {asked.prices}: no price matches {case.device or 'a device without a name (--device)'}; "
            "another device's rate is not predicted: measure one such device"
        )
    each, look = case.units_per_sample, outlook(case)
    tried = [(own, own.plan(asked.target / each)) for own in _tries(asked, look, fitting)]
    found = sorted((plan for _, plan in tried if plan), key=lambda one: (one.hourly, one.machines))
    if not found:
        raise UsageError(
            f"--target {asked.target:g}: no claimed world size reaches it with 80 % probability; "
            + _most(case, [own for own, _ in tried])
        )
    left_out = (f"{one.price.name}, batch {one.batch}: no claimed number of machines reaches it"
                for one, plan in tried if plan is None)  # fmt: skip
    notes = [*case.notes, *doubts(case), *supposed(asked, case), *left_out]
    # plans that may cost no more than the first, with the fewest machines that are likely
    tied = [one for one in found[1:] if one.hourly * one.fewest / one.machines <= found[0].hourly]
    if asked.format == "json":
        return as_json(rounded({
            "kind": "PREDICTED", "interval_percent": 80, "target": asked.target, "unit": case.unit,
            "units_per_sample": each, "currency": file.currency, "title": case.title, "notes": notes,
            "plans": msgspec.to_builtins(found), "not_distinguishable_from_first": [one.price for one in tied],
        }))  # fmt: skip
    reach = f"clusters that reach {asked.target:g} {case.unit}/s with 80 % probability"
    lines = [f"PREDICTED, not measured: {reach}: {case.title}", *(f"note: {note}" for note in notes)]
    lines += [_line(plan, case, file.currency) for plan in found]
    if names := ", ".join(f"{one.machines} x {one.price}" for one in tied):
        lines.append(f"tied with the first: {names}; to decide, measure an exchange on 2 machines of each")
    return "\n".join(map(printable, lines)) + "\n"


def _is_ours(price: Price, case: Case) -> bool:
    holds, name = price.match.holds, case.device
    return holds(emulated=name) if case.setting.emulated else holds(gpu=name) or holds(cpu=name)


def _tries(asked: Asked, look: Outlook, fitting: Sequence[Price]) -> Iterator[_Rates]:
    for price in fitting:
        for model, batch, rate in look.case.rates:
            if model == look.case.model:
                yield _rates(asked, look.case, price, batch, rate)


def _rates(asked: Asked, case: Case, price: Price, batch: int, rate: float) -> _Rates:
    # Without a run, --network is required for prices without one.
    word = price.network or asked.network if case.cold else asked.network or price.network
    steps, compress = case.known.anchor.accumulation, 1.0 if case.cold else asked.compress
    setting = replace(
        case.setting, step_s=batch / rate / steps, gradient_bytes=case.setting.gradient_bytes / compress
    )
    setting = over(word, setting, case) if word else setting
    if setting.link == "none":
        raise UsageError(f"--prices: {price.name}: its network is unknown: give --network, such as tcp:25")
    most = max(1, (FARTHEST_COLD if case.cold else FARTHEST * case.largest) // price.devices)
    points = [
        At(world_size=count * price.devices, nodes=count, accumulation=steps) for count in range(1, most + 1)
    ]
    found = predict(outlook(case, setting).fit, points)
    ideal = rate * np.array([at.world_size for at in points])
    claimed = ((found.high - found.low) / 2 <= WIDEST) & (not case.unclaimed)
    lower, upper = (found.efficiency * (end / found.efficiency) ** ONE_SIDED for end in (found.low, found.high))
    rates = (ideal * found.efficiency, np.where(claimed, ideal * lower, 0.0), ideal * upper)
    return _Rates(price, batch, word or "the run's", rate, *rates)


def _most(case: Case, tried: Sequence[_Rates]) -> str:
    """Name the largest rate that is claimed."""
    best = max(tried, key=lambda one: float(one.lower.max()))
    index, most = int(best.lower.argmax()), float(best.lower.max())
    where = f"{index + 1} x {best.price.name} (batch {best.batch}, {best.network})"
    return f"the most is {case.units_per_sample * most:,.0f} {case.unit}/s: {where}" if most else "none is claimed"


def _line(plan: Plan, case: Case, currency: str) -> str:
    each = case.units_per_sample
    million = plan.hourly / 3600 * 1e6 / plan.samples_per_s / each
    return (
        f"PREDICTED  {plan.machines} x {plan.price} ({plan.devices} devices, batch {plan.batch_size}, "
        f"{plan.network}): {plan.hourly:,.2f} {currency}/h, {each * plan.samples_per_s:,.0f} {case.unit}/s "
        f"(80 %: at least {each * plan.lower:,.0f}), efficiency {100 * plan.efficiency:.0f} %, "
        f"{million:,.2f} {currency} a million {case.unit}"
    )
