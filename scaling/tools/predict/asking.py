"""Turns the command line into a case, what-ifs, world sizes or plans, or into an error."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling.analysis.table import cost
from scaling.analysis.table.cost import Price, Prices
from scaling.errors import UsageError
from scaling.records.point import Record
from scaling.records.run import Header, PointRecord
from scaling.text import as_json, printable, rounded
from scaling.tools.predict import cold, evidence, infer
from scaling.tools.predict.evidence import Wanted
from scaling.tools.predict.flags import Asked
from scaling.tools.predict.forecast import (
    FARTHEST,
    FARTHEST_COLD,
    HIGH,
    LEAST_DRAWS,
    LOW,
    RDMA,
    WIDEST,
    Case,
    Outlook,
    carried,
    network,
    outlook,
)
from scaling.tools.predict.healthy import Relief
from scaling.tools.predict.model import Floats
from scaling.tools.predict.priors import Priors
from scaling.tools.predict.setting import At, Setting

# the ends of one-sided 80 % intervals
LOWER, UPPER = 0.2, 0.8
MOST_COUNTS = 48


class Plan(Record, frozen=True, kw_only=True):
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
        return self.hourly / 3600 * 1e6 / self.samples_per_s


def planned(asked: Asked, case: Case, priors: Priors) -> str:
    """List the clusters that reach the target, cheapest first. Raises UsageError if there is none."""
    if asked.prices is None or asked.target is None:
        raise UsageError("--target: needs --prices FILE")
    file = cost.read_prices(asked.prices)
    fitting = [price for price in file.price if _is_ours(price, case)]
    if not fitting:
        raise UsageError(
            f"--prices {asked.prices}: no price matches {case.device or 'a device without a name (--device)'}; "
            "another device's rate is not predicted: measure one such device"
        )
    look = outlook(case, priors)
    tried = [_fewest(asked, own) or f"{own.price.name}, batch {own.batch}" for own in _tries(asked, look, fitting)]
    found = sorted((plan for plan in tried if isinstance(plan, Plan)), key=lambda one: (one.hourly, one.machines))
    if not found:
        raise UsageError(
            f"--target {asked.target:g}: no claimed world size reaches it with 80 % probability; "
            + _most(case, list(_tries(asked, look, fitting)))
        )
    write = _plans_json if asked.format == "json" else _plans_table
    left_out = tuple(
        f"{name}: no claimed number of machines reaches it" for name in tried if isinstance(name, str)
    )
    noted = case._replace(notes=(*case.notes, *look.doubts, *supposed(asked, case), *left_out))
    return write(asked, noted, file, found)


def _is_ours(price: Price, case: Case) -> bool:
    holds, name = price.match.holds, case.device
    return holds(emulated=name) if case.emulated else holds(gpu=name) or holds(cpu=name)


class _Try(NamedTuple):
    """Machines of one price with one batch; `word` is their network."""

    look: Outlook
    price: Price
    batch: int
    word: str

    def rates(self, counts: Sequence[int]) -> _Rates:
        return _Rates.of(self.look, self.price, counts)

    @property
    def farthest(self) -> int:
        """The largest number of machines that may be claimed."""
        case = self.look.case
        return (FARTHEST_COLD if case.cold else FARTHEST * case.largest) // self.price.devices


def _tries(asked: Asked, look: Outlook, fitting: Sequence[Price]) -> Iterator[_Try]:
    for price in fitting:
        for model, batch, rate in look.case.rates:
            if model == look.case.model:
                yield _try(asked, look, price, batch, rate)


def _try(asked: Asked, look: Outlook, price: Price, batch: int, rate: float) -> _Try:
    case = look.case
    # Without a run, --network is required for prices without one.
    word = price.network or asked.network if case.cold else asked.network or price.network
    setting = replace(case.setting, step_s=batch / rate / case.accumulation, compress=asked.compress)
    if word:
        setting = _over(word, setting, case)
    if setting.link == "none":
        raise UsageError(f"--prices: {price.name}: its network is unknown: give --network, such as tcp:25")
    own = look._replace(posterior=carried(look.posterior, setting), rate=rate)
    return _Try(own, price, batch, word or "the run's")


def _most(case: Case, tried: Sequence[_Try]) -> str:
    """Say which claimed rate 80 % of draws exceed is the largest, over doublings of machines."""
    best, where = 0.0, ""
    for own in tried:
        if counts := [1 << power for power in range(own.farthest.bit_length())]:
            rates = own.rates(counts)
            lower = np.where(rates.claimed, rates.lower, 0.0)
            index = int(lower.argmax())
            if lower[index] > best:
                best = float(lower[index])
                where = f"{counts[index]} x {own.price.name} (batch {own.batch}, {own.word})"
    return (
        f"the most is {case.units_per_sample * best:,.0f} {case.unit}/s: {where}" if where else "none is claimed"
    )


class _Rates(NamedTuple):
    """By number of machines, samples/s: the median, and what 80 % and 20 % of draws exceed. `claimed`: the
    interval is not too wide."""

    counts: Sequence[int]
    middle: Floats
    lower: Floats
    upper: Floats
    claimed: NDArray[np.bool_]

    @classmethod
    def of(cls, look: Outlook, price: Price, counts: Sequence[int]) -> _Rates:
        devices, steps = price.devices, look.case.accumulation
        points = [At(world_size=count * devices, nodes=count, accumulation=steps) for count in counts]
        predicted = infer.predict(look.posterior, points)
        found = infer.quantiles(predicted.log_efficiency, predicted.weights, [0.5, LOWER, UPPER, LOW, HIGH])
        middle, lower, upper, low, high = np.exp(found)
        ideal = np.array([at.world_size * look.rate for at in points])
        claimed = ((high - low) / 2 <= WIDEST) & (look.posterior.even >= LEAST_DRAWS)
        return cls(counts, middle * ideal, lower * ideal, upper * ideal, claimed)

    def first(self, target: float) -> int | None:
        reached = np.flatnonzero((self.lower >= target) & self.claimed)
        return int(reached[0]) if len(reached) else None


def _machines(target: float, own: _Try) -> list[int]:
    """Each number up to 16, then steps of a sixteenth, up to the farthest."""
    found: list[int] = []
    count = max(1, int(target / own.look.rate / own.price.devices * 0.9))
    while count <= own.farthest and len(found) < MOST_COUNTS:
        found.append(count)
        count += max(1, count // 16)
    return [*found, own.farthest] if found and found[-1] < own.farthest < count else found


def _fewest(asked: Asked, own: _Try) -> Plan | None:
    target = (asked.target or 0.0) / own.look.case.units_per_sample
    counts = _machines(target, own)
    if not counts:
        return None
    tried = own.rates(counts)
    index = tried.first(target)
    if index is None:
        return None
    fewest = counts[int(np.flatnonzero(tried.upper >= target)[0])]
    if index and counts[index] - counts[index - 1] > 1:  # the numbers that were skipped in between
        between = own.rates(range(counts[index - 1] + 1, counts[index]))
        if (sooner := between.first(target)) is not None:
            tried, index = between, sooner
    machines, devices = tried.counts[index], tried.counts[index] * own.price.devices
    middle, lower, upper = (float(values[index]) for values in (tried.middle, tried.lower, tried.upper))
    return Plan(
        price=own.price.name, machines=machines, devices=devices, batch_size=own.batch, network=own.word,
        hourly=machines * own.price.hourly, samples_per_s=middle, lower=lower, upper=upper,
        efficiency=middle / devices / own.look.rate, fewest=min(fewest, machines),
    )  # fmt: skip


def _tied_plans(found: Sequence[Plan]) -> list[Plan]:
    """Plans that may cost no more than the cheapest, with the fewest machines that are likely."""
    first = found[0]
    return [plan for plan in found[1:] if plan.hourly * plan.fewest / plan.machines <= first.hourly]


def _plans_table(asked: Asked, case: Case, file: Prices, found: Sequence[Plan]) -> str:
    lines = [
        f"PREDICTED, not measured: clusters that reach {asked.target:g} {case.unit}/s with 80 % probability: "
        f"{case.title}"
    ]
    lines += [f"note: {note}" for note in case.notes]
    lines += [_plan_line(plan, case, file.currency) for plan in found]
    if names := ", ".join(f"{plan.machines} x {plan.price}" for plan in _tied_plans(found)):
        lines.append(f"tied with the first: {names}; to decide, measure an exchange on 2 machines of each")
    return "\n".join(map(printable, lines)) + "\n"


def _plan_line(plan: Plan, case: Case, currency: str) -> str:
    each = case.units_per_sample
    return (
        f"PREDICTED  {plan.machines} x {plan.price} ({plan.devices} devices, batch {plan.batch_size}, "
        f"{plan.network}): {plan.hourly:,.2f} {currency}/h, {each * plan.samples_per_s:,.0f} {case.unit}/s "
        f"(80 %: at least {each * plan.lower:,.0f}), efficiency {100 * plan.efficiency:.0f} %, "
        f"{plan.cost_of_a_million / each:,.2f} {currency} a million {case.unit}"
    )


def _plans_json(asked: Asked, case: Case, file: Prices, found: Sequence[Plan]) -> str:
    plain = {
        "kind": "PREDICTED", "interval_percent": 80, "target": asked.target, "unit": case.unit,
        "units_per_sample": case.units_per_sample, "currency": file.currency,
        "title": case.title, "notes": list(case.notes), "plans": msgspec.to_builtins(found),
        "not_distinguishable_from_first": [plan.price for plan in _tied_plans(found)],
    }  # fmt: skip
    return as_json(rounded(plain))


DOUBLINGS = 5
# flags that describe what a run has
COLD = ("bus", "precision", "sequence_length")
# a larger compression is a typing error
MOST_COMPRESSION = 10_000


def case_of(asked: Asked, run: tuple[Header, Sequence[PointRecord]] | None) -> Case:
    """Build the case from the run's curve, or from one device and a data sheet. Raises UsageError."""
    _alike(asked)
    if run is None:
        return cold.case(asked)
    header, records = run
    wanted = Wanted(
        asked.strategy, asked.interconnect, asked.up_to, model=asked.model, batch_size=asked.batch_size
    )
    found = evidence.case(header, records, wanted)
    if asked.devices_per_node:
        found = found._replace(devices_per_node=asked.devices_per_node)
    if asked.model not in ("", found.model):  # samples of another model may have another length
        found = found._replace(unit="samples", units_per_sample=1)
    return found.titled(asked.model, asked.batch_size, asked.network)


