"""The optimisers of the models' recipes, with the constants that Keras gives them where a recipe says nothing.

Workers send theirs to the servers by pickle. A server loads this file while its own `import mxnet` is under way,
when Gluon is not there yet: it imports nothing of the loop.
"""

from __future__ import annotations

from typing import Any

from scaling.frameworks.mx.library import mx
from scaling.workloads.specs import Recipe

EPSILON = 1e-7


def make(recipe: Recipe, options: dict[str, Any]) -> mx.optimizer.Optimizer:
    """One of a recipe, with `options` of every optimiser beside."""
    kind, constants = {
        "sgd": (mx.optimizer.SGD, {"momentum": recipe.momentum}),
        "rmsprop": (mx.optimizer.RMSProp, {"gamma1": 0.9, "epsilon": EPSILON}),
        "adadelta": (Adadelta, {"rho": 0.95, "epsilon": EPSILON}),
        "adam": (mx.optimizer.Adam, {"epsilon": EPSILON}),
        "adamw": (AdamW, {"epsilon": EPSILON}),
    }[recipe.optimizer]
    return kind(learning_rate=recipe.rate, wd=recipe.decay, **constants, **options)


def set_rate(trainer: Any, rate: float) -> None:
    """Another learning rate of a gluon.Trainer.

    What SGD has gathered is in units of the old one and is turned to the new, as if the rate came last, as torch
    has it and the paper on large batches (Goyal 2017, remark 2, "momentum correction").
    """
    before = trainer.learning_rate
    if isinstance(trainer.optimizer, mx.optimizer.SGD) and before and rate != before:
        # Those of each device, or of the kvstore where that updates.
        for updater in (*trainer._updaters, getattr(trainer._kvstore, "_updater", None)):
            for state in getattr(updater, "states", {}).values():
                # In fp16 it has the weights in fp32 beside it.
                gathered = state[0] if isinstance(state, tuple) else state
                if gathered is not None:
                    gathered *= rate / before
    trainer.set_learning_rate(rate)


class Adadelta(mx.optimizer.AdaDelta):  # type: ignore[misc]
    """Zeiler 2012 with a learning rate, which MXNet's own has not; weight decay is L2."""

    def update(self, index: Any, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: Any) -> None:
        """As Keras and torch do it."""
        self._update_count(index)
        gradient = grad * self.rescale_grad + self._get_wd(index) * weight
        squares, deltas = state
        squares[:] = self.rho * squares + (1 - self.rho) * gradient * gradient
        delta = mx.nd.sqrt(deltas + self.epsilon) / mx.nd.sqrt(squares + self.epsilon) * gradient
        deltas[:] = self.rho * deltas + (1 - self.rho) * delta * delta
        weight[:] -= self._get_lr(index) * delta


class AdamW(mx.optimizer.Adam):  # type: ignore[misc]
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), which MXNet 1.9 lacks."""

    wd: float

    def update(self, index: Any, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: Any) -> None:
        """The decay, then Adam without it."""
        # The rate of the step that is under way does not depend on its number.
        weight[:] *= 1 - self._get_lr(index) * self._get_wd(index)
        decay = self.wd
        self.wd = 0.0
        super().update(index, weight, grad, state)
        self.wd = decay
