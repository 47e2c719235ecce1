"""What-ifs that published series answer: one of a source predicts another whose batch or model differs, all else
equal, of which one device's rate is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import asdict

from scaling.tools.predict import infer
from scaling.tools.predict.forecast import carried
from scaling.tools.predict.priors import Priors
from scaling.tools.predict.published import Series
from scaling.tools.predict.setting import Known

STEP = {"step_s", "step_spread"}
MODEL = STEP | {"gradient_bytes", "tail", "tensors", "sparse_bytes"}


class Answer(NamedTuple):
    """A point of the other series: points of efficiency off, and whether it fell inside the 80 % interval."""

    what: str
    error: float
    inside: bool


def answers(series: Sequence[Series], priors: Priors, every: int = 1) -> Iterator[Answer]:
    """Of every so many pairs, all points at world sizes that both have."""
    pairs = [(one, other, what) for one in series for other in series if (what := _asks(one, other))]
    for one, other, what in pairs[::every]:
        found = carried(infer.posterior(one.setting, Known(one.anchor, one.observed), priors), other.setting)
        known = {seen.at for seen in one.observed}
        for seen in other.observed:
            if seen.at in known:
                drawn = infer.predict(found, [seen.at])
                ends = np.exp(infer.quantiles(drawn.log_efficiency, drawn.weights, [0.1, 0.5, 0.9]))[:, 0]
                yield Answer(what, 100 * abs(float(ends[1]) - seen.value), bool(ends[0] <= seen.value <= ends[2]))


def _asks(one: Series, other: Series) -> str:
    """What differs between two series of one source; "" where that is not one of these."""
    if one is other or one.source != other.source or len(one.observed) < 2:
        return ""
    if (one.anchor.world_size, other.anchor.world_size) != (1, 1):
        return ""
    ours, theirs = asdict(one.setting), asdict(other.setting)
    differing = {name for name in ours if ours[name] != theirs[name]}
    if differing and differing <= STEP:
        return "batch"
    return "model" if "gradient_bytes" in differing and differing <= MODEL else ""


def table(found: Sequence[Answer]) -> str:
    lines = []
    for what in ("batch", "model"):
        errors = np.array([one.error for one in found if one.what == what])
        inside = float(np.mean([one.inside for one in found if one.what == what]))
        median, ninth = np.median(errors), np.quantile(errors, 0.9)
        off = f"off by {median:.1f} / {ninth:.1f}"
        lines.append(f"another {what}: {len(errors)} points, {off}, 80 % covers {100 * inside:.0f} %")
    return "\n".join(lines)