def _alike(asked: Asked) -> None:
    if asked.cold and asked.run is not None:
        raise UsageError("--cold: predicts without a run; leave out RUN or --cold")
    if not asked.cold and asked.run is None:
        raise UsageError(
            "RUN: give a run's folder, or --cold --rate R --model NAME --batch-size B --network KIND:GBIT"
        )
    if asked.device and not asked.cold:
        raise UsageError(
            "--device: only with --cold, because a run has its own device; measure another device: "
            "mpirun -np 2 python -m scaling.run --world-sizes 1,2"
        )
    if not asked.cold and (given := next((name for name in COLD if getattr(asked, name)), "")):
        flag = f"--{given.replace('_', '-')}"
        raise UsageError(f"{flag}: only with --cold, because a run has its own")
    if not 1 <= asked.compress <= MOST_COMPRESSION:
        raise UsageError(f"--compress {asked.compress:g}: divides the gradients' bytes; 1 to {MOST_COMPRESSION:,}")
    if asked.rate is not None and not 0 < asked.rate < inf:
        raise UsageError(f"--rate {asked.rate:g}: samples/s of one device; above 0")
    if asked.target is not None and not 0 < asked.target < inf:
        raise UsageError(f"--target {asked.target:g}: samples/s; above 0")
    if asked.target is not None:
        _planning(asked)


