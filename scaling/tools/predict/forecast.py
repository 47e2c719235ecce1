"""Forecasts of unmeasured world sizes and settings, and which point to measure next."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

from scaling.records.point import Record
from scaling.tools.predict.model import Fit, fit, predict
from scaling.tools.predict.setting import At, Known, Observed, Setting, read

# intervals with a larger half width are not claimed
WIDEST = 0.15
# no published efficiency is below (the lowest is 6.5 %: BERT-Large over 10 GbE on 32 devices)
LOWEST = 0.05
# a measured efficiency this far outside the interval of published clusters is reported
FAR_OFF = 0.05
# a prediction of which measurements explain less than this share of the variance rests on the priors
LEAST_WEIGHT = 0.1
NORMAL_95 = 1.96
# remaining standard deviation of the logarithm of a point, and of `comm`, that are measured next
MEASURED_NOISE, COMM_NOISE = 0.01, 0.05


class Measured(Record, frozen=True, kw_only=True):
    """A measured world size. The ends are of the efficiency's 95 % interval over rounds."""

    at: At
    samples_per_s: float
    efficiency: float
    low: float | None = None
    high: float | None = None


class Case(NamedTuple):
    """What is known before a prediction.

    * rate, rates: samples/s of one device alone; also by model and batch size
    * largest: largest measured world size
    * unclaimed: why no prediction of the case is claimed
    """

    setting: Setting
    known: Known
    rate: float
    batch_size: int
    unit: str
    devices_per_node: int
    title: str = ""
    measured: tuple[Measured, ...] = ()
    largest: int = 1
    rates: tuple[tuple[str, int, float], ...] = ()
    model: str = ""
    strategy: str = ""
    interconnect: str = ""
    cold: bool = False
    device: str = ""
    units_per_sample: int = 1
    notes: tuple[str, ...] = ()
    command: str = "python -m scaling.run"
    unclaimed: str = ""

    def layout(self, world_size: int) -> At:
        """Place devices, filling one node after the other."""
        nodes, each = -(-world_size // self.devices_per_node), min(world_size, self.devices_per_node)
        return At(world_size=world_size, nodes=nodes, each=each, accumulation=self.known.anchor.accumulation)


class Forecast(Record, frozen=True, kw_only=True):
    """One predicted world size: the efficiency, 80 % intervals, and parts as fractions of the step.

    `unclaimed`: why it is not claimed. `by_priors`: the measurements say nothing of it.
    """

    at: At
    samples_per_s: float
    samples_per_s_low: float
    samples_per_s_high: float
    efficiency: float
    low: float
    high: float
    contention: float
    straggling: float
    exposed: float
    unexplained: float
    unclaimed: str = ""
    by_priors: bool = False

    @property
    def cause(self) -> str:
        """The largest part, "" if all are below 0.005."""
        largest, name = max(
            (self.contention, "contention"), (self.straggling, "stragglers"), (self.exposed, "the exchange"),
            (self.unexplained, "unexplained"), key=lambda part: part[0],
        )  # fmt: skip
        return name if largest > 0.005 else ""


class Next(NamedTuple):
    """The point to measure next. `now` and `then` are half widths at the asked world size, before and after."""

    what: str
    asked: int
    now: float
    then: float


class Outlook(NamedTuple):
    """A case, its fit, which has the asked setting, and the rate of one device there."""

    case: Case
    fit: Fit
    rate: float


def doubts(case: Case) -> tuple[str, ...]:
    """Say which measured points no published cluster is like, and which say little."""
    seen, said = case.known.observed, []
    if not seen:
        return ()
    usual = predict(fit(case.setting, Known(case.known.anchor), read()), [one.at for one in seen])
    for one, low, high in zip(seen, usual.low, usual.high, strict=True):
        off = exp(NORMAL_95 * one.noise)
        least, most = one.value / off, one.value * off
        told = f"N={one.at.world_size} was measured at {100 * one.value:.0f} %"
        told += f" ({100 * least:.0f} to {100 * most:.0f} %)"
        if max(low - most, least - high) > 0 and max(low - one.value, one.value - high) > FAR_OFF:
            usually = f"published clusters like it have {100 * low:.0f} to {100 * high:.0f} %"
            said.append(f"{told}, but {usually}: predictions follow the measurement, and are wider")
        elif one.value - least > WIDEST:
            said.append(f"{told}: it weighs little; more --rounds make it weigh more")
    return tuple(said)


def forecasts(look: Outlook, world_sizes: Sequence[int]) -> tuple[Forecast, ...]:
    return tuple(_forecast(look, look.case.layout(size)) for size in world_sizes)


def _forecast(look: Outlook, at: At) -> Forecast:
    found = predict(look.fit, [at])
    middle, low, high = (float(one[0]) for one in found[:3])
    parts, ideal, unclaimed = found.parts, at.world_size * look.rate, look.case.unclaimed
    contention, straggling, exposed = (
        float(seconds[0] / parts.step_s[0])
        for seconds in (parts.contention_s, parts.straggling_s, parts.exposed_s)
    )
    if not unclaimed and (high - low) / 2 > WIDEST:
        unclaimed = f"the interval is wider than ± {100 * WIDEST:.0f} points"
    elif not unclaimed and middle < LOWEST:
        no = "which no published cluster has; check --rate"
        unclaimed = f"an efficiency below {100 * LOWEST:.0f} %, {no}"
    return Forecast(
        at=at, samples_per_s=ideal * middle, samples_per_s_low=ideal * low, samples_per_s_high=ideal * high,
        efficiency=middle, low=low, high=high, contention=contention, straggling=straggling, exposed=exposed,
        unexplained=1 - middle - contention - straggling - exposed, unclaimed=unclaimed,
        by_priors=bool(look.case.known.observed) and float(found.weight[0]) < LEAST_WEIGHT,
    )  # fmt: skip


def measure_next(look: Outlook, asked: int) -> Next | None:
    """Find the point that narrows the interval at `asked` most; None if none helps."""
    case, known, setting = look.case, look.case.known, look.fit.asked
    first = case.largest if case.largest > 1 else max(1, case.devices_per_node // 2)
    sizes = [size for size in (2 * first, 4 * first) if 1 < size < asked]
    if not sizes or (case.setting != setting and case.cold):
        return None
    found = predict(look.fit, [case.layout(size) for size in sizes])
    tried = {"": known}
    for size, value in zip(sizes, found.efficiency, strict=True):
        seen = Observed(at=case.layout(size), value=float(value), noise=MEASURED_NOISE)
        tried[f"N={size}"] = known._replace(observed=(*known.observed, seen))
    if not case.cold and not any(one.of == "exchange" for one in known.controls):
        seconds = float(found.parts.exchange_s[0])
        comm = Observed(at=case.layout(sizes[0]), value=seconds, noise=COMM_NOISE, of="exchange")
        tried[f"comm at N={sizes[0]}"] = known._replace(controls=(comm, *known.controls))
    widths = {}
    for what, more in tried.items():
        then = predict(fit(case.setting, more, read(), setting), [case.layout(asked)])
        widths[what] = float(then.high[0] - then.low[0]) / 2
    what = min(list(widths)[1:], key=lambda name: widths[name])
    return Next(what, asked, widths[""], widths[what]) if widths[what] < 0.97 * widths[""] else None
