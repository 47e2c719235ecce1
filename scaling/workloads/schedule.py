"""The schedule of a training to an accuracy: the steps of its epochs, and the learning rate.

How the rate grows with the samples of an update:
* linear: in proportion (Goyal 2017, "Accurate, Large Minibatch SGD")
* sqrt: by the root (Krizhevsky 2014, "One weird trick", section 5; Malladi 2022 for Adam and RMSprop)
"""

from __future__ import annotations

import math

from scaling.records.point import LrScale, Optimizer, Regime

# The default rules. Adadelta adapts its rate.
RULES: dict[Optimizer, LrScale] = {
    "sgd": "linear",
    "rmsprop": "sqrt",
    "adam": "sqrt",
    "adamw": "sqrt",
    "adadelta": "none",
}
STEP = 0.1


def scaled(rate: float, rule: LrScale, times: float) -> float:
    return rate * {"linear": times, "sqrt": math.sqrt(times), "none": 1.0}[rule]


def steps_before(epoch: int, *, samples: int, world_size: int, batch_size: int) -> int:
    """Return every rank's steps before an epoch, counted from 0. By then every sample was seen `epoch` times.
    Shards may differ by one sample and all batches are full, so a few samples of the next epoch are seen too."""
    shard = -(-samples // world_size)
    return -(-epoch * shard // batch_size)


def rate(regime: Regime, epochs: float) -> float:
    """Return the learning rate after so many epochs, which may be a fraction."""
    peak, base = regime.rate, regime.base_rate
    if epochs < regime.warmup_epochs:
        return base + (peak - base) * epochs / regime.warmup_epochs
    return peak * STEP ** sum(epochs >= step for step in regime.lr_steps)


def varies(regime: Regime) -> bool:
    return bool(regime.warmup_epochs or regime.lr_steps)