def _planning(asked: Asked) -> None:
    if asked.prices is None:
        raise UsageError("--target: needs --prices FILE (scaling/tools/predict/README.md has its format)")
    flags: dict[str, object] = {"--world-sizes": asked.world_sizes, "--without": asked.without}
    if not asked.cold:
        flags |= {
            "--batch-size": asked.batch_size, "--model": asked.model, "--rate": asked.rate,
            "--devices-per-node": asked.devices_per_node,
        }  # fmt: skip
    if given := [flag for flag, value in flags.items() if value]:
        raise UsageError(
            f"--target: tries world sizes, the run's batches and machines of --prices itself: leave out {given[0]}"
        )


def look(asked: Asked, case: Case, priors: Priors) -> Outlook:
    """Infer from the case and transfer the result to the asked setting. Raises UsageError."""
    if case.cold:
        return outlook(case, priors)
    setting, rate = _work(asked, case)
    if asked.network:
        setting = _over(asked.network, setting, case)
    setting = replace(setting, compress=asked.compress)
    return outlook(case, priors, None if setting == case.setting else setting, rate)


def _over(words: str, setting: Setting, case: Case) -> Setting:
    return replace(setting, **network(words, emulated=case.emulated, verbs=case.verbs)._asdict())


def _work(asked: Asked, case: Case) -> tuple[Setting, float]:
    model, batch = asked.model or case.model, asked.batch_size or case.batch_size
    if (model, batch) == (case.model, case.batch_size) and asked.rate is None:
        return case.setting, case.rate
    measured = next((r for name, size, r in case.rates if (name, size) == (model, batch)), None)
    rate = asked.rate / case.units_per_sample if asked.rate else measured
    if rate is None:
        command = re.sub(r"--model \S+", lambda _: f"--model {model}", case.command)
        raise UsageError(
            f"--{'model ' + model if asked.model else f'batch-size {batch}'}: no rate of one device is "
            f"known; measure mpirun -np 1 {command} --batch-size {batch} --world-sizes 1 and give its "
            f"{case.unit}/s as --rate"
        )
    known = cold.known_by_name(model) if model != case.model else None
    cold.checked_step(batch, rate, known)
    setting = replace(case.setting, step_s=batch / rate / case.accumulation)
    if known:
        size = 4.0 * known.parameters
        setting = replace(setting, gradient_bytes=size, tail=known.tail, tensors=known.tensors)
    return setting, rate


