"""How a training to an accuracy goes: the steps of its epochs and the learning rate of each. Pure.

linear    the rate in proportion to the samples of an update (Goyal 2017, "Accurate, Large Minibatch SGD")
sqrt      by their root (Krizhevsky 2014, "One weird trick", section 5; Malladi 2022 for Adam and RMSprop)
"""

from __future__ import annotations

import math

from scaling.records.point import LrScale, Optimizer, Regime

# What is taken where nobody says: Adadelta finds its rate by itself.
RULES: dict[Optimizer, LrScale] = {
    "sgd": "linear",
    "rmsprop": "sqrt",
    "adam": "sqrt",
    "adamw": "sqrt",
    "adadelta": "none",
}
STEP = 0.1


def scaled(rate: float, rule: LrScale, times: float) -> float:
    """The rate for updates of `times` as many samples."""
    return rate * {"linear": times, "sqrt": math.sqrt(times), "none": 1.0}[rule]


def steps_before(epoch: int, *, samples: int, world_size: int, batch_size: int) -> int:
    """Steps of every rank before an epoch begins, counted from 0: until then every sample was seen `epoch` times.

    Shards may differ by one sample, and steps have full batches, so that a few samples of the next epoch are seen.
    """
    shard = -(-samples // world_size)
    return -(-epoch * shard // batch_size)


def rate(regime: Regime, epochs: float) -> float:
    """The learning rate after so many epochs, of which a part may be over."""
    peak, base = regime.rate, regime.base_rate
    if epochs < regime.warmup_epochs:
        return base + (peak - base) * epochs / regime.warmup_epochs
    return peak * STEP ** sum(epochs >= step for step in regime.lr_steps)


def varies(regime: Regime) -> bool:
    """Whether the rate changes on the way."""
    return bool(regime.warmup_epochs or regime.lr_steps)
