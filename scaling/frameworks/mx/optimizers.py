"""The optimisers of models' recipes, and the one of asynchronous servers.

Workers send them to servers by pickle. A server that is no fork loads this file during its own `import mxnet`,
before Gluon exists. So this file must not import the loop. Constants that a recipe lacks are those of Keras.
"""

from __future__ import annotations

from typing import Any

from scaling.frameworks.mx.library import mx
from scaling.workloads.specs import Recipe

EPSILON = 1e-7


def make_optimizer(recipe: Recipe, options: dict[str, Any]) -> mx.optimizer.Optimizer:
    """Make a recipe's optimiser, with further `options` that every optimiser takes."""
    kind, constants = {
        "sgd": (mx.optimizer.SGD, {"momentum": recipe.momentum}),
        "rmsprop": (mx.optimizer.RMSProp, {"gamma1": 0.9, "epsilon": EPSILON}),
        "adadelta": (Adadelta, {"rho": 0.95, "epsilon": EPSILON}),
        "adam": (mx.optimizer.Adam, {"epsilon": EPSILON}),
        "adamw": (AdamW, {"epsilon": EPSILON}),
    }[recipe.optimizer]
    return kind(learning_rate=recipe.rate, wd=recipe.decay, **constants, **options)


def set_rate(trainer: Any, rate: float) -> None:
    """Set the learning rate of a gluon.Trainer. SGD's momentum includes the old rate and is rescaled to the new
    one: as in torch and in Goyal 2017, remark 2, "momentum correction"."""
    before = trainer.learning_rate
    if isinstance(trainer.optimizer, mx.optimizer.SGD) and before and rate != before:
        # One for each device, or the kvstore's if that updates.
        for updater in (*trainer._updaters, getattr(trainer._kvstore, "_updater", None)):
            for state in getattr(updater, "states", {}).values():
                # In fp16 the state is a pair with the weights in fp32.
                gathered = state[0] if isinstance(state, tuple) else state
                if gathered is not None:
                    gathered *= rate / before
    trainer.set_learning_rate(rate)


class Adadelta(mx.optimizer.AdaDelta):  # type: ignore[misc]
    """AdaDelta (Zeiler 2012) with a learning rate, which MXNet's own lacks. Weight decay is L2."""

    def update(self, index: Any, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: Any) -> None:
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
        # This step's learning rate does not depend on its number.
        weight[:] *= 1 - self._get_lr(index) * self._get_wd(index)
        decay = self.wd
        self.wd = 0.0
        super().update(index, weight, grad, state)
        self.wd = decay


class CountingSGD(mx.optimizer.SGD):  # type: ignore[misc]
    """SGD that adds 1 to the weight of key `counter` with each push to it."""

    def __init__(self, counter: int, options: dict[str, Any]) -> None:
        super().__init__(**options)
        self._made_of = counter, options

    def __reduce__(self) -> tuple[type[CountingSGD], tuple[int, dict[str, Any]]]:
        return CountingSGD, self._made_of

    def update_multi_precision(
        self, index: Any, weight: mx.nd.NDArray | list[mx.nd.NDArray], grad: Any, state: Any
    ) -> None:
        """Update one key: the index is a key or a sequence of one."""
        counter = self._made_of[0]
        if index in (counter, (counter,), [counter]):
            for each in weight if isinstance(weight, list | tuple) else [weight]:
                each += 1  # noqa: PLW2901  in place
        else:
            super().update_multi_precision(index, weight, grad, state)
