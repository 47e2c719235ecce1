"""The Gluon training loop that all MXNet strategies share: they differ in their contexts and in the Trainer
that exchanges the gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.frameworks.base import Trainer
from scaling.frameworks.digest import digest_of
from scaling.frameworks.evaluating import Learnt
from scaling.frameworks.mx import native_feed, network, optimizers
from scaling.frameworks.mx.compute import Compute, RealCompute
from scaling.frameworks.mx.emulated import EmulatedCompute
from scaling.frameworks.mx.library import mx
from scaling.frameworks.mx.network import Network
from scaling.frameworks.mx.rank import MxnetRank
from scaling.frameworks.options import accumulated
from scaling.records.task import Task

# What feeds a rank, alone.
pipeline = native_feed.pipeline


def connect(task: Task) -> Trainer:
    """The plain loop of one device; raises what MXNet raises."""
    return Training(task)


class Exchange(MxnetRank):
    """A model's parameters and the gluon.Trainer that exchanges their gradients and updates them.

    Here it exchanges nothing. A strategy overrides some of `find_contexts`, `ranks`, `update_samples`,
    `make_trainer`, `start` and `update` in a subclass E, trains as `class (E, Training)`, and is measured without
    compute as `class (E, GradientExchange)`.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        emulated = task.point.hardware.device == "emulated"
        self.compute: Compute = EmulatedCompute(self) if emulated else RealCompute(self)
        self.device_name = self.compute.device_name
        self.net = self.compute.net
        # By name, in the model's order.
        self.trained = self.describe(self.net)
        if accumulated(task.point) > 1:
            for each in self.trained.values():
                each.grad_req = "add"
        self.trainer = self.make_trainer(self.trained, self.make_optimizer(self._options()))
        self.start()

    def update_samples(self) -> int:
        """Samples that the gradients of one update are summed over; the update is their mean."""
        return self.task.point.workload.batch_size

    def make_optimizer(self, options: dict[str, Any]) -> mx.optimizer.Optimizer:
        """The recipe's, with `options` of every optimiser."""
        return optimizers.make(self.compute.recipe, options)

    def make_trainer(
        self, parameters: dict[str, mx.gluon.Parameter], optimizer: mx.optimizer.Optimizer
    ) -> mx.gluon.Trainer:
        """The gluon.Trainer of these parameters."""
        return mx.gluon.Trainer(parameters, optimizer, kvstore=None)

    def start(self) -> None:
        """Join the exchange and give all ranks the same weights; equal seeds have made them equal already."""

    def update(self) -> None:
        """Exchange the gradients and update the weights, which the engine does later."""
        # Where nothing is trained, no gradient is ever fresh.
        self.trainer.step(1, ignore_stale_grad=True)

    def _options(self) -> dict[str, Any]:
        return {
            "rescale_grad": 1.0 / self.update_samples(),
            "multi_precision": self.dtype == "float16",
        }


class Training(Exchange):
    """The model's loss and optimiser: with the Exchange above the plain loop."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.samples = 0
        self._trains = task.point.workload.trains
        self.compute.begin(self.trained, self.trainer)

    def update_samples(self) -> int:
        """As many as a device is fed."""
        return self.compute.batch_size()

    def step(self) -> None:
        """Forward, backward, update; or those passes alone that the point asks for."""
        fed = self.compute.differentiate()
        if self._trains:
            self.update()
        self.compute.keep_up()
        self.samples += fed

    def update(self) -> None:
        """Of the gradients that were just computed."""
        self.compute.update()

    def sync(self) -> None:
        """Wait for the devices and the exchange."""
        self.compute.sync()

    def loss(self) -> float | None:
        """Of the last step; None where passes train nothing."""
        return self.compute.loss() if self._trains else None

    def set_rate(self, rate: float) -> None:
        """Of the Trainer's optimiser."""
        optimizers.set_rate(self.trainer, rate)

    def average_statistics(self) -> None:
        """Of each running mean and variance."""
        if self.task.point.world_size > 1 and isinstance(self.net, Network):
            for index, norm in enumerate(self.net.norms):
                for each in (norm.running_mean, norm.running_var):
                    each.set_data(self.mean_over_ranks(each.data(self.contexts[0]), f"{index}.{each.name}"))

    def mean_over_ranks(self, value: mx.nd.NDArray, name: str) -> mx.nd.NDArray:
        """The same on every rank; of strategies that have a collective for it."""
        raise NotImplementedError(f"{self.task.point.strategy} averages nothing but gradients: {name}, {value}")

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        """By the first device: all have the same weights."""
        assert isinstance(self.compute, RealCompute)
        return self.compute.predict(inputs)

    def learnt(self) -> Learnt:
        """On the first device."""
        assert isinstance(self.net, Network)
        first = self.contexts[0]
        both = ((norm.running_mean, norm.running_var) for norm in self.net.norms)
        statistics = tuple((mean.data(first).asnumpy(), var.data(first).asnumpy()) for mean, var in both)
        return Learnt(dict(network.read(self.net)), statistics)

    def weights(self) -> dict[str, NDArray[Any]]:
        """The parameters as NumPy arrays that later steps do not change."""
        return self.weights_of(self.contexts[0])

    def weights_of(self, context: mx.Context) -> dict[str, NDArray[Any]]:
        """Those of one context."""
        return {name: each.data(context).asnumpy() for name, each in self.trained.items()}

    def digest(self) -> str:
        """Of the parameters alone: running means follow each rank's own images."""
        return digest_of(self.weights())

    def digest_on(self, context: mx.Context) -> str:
        """That of one context."""
        return digest_of(self.weights_of(context))


class GradientExchange(Exchange):
    """One step's exchange and nothing else: same keys, sizes, order and update as in training, of gradients
    that are zero."""

    samples = 0

    def step(self) -> None:
        """Queue the exchange."""
        self.update()

    def loss(self) -> None:
        """Nothing is trained."""

    def digest(self) -> None:
        """Nothing is trained."""
