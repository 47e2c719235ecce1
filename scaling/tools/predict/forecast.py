"""Forecasts of unmeasured world sizes, and which point to measure next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from scaling.errors import UsageError, near
from scaling.records.point import Record
from scaling.tools.predict import infer, model
from scaling.tools.predict.infer import Posterior
from scaling.tools.predict.model import Floats
from scaling.tools.predict.priors import Priors
from scaling.tools.predict.setting import At, Known, Link, Setting, tcp_link

GBIT_BYTES = 1e9 / 8
# Fast Ethernet
SLOWEST_GBIT = 0.1
# words of --network
RDMA, TCP = ("ib", "roce", "rdma"), ("tcp", "eth", "ipoib")


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
    * without: a node whose delay was removed from the measurements
    * emulated: links are shaped, so shares of the line hold
    """

    title: str
    setting: Setting
    known: Known
    rate: float
    batch_size: int
    unit: str
    devices_per_node: int
    measured: tuple[Measured, ...] = ()
    largest: int = 1
    rates: tuple[tuple[str, int, float], ...] = ()
    model: str = ""
    strategy: str = ""
    interconnect: str = ""
    options: Mapping[str, str] = MappingProxyType({})
    without: str = ""
    emulated: bool = False
    cold: bool = False
    device: str = ""
    accumulation: int = 1
    units_per_sample: int = 1
    notes: tuple[str, ...] = ()
    command: str = "python -m scaling.run"

    @property
    def verbs(self) -> bool:
        """Whether the exchange uses RDMA if the network has it; Gloo sends TCP over any network."""
        return self.setting.carrier == "nccl"

    def titled(self, model: str = "", batch_size: int | None = None, over: str = "") -> Case:
        """Write the title, of the run's own work or of the asked one."""
        emulated = f", EMULATED {self.device}" if self.emulated else ""
        work = f"{model or self.model}, batch {batch_size or self.batch_size} per device"
        return self._replace(title=f"{self.strategy} over {over or self.interconnect}, {work}{emulated}")

    def layout(self, world_size: int) -> At:
        """Place devices, filling one node after the other."""
        nodes = -(-world_size // self.devices_per_node)
        return At(world_size=world_size, nodes=nodes, accumulation=self.accumulation)


class Wires(NamedTuple):
    """A network between nodes, in the words of `Setting`."""

    link: Link
    line_bytes_per_s: float
    cards: int = 1


def network(words: str, *, emulated: bool = False, verbs: bool = True) -> Wires:
    """Parse `ib:200` or `tcp:25x2`. Raises UsageError.

    Without verbs, InfiniBand carries TCP.
    """
    parsed = re.fullmatch(r"([a-z]+):(\d{1,6}(?:\.\d{1,6})?)(?:x(\d{1,3}))?", words.strip().lower())
    if not parsed:
        raise UsageError(f"--network {words}: write KIND:GBIT or KIND:GBITxCARDS, such as ib:200 or tcp:25x2")
    kind, gbit, cards = parsed[1], float(parsed[2]), int(parsed[3] or 1)
    if kind not in (*RDMA, *TCP):
        raise UsageError(f"--network {words}: unknown kind; {near(kind, (*RDMA, *TCP))}")
    if gbit < SLOWEST_GBIT or cards < 1:
        raise UsageError(f"--network {words}: give at least {SLOWEST_GBIT:g} Gb/s and one card")
    line = gbit * cards * GBIT_BYTES
    if emulated:
        return Wires("tcp10", line, cards)
    if kind in RDMA and verbs:
        return Wires("rdma_several" if cards > 1 else "rdma", line, cards)
    return Wires(tcp_link(gbit, infiniband=kind in ("ib", "ipoib")), line, cards)


LOW, HIGH = 0.1, 0.9
# intervals with a larger half width are not claimed
WIDEST = 0.15
# with fewer effective draws the ends of an interval are unknown
LEAST_DRAWS = 10
# no published efficiency is below (the lowest is 6.5 %: BERT-Large over 10 GbE on 32 devices)
LOWEST = 0.05
# limits: times the largest measured world size; without a run, the largest published one
FARTHEST, FARTHEST_COLD = 64, 1024
# (Correlation of the model error, factor of its spread) for another batch or model: chosen so that 80 % of
# published points are inside (`python -m tests.bench.predict --what-if`).
ANOTHER_BATCH, ANOTHER_MODEL = (0.5, 1.0), (0.25, 2.0)
LEAST_LOSS = 0.01
# with fewer effective draws, or a measured efficiency outside its interval by more, a warning is printed
FEW_DRAWS, FAR_OFF = 50, 0.05
NORMAL_95 = 1.96
# remaining standard deviation of the logarithm of a measured point
MEASURED_NOISE = 0.01


class Forecast(Record, frozen=True, kw_only=True):
    """One predicted world size: medians, 80 % intervals, and parts as fractions of the step."""

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
    claimed: bool = True

    @property
    def cause(self) -> str:
        """The largest part, "" if all are below 0.005."""
        parts = {
            "contention": self.contention,
            "stragglers": self.straggling,
            "the exchange": self.exposed,
            "unexplained": self.unexplained,
        }
        name, most = max(parts.items(), key=lambda part: part[1])
        return name if most > 0.005 else ""


class Next(NamedTuple):
    """The point to measure next. `now` and `then` are half widths at the asked world size, before and after."""

    what: str
    asked: int
    now: float
    then: float


class Outlook(NamedTuple):
    """The posterior of a case under the asked setting. `doubts` are warnings about a bad fit."""

    case: Case
    posterior: Posterior
    rate: float
    doubts: tuple[str, ...] = ()


def outlook(case: Case, priors: Priors, changed: Setting | None = None, rate: float | None = None) -> Outlook:
    found = infer.posterior(case.setting, case.known, priors)
    doubts = _doubts(found, case.without)
    if changed is not None:
        found = carried(found, changed)
    return Outlook(case, found, rate or case.rate, doubts)


def _doubts(found: Posterior, without: str) -> tuple[str, ...]:
    seen = found.known.observed
    said = []
    if found.even < FEW_DRAWS:
        said.append(
            f"the measurements are unlike all published clusters: intervals rest on {found.even:.0f} draws"
        )
    if not seen:
        return tuple(said)
    predicted = infer.predict(found, [one.at for one in seen])
    ends = np.exp(infer.quantiles(predicted.log_efficiency, predicted.weights, [LOW, 0.5, HIGH]))
    for one, (low, middle, high) in zip(seen, ends.T, strict=True):
        off = np.exp(NORMAL_95 * one.noise)
        least, most = one.value / off, one.value * off
        if (most < low or high < least) and abs(middle - one.value) > FAR_OFF:
            was = f"without {without} would be at" if without else "was measured at"
            said.append(
                f"N={one.at.world_size} {was} {100 * one.value:.0f} % ({100 * least:.0f} to {100 * most:.0f} %), "
                f"but the model says {100 * low:.0f} to {100 * high:.0f} %: it lacks a cause there, and perhaps "
                "also in predictions"
            )
    return tuple(said)


def carried(found: Posterior, changed: Setting) -> Posterior:
    """Transfer a posterior: shared constants stay as inferred, others are drawn. On another network the model's
    errors across nodes are dropped."""
    names = model.keys(changed)
    rng = np.random.default_rng(infer.SEED + 7)
    old = {name: index for index, name in enumerate(found.names.values())}
    columns = [
        found.z[:, old[name]] if name in old else rng.standard_normal(len(found.z)) for name in names.values()
    ]
    known, residuals = found.known, found.residuals
    if (changed.link, changed.line_bytes_per_s) != (found.setting.link, found.setting.line_bytes_per_s):
        kept = [index for index, one in enumerate(known.observed) if one.at.nodes == 1]
        known = known._replace(observed=[known.observed[index] for index in kept])
        residuals = residuals[:, kept]
    if changed.step_spread:
        columns.append(rng.standard_normal(len(found.z)))
    likeness, widening = _likeness(found.setting, changed)
    there = found._replace(
        setting=changed, names=names, known=known, z=np.column_stack(columns), residuals=residuals,
        likeness=likeness, widening=widening,
    )  # fmt: skip
    return there._replace(residuals=residuals * _as_much_to_lose(found, there))


def _likeness(old: Setting, new: Setting) -> tuple[float, float]:
    if new.gradient_bytes != old.gradient_bytes:
        return ANOTHER_MODEL
    return ANOTHER_BATCH if (new.step_s, new.compress) != (old.step_s, old.compress) else (1.0, 1.0)


def _as_much_to_lose(here: Posterior, there: Posterior) -> Floats:
    """The model's error belongs to the loss: with less loss, less error is transferred."""
    seen = [one.at for one in there.known.observed]
    if not seen:
        return np.ones((len(there.z), 0))
    lost, left = (np.maximum(1 - np.exp(infer.relative(one, seen)), LEAST_LOSS) for one in (here, there))
    return np.asarray(np.minimum(left / lost, 1.0))


def forecasts(look: Outlook, world_sizes: Sequence[int]) -> tuple[Forecast, ...]:
    return tuple(forecast(look, look.case.layout(size)) for size in world_sizes)


def forecast(look: Outlook, at: At) -> Forecast:
    predicted = infer.predict(look.posterior, [at])
    ends = np.exp(infer.quantiles(predicted.log_efficiency, predicted.weights, [0.5, LOW, HIGH]))
    middle, low, high = (float(value) for value in ends[:, 0])
    parts, ideal = predicted.parts, at.world_size * look.rate

    def share(seconds: Floats) -> float:
        return float(predicted.weights @ (seconds / parts.step_s)[:, 0])

    contention, straggling = share(parts.contention_s), share(parts.straggling_s)
    exposed = share(parts.exposed_s)
    return Forecast(
        at=at,
        samples_per_s=ideal * middle,
        samples_per_s_low=ideal * low,
        samples_per_s_high=ideal * high,
        efficiency=middle,
        low=low,
        high=high,
        contention=contention,
        straggling=straggling,
        exposed=exposed,
        unexplained=1 - middle - contention - straggling - exposed,
        claimed=(high - low) / 2 <= WIDEST and look.posterior.even >= LEAST_DRAWS and middle >= LOWEST,
    )


def measure_next(look: Outlook, asked: int) -> Next | None:
    """Find the point that narrows the interval at `asked` most; None if none helps. Knowing one of two jointly
    normal quantities leaves 1 - correlation^2 of the other's variance, so its value is not needed."""
    case = look.case
    sizes = _candidates(case, asked)
    target = case.layout(asked)
    points = [case.layout(size) for size in sizes]
    predicted = infer.predict(look.posterior, [*points, target])
    weights, values = predicted.weights, predicted.log_efficiency
    goal = values[:, -1]
    ends = np.exp(infer.quantiles(values[:, [-1]], weights, [LOW, HIGH]))
    now = float(ends[1, 0] - ends[0, 0]) / 2
    left = {f"N={size}": _left(weights, values[:, at], goal, MEASURED_NOISE) for at, size in enumerate(sizes)}
    if not left:
        return None
    if not case.known.exchanges and not case.cold:
        exchange = np.log(np.maximum(predicted.parts.exchange_s[:, 0], 1e-9))
        left[f"comm at N={sizes[0]}"] = _left(weights, exchange, goal, 0.05)
    what = min(left, key=lambda name: left[name])
    return Next(what, asked, now, now * left[what]) if left[what] < 0.97 else None


def _candidates(case: Case, asked: int) -> list[int]:
    first = case.largest if case.largest > 1 else max(1, case.devices_per_node // 2)
    return [size for size in (2 * first, 4 * first) if 1 < size < asked]


def _left(weights: Floats, one: Floats, goal: Floats, noise: float) -> float:
    a, b = one - weights @ one, goal - weights @ goal
    own, other, both = float(weights @ a**2), float(weights @ b**2), float(weights @ (a * b))
    return float(np.sqrt(max(0.0, 1 - both**2 / max(other * (own + noise**2), 1e-18))))
