"""The learn command, `python -m scaling predict learn PUBLISHED`, writes the file of priors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import exp, isfinite

from scaling.command import obey, show
from scaling.errors import UsageError
from scaling.tools.predict import flags, published
from scaling.tools.predict.learn import fitting
from scaling.tools.predict.learn.fitting import BELIEFS, Belief
from scaling.tools.predict.priors import Prior, Priors

_HEAD = """\
# What scaling predict believes of clusters before any is measured. Written by
#     python -m scaling predict learn {name}
# Expectation maximisation over random effects, one cluster being one draw; each publisher counts once, at trust B
# half; `before` counts as one. `mean` and `sd` are of the logarithm (of the logit of `hide.*`, of the value itself
# for `wire` and exponents); `value` and `factor` are the median and what one standard deviation multiplies it by.
"""


def priors_toml(priors: Priors, name: str) -> str:
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


def priors_before(belief: Belief) -> str:
    """Describe the belief before learning: `0.94 x/÷ 1.06: source`."""
    sign = "±" if belief.unit in ("logit", fitting.POWER) else "x/÷"
    return f"{belief.value:g} {sign} {belief.factor:g}: {belief.source}"


def _entry(prior: Prior, belief: Belief) -> list[str]:
    logit, plain = belief.unit == "logit", belief.unit == fitting.POWER or belief.unit.startswith("above")
    value = 1 / (1 + exp(-prior.mean)) if logit else exp(prior.mean)
    told = [] if plain else [f"value = {value:.4g}"]
    told += [] if logit or plain else [f"factor = {exp(prior.sd):.3g}"]
    unit = "share hidden, believed in as a logit" if logit else belief.unit
    return [
        f"mean = {prior.mean:.4f}",
        f"sd = {prior.sd:.4f}",
        *told,
        f"unit = {json.dumps(unit)}",
        f"before = {json.dumps(priors_before(belief), ensure_ascii=False)}",
        f"series = {prior.series}",
        f"publishers = [{', '.join(map(json.dumps, prior.publishers))}]",
    ]


def learn(asked: flags.LearnAsked) -> str:
    """Write the file and return a summary. Raises UsageError."""
    names = " ".join(map(str, asked.published))
    tables = [one for path in asked.published for one in published.read(path)]
    series = published.series(tables)
    taught = [one for one in series if one.trust in ("A", "B")]
    if not taught:
        raise UsageError(f"{names}: no series of trust A or B with two points and known gradients")
    priors = fitting.learn(taught)
    if wrong := [name for name, one in priors.constants.items() if not isfinite(one.mean + one.sd)]:
        raise UsageError(f"{names}: {wrong[0]} cannot be learned from these series; nothing was written")
    try:
        asked.output.write_text(
            priors_toml(priors, " ".join(path.name for path in asked.published)), encoding="utf-8"
        )
    except OSError as error:
        raise UsageError(f"--output {asked.output}: {error.strerror}") from None
    publishers = len({one.publisher for one in taught})
    said = f"{len(priors.constants)} priors from {len(taught)} series of {publishers} publishers"
    rest = len(tables) - len(taught)
    return f"{asked.output}: {said}{f'; {rest} not used (trust C, or numbers missing)' if rest else ''}\n"


def _act(argv: Sequence[str]) -> None:
    if asked := flags.parse_learn(argv):
        show(learn(asked))


def main(argv: Sequence[str] | None = None) -> int:
    return obey(_act, argv, flags.LEARN)


if __name__ == "__main__":
    raise SystemExit(main())