def world_sizes(asked: Asked, case: Case, relief: Relief | None = None) -> tuple[int, ...]:
    """Return the asked world sizes, ascending. Raises UsageError if one is too far from the measured ones."""
    apart = asked.network or case.setting.link not in ("none", "unknown")
    most = FARTHEST_COLD if case.cold else FARTHEST * case.largest
    if asked.world_sizes:
        sizes = _sizes(asked.world_sizes)
    else:
        sizes = (relief.world_size,) if relief else _usual(case, most if apart else case.devices_per_node)
    whose = f"--world-sizes {sizes[-1]}" if asked.world_sizes else f"N={sizes[-1]}"
    if sizes[-1] > most:
        why = "the largest published" if case.cold else f"{FARTHEST} times the largest measured"
        larger = f"mpirun -np {-(-sizes[-1] // FARTHEST)} {case.command} --batch-size {case.batch_size}"
        mend = "" if case.cold else f"; measure a larger one: {larger}"
        raise UsageError(f"{whose}: more than {most}, {why}{mend}")
    if sizes[-1] > case.devices_per_node and not apart:
        one = f"only one node of {case.devices_per_node} devices was measured"
        why = one if case.setting.link == "none" else "the rate of the network between nodes is unknown"
        mend = ", or measure two nodes" if case.setting.link == "none" else ""
        raise UsageError(f"{whose}: {why}: give the network between nodes, --network ib:100{mend}")
    return sizes


def _usual(case: Case, most: int) -> tuple[int, ...]:
    """Doublings beyond the run up to `most`, or the first alone."""
    first = case.devices_per_node if case.cold else 2 * case.largest
    sizes = [first * 2**power for power in range(DOUBLINGS)]
    return tuple(size for size in sizes if size <= max(most, first))


def _sizes(words: str) -> tuple[int, ...]:
    if spanned := re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", words):
        first, last = int(spanned[1]), int(spanned[2])
        if 0 < first <= last:
            return tuple(size for power in range(40) if (size := first * 2**power) <= last)
    elif re.fullmatch(r"\d{1,9}(,\d{1,9})*", words):
        sizes = sorted({int(word) for word in words.split(",")})
        if sizes[0] > 0:
            return tuple(sizes)
    raise UsageError(f"--world-sizes {words}: write 32,64,128 or 32..1024")


def supposed(asked: Asked, case: Case, relief: Relief | None = None) -> tuple[str, ...]:
    asked = Asked(compress=asked.compress) if case.cold else asked  # --cold: all else is the case
    apart = (one.at for one in case.measured if one.at.nodes > case.layout(one.at.world_size).nodes)
    spread = next((f"N={at.world_size} was measured on {at.nodes} nodes" for at in apart), "")
    said = (
        (relief, _relieved(relief) if relief else ""),
        (asked.network, f"over {asked.network}, which was not measured{_as_tcp(asked.network, case)}"),
        (
            asked.batch_size not in (None, case.batch_size),
            f"batch {asked.batch_size} per device; measured rows have batch {case.batch_size}",
        ),
        (asked.model not in ("", case.model), f"model {asked.model}; measured rows are of {case.model}"),
        (asked.rate, f"{asked.rate or 0:g} {case.unit}/s on one device, as --rate says"),
        (asked.compress > 1, f"gradients / {asked.compress:g}; the cost of compressing them is not counted"),
        (asked.devices_per_node, f"{asked.devices_per_node} devices a node"),
        (spread and not asked.devices_per_node, f"nodes are filled; {spread}"),
    )
    return tuple(f"what if: {text}" for given, text in said if given)


def _as_tcp(words: str, case: Case) -> str:
    carried_by_tcp = not case.verbs and words.partition(":")[0].lower() in RDMA
    return f"; {case.strategy} sends TCP there, not RDMA" if carried_by_tcp else ""


def _relieved(relief: Relief) -> str:
    saved = f"{100 * relief.share:.1f} % of a step"
    apart = abs(relief.faster - 1) >= 0.001
    alone = f"; alone, the other devices are {100 * (relief.faster - 1):+.1f} % faster than all" if apart else ""
    return f"without {relief.node}: the others wait {saved} for its ranks (`together`){alone}"
