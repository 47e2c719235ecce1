"""The file of priors as text. Pure."""

from __future__ import annotations

import json
from math import exp

from scaling.predict.beliefs import BELIEFS, Belief
from scaling.predict.priors import Prior, Priors

_HEAD = """\
# What scaling.predict believes of clusters before any is measured. Written by
#     python -m scaling.predict.learn {name}
# Expectation maximisation over random effects, one cluster being one draw; a series counts 1 / sqrt(series of its
# source), half of that at trust B; `before` counts as one. `mean` and `sd` are of the logarithm (of the logit of
# `hide.*`, of the value itself for `wire`); `value` and `factor` are the median and what one standard deviation
# multiplies it by.
"""


def toml(priors: Priors, name: str) -> str:
    """The file: the walk, then each constant with what taught it."""
    walk = priors.walk
    lines = [
        _HEAD.format(name=name),
        "# Standard deviations of ln(efficiency): per doubling in a node, on leaving it, per doubling of nodes.",
        "[walk]",
        *(f"{kind} = {getattr(walk, kind):.4f}" for kind in ("inside", "leaving", "beyond")),
        f"freedom = {walk.freedom:g}",
    ]
    for key, prior in priors.constants.items():
        lines += ["", f'[constants."{key}"]', *_entry(prior, BELIEFS[key])]
    return "\n".join(lines) + "\n"


def before(belief: Belief) -> str:
    """What was believed, in words."""
    sign = "±" if belief.unit == "logit" else "x/÷"
    return f"{belief.value:g} {sign} {belief.factor:g}: {belief.source}"


def _entry(prior: Prior, belief: Belief) -> list[str]:
    logit = belief.unit == "logit"
    value = 1 / (1 + exp(-prior.mean)) if logit else exp(prior.mean)
    told = [] if belief.unit.startswith("above") else [f"value = {value:.4g}"]
    told += [] if logit or belief.unit.startswith("above") else [f"factor = {exp(prior.sd):.3g}"]
    unit = "share hidden, believed in as a logit" if logit else belief.unit
    return [
        f"mean = {prior.mean:.4f}",
        f"sd = {prior.sd:.4f}",
        *told,
        f"unit = {json.dumps(unit)}",
        f"before = {json.dumps(before(belief), ensure_ascii=False)}",
        f"series = {prior.series}",
        f"sources = [{', '.join(json.dumps(source, ensure_ascii=False) for source in prior.sources)}]",
    ]
