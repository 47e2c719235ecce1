"""World sizes that were not measured: what is predicted of each, and what to measure next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scaling.records.point import Record
from scaling.tools.predict import infer, latent
from scaling.tools.predict.case import Case
from scaling.tools.predict.infer import Posterior
from scaling.tools.predict.model import Floats
from scaling.tools.predict.priors import Priors
from scaling.tools.predict.setting import At, Setting

LOW, HIGH = 0.1, 0.9
# An interval wider than this is no claim.
WIDEST = 0.15
# Nor is one whose ends no draw is beyond.
LEAST_DRAWS = 10
# How many times the largest measured world size; without any, the largest that was published.
FARTHEST, FARTHEST_COLD = 64, 1024
# Where another batch, or another model, is asked of than was measured: how far what the equations lack is the same
# there (a correlation), and how many times its spread, so that 80 % of published points fell inside that were each
# predicted from another series of its source (`python -m tests.bench.predict --what-if`).
ANOTHER_BATCH, ANOTHER_MODEL = (0.5, 1.0), (0.25, 2.0)
LEAST_LOSS = 0.01
# With fewer even draws than these an interval is hardly known; and a measured efficiency that is this far off, and
# outside of its own interval, is not what the equations describe.
FEW_DRAWS, FAR_OFF = 50, 0.05
# What measuring a point leaves of it unknown, as a standard deviation of its logarithm.
MEASURED_NOISE = 0.01


class Forecast(Record, frozen=True, kw_only=True):
    """One PREDICTED world size: medians with the ends of their 80 % interval; parts are fractions of the step,
    `unexplained` what the model does not tell."""

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
        """What costs most."""
        parts = {
            "contention": self.contention,
            "stragglers": self.straggling,
            "the exchange": self.exposed,
            "unexplained": self.unexplained,
        }
        name, most = max(parts.items(), key=lambda part: part[1])
        return name if most > 0.005 else ""


class Next(NamedTuple):
    """What to measure next: the half width at the asked world size, now and then."""

    what: str
    asked: int
    now: float
    then: float


class Outlook(NamedTuple):
    """A case looked into: what was inferred under it, and what is asked under a changed setting. `doubts` say
    where the model does not fit what was measured."""

    case: Case
    posterior: Posterior
    rate: float
    doubts: tuple[str, ...] = ()


def outlook(case: Case, priors: Priors, changed: Setting | None = None, rate: float | None = None) -> Outlook:
    """Infer from what was measured; then carry what was learned over to `changed`."""
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
            f"what was measured is far from all that taught the model: intervals rest on {found.even:.0f} draws"
        )
    if not seen:
        return tuple(said)
    predicted = infer.predict(found, [one.at for one in seen])
    ends = np.exp(infer.quantiles(predicted.log_efficiency, predicted.weights, [LOW, 0.5, HIGH]))
    for one, (low, middle, high) in zip(seen, ends.T, strict=True):
        if not low <= one.value <= high and abs(middle - one.value) > FAR_OFF:
            measured, says = f"{100 * one.value:.0f} %", f"{100 * low:.0f} to {100 * high:.0f} %"
            was = f"without {without} would be at" if without else "was measured at"
            said.append(
                f"N={one.at.world_size} {was} {measured}, where the model says {says}: it lacks what "
                "happened there, and may in what follows"
            )
    return tuple(said)


def carried(found: Posterior, changed: Setting) -> Posterior:
    """The posterior under another setting: constants that both have stay as inferred, new ones are drawn anew.

    On another network what the model missed across nodes is forgotten, not carried.
    """
    names = latent.keys(changed)
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
    """How far what the model lacks is the same, and by how much its spread grows."""
    if new.gradient_bytes != old.gradient_bytes:
        return ANOTHER_MODEL
    return ANOTHER_BATCH if (new.step_s, new.compress) != (old.step_s, old.compress) else (1.0, 1.0)


def _as_much_to_lose(here: Posterior, there: Posterior) -> Floats:
    """What the model missed was missed of what was lost: where less is lost, as much less of it is carried on."""
    seen = [one.at for one in there.known.observed]
    if not seen:
        return np.ones((len(there.z), 0))
    lost, left = (np.maximum(1 - np.exp(infer.relative(one, seen)), LEAST_LOSS) for one in (here, there))
    return np.asarray(np.minimum(left / lost, 1.0))


def forecasts(look: Outlook, world_sizes: Sequence[int]) -> tuple[Forecast, ...]:
    """Predict each of these world sizes by itself, so that none depends on what else is asked."""
    return tuple(forecast(look, look.case.layout(size)) for size in world_sizes)


def forecast(look: Outlook, at: At) -> Forecast:
    """Predict one world size on as many nodes as it has."""
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
        claimed=(high - low) / 2 <= WIDEST and look.posterior.even >= LEAST_DRAWS,
    )


# ---------------------------------------------------------------- what to measure next


def measure_next(look: Outlook, asked: int) -> Next | None:
    """The point that would narrow the interval at the `asked` world size most, None where none would.

    Of two quantities that are jointly normal, knowing one leaves 1 - correlation^2 of the other's variance: so no
    outcome need be imagined.
    """
    case = look.case
    sizes = _candidates(case, asked)
    target = case.layout(asked)
    points = [case.layout(size) for size in sizes]
    predicted = infer.predict(look.posterior, [*points, target])
    weights, values = predicted.weights, predicted.log_efficiency
    goal = values[:, -1]
    ends = np.exp(infer.quantiles(values[:, [-1]], weights, [LOW, HIGH]))
    now = float(ends[1, 0] - ends[0, 0]) / 2
    left = {
        f"N={size}": _left(weights, values[:, index], goal, MEASURED_NOISE) for index, size in enumerate(sizes)
    }
    if not case.known.exchanges and not case.cold:
        exchange = np.log(np.maximum(predicted.parts.exchange_s, 1e-9))
        for index, size in enumerate(sizes[:1]):
            left[f"comm at N={size}"] = _left(weights, exchange[:, index], goal, 0.05)
    if not left:
        return None
    what = min(left, key=lambda name: left[name])
    return Next(what, asked, now, now * left[what]) if left[what] < 0.97 else None


def _candidates(case: Case, asked: int) -> list[int]:
    """World sizes that are within reach: up to four times what was measured, below what is asked."""
    first = case.largest if case.largest > 1 else max(1, case.devices_per_node // 2)
    return [size for size in (2 * first, 4 * first) if 1 < size < asked]


def _left(weights: Floats, one: Floats, goal: Floats, noise: float) -> float:
    """The share of the goal's standard deviation that knowing `one` would leave."""
    a, b = one - weights @ one, goal - weights @ goal
    own, other, both = float(weights @ a**2), float(weights @ b**2), float(weights @ (a * b))
    return float(np.sqrt(max(0.0, 1 - both**2 / max(other * (own + noise**2), 1e-18))))
