"""Sweeps of passes: what of a step is timed by itself, by whom, and on how many devices. Pure.

The forward pass and the backward one exchange nothing, so that they are those of a plain loop on one device.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaling import frameworks
from scaling.errors import UsageError
from scaling.plan.config import SweepConfig


def check(config: SweepConfig) -> None:
    """Refuse strategies that exchange, or of which nobody knows that they can do a part of a step."""
    text = ",".join(config.pass_)
    for name in config.strategy or () if config.has_passes else ():
        strategy = frameworks.load(name)
        if name != strategy.baseline:
            raise UsageError(
                f"--pass {text}: {name} exchanges gradients, which passes do without; use --strategy "
                f"{strategy.baseline}"
            )
        if lacking := [one for one in config.pass_ if one not in strategy.traits(name).passes]:
            raise UsageError(f"--pass {text}: {name} has no {lacking[0]} pass by itself, only whole steps")


def is_own_baseline(config: SweepConfig, name: str) -> bool:
    """Whether a strategy is the plain loop that a sweep over passes or batches is about, and needs no other."""
    return name == frameworks.load(name).baseline and (config.has_passes or config.batch_sizes is not None)


def world_sizes(config: SweepConfig, defaults: Sequence[int]) -> tuple[int, ...]:
    """Those that are given; else one device for passes, `defaults` for whole steps.

    Raises UsageError where passes are asked for on several devices.
    """
    if not config.has_passes:
        return config.world_sizes or tuple(defaults)
    sizes = config.world_sizes or (1,)
    if sizes != (1,):
        raise UsageError(
            f"--world-sizes {','.join(map(str, sizes))} with --pass {','.join(config.pass_)}: passes are timed on "
            "one device, since they exchange nothing; leave it out"
        )
    return sizes
