"""The Gluon training loop that all MXNet strategies share: they differ in their contexts and in the Trainer
that exchanges the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling.frameworks.base import Trainer
from scaling.frameworks.digest import digest_of
from scaling.frameworks.evaluating import Learnt
from scaling.frameworks.feeding import Opened
from scaling.frameworks.mx import native_feed, network
from scaling.frameworks.mx.emulated import EmulatedCompute
from scaling.frameworks.mx.library import mx
from scaling.frameworks.mx.network import Network
from scaling.frameworks.mx.rank import MxnetRank
from scaling.frameworks.options import accumulated
from scaling.records.task import Task
from scaling.workloads import feeds as data
from scaling.workloads.specs import Binary, MaskedTokens, Recipe, Target

# ---------------------------------------------------------------- optimizers
#
# The optimisers of the models' recipes, with the constants that Keras gives them where a recipe says nothing.
#
# Workers send theirs to the servers by pickle. A server loads this file while its own `import mxnet` is under
# way, when Gluon is not there yet: it imports nothing of the loop.


EPSILON = 1e-7


def make_optimizer(recipe: Recipe, options: dict[str, Any]) -> mx.optimizer.Optimizer:
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


# ---------------------------------------------------------------- compute
#
# What the devices of a worker do in a training step beside the exchange.


# ---------------------------------------------------------------- losses
#
# The loss of what a model learns.


Value: TypeAlias = "mx.nd.NDArray | mx.sym.Symbol"


def loss_of(target: Target) -> mx.gluon.HybridBlock:
    """A block of float32 logits and labels that gives a loss per sample: their mean is that over what counts."""
    match target:
        case Binary():
            return mx.gluon.loss.SigmoidBinaryCrossEntropyLoss()
        case MaskedTokens():
            return Masked()
        case _:
            return mx.gluon.loss.SoftmaxCrossEntropyLoss()


class Masked(mx.gluon.HybridBlock):  # type: ignore[misc]
    """Cross-entropy at the places whose label is not IGNORED, which is negative."""

    def hybrid_forward(self, F: ModuleType, logits: Value, labels: Value) -> Value:
        """(batch, length, words) and (batch, length) to (batch,)."""
        counts = labels >= 0
        losses = -F.pick(F.log_softmax(logits), F.relu(labels)) * counts
        # Of the whole batch, so that samples weigh by what they have.
        share = F.broadcast_div(F.sum(losses, axis=1), F.sum(counts))
        return F.broadcast_mul(share, F.sum(F.ones_like(F.slice_axis(labels, axis=1, begin=0, end=1))))


# ---------------------------------------------------------------- compute

Batch: TypeAlias = "tuple[mx.nd.NDArray, mx.nd.NDArray]"
# Batches that wait in the engine fill the memory; waiting for it in each step costs 2 % of a short one.
STEPS_AHEAD = 8


class Compute(Protocol):
    """Devices that compute, or sleep as long. The exchange of gradients alone needs no more than the `net` whose
    parameters' they are; the methods are the training's."""

    net: mx.gluon.Block
    device_name: str
    recipe: Recipe

    def batch_size(self) -> int:
        """Samples that one device is fed in a step."""

    def begin(self, parameters: dict[str, mx.gluon.Parameter], trainer: mx.gluon.Trainer) -> None:
        """What is slow once; `trainer` has joined the exchange of the gradients of `parameters`."""

    def differentiate(self) -> int:
        """Forward and backward of a batch on each device; returns the samples of them all."""

    def update(self) -> None:
        """Exchange the gradients that are not on their way already, and update the weights."""

    def keep_up(self) -> None:
        """Wait, if the engine is too far behind; the update is queued."""

    def sync(self) -> None:
        """Wait for the devices and the exchange."""

    def loss(self) -> float | None:
        """The last step's; None where nothing is learnt."""


class RealCompute:
    """The point's model in Gluon, with the weights of the task's seed, fed and differentiated on all contexts."""

    def __init__(self, rank: MxnetRank) -> None:
        self.device_name = rank.name_device()
        self.recipe = rank.spec.recipe
        self._rank = rank
        self._parts = accumulated(rank.task.point)
        self._goes_back = rank.task.point.workload.pass_ != "forward"
        self._steps = 0
        # Of the step before, and of the one that is being queued.
        self._losses: list[mx.nd.NDArray] = []
        self._fresh: list[mx.nd.NDArray] = []
        # By context, what bytes are multiplied by, and what is taken away from that.
        self._pixels: dict[mx.Context, list[mx.nd.NDArray]] = {}
        mx.random.seed(rank.task.seed)
        self.net = network.build(rank.spec, rank.task.seed, rank.contexts)
        if rank.dtype != "float32":
            self.net.cast(rank.dtype)
        self.net.hybridize(static_alloc=True, static_shape=True)

    @cached_property
    def feeds(self) -> list[Opened]:
        """One per context, made when first asked for: the Trainer needs to know the size of a batch."""
        task, spec = self._rank.task, self._rank.spec
        return [native_feed.opened(replace(task, rank=rank), spec) for rank in self._rank.ranks()]

    def batch_size(self) -> int:
        """As many as are really fed."""
        return len(self.feeds[0].batch(0)[0])

    def begin(self, parameters: dict[str, mx.gluon.Parameter], trainer: mx.gluon.Trainer) -> None:
        """Make the loss, and move the batches that stay the same."""
        self._parameters, self._trainer = parameters, trainer
        self._criterion = loss_of(self._rank.spec.target)
        self._criterion.hybridize(static_alloc=True, static_shape=True)
        self._batches = self._moved(0) if all(feed.fixed for feed in self.feeds) else None

    def differentiate(self) -> int:
        """Queue it in MXNet's engine, which is then a few steps behind; the forward pass alone if asked for."""
        batches = self._batches or self._moved(self._steps)
        self._fresh = self._queued(batches)
        return sum(len(images) for images, _ in batches)

    def update(self) -> None:
        """By 1: the optimiser divides, since a Trainer knows only its own process's batch."""
        self._trainer.step(1)

    def keep_up(self) -> None:
        """Wait for the step before, now and then: this one keeps the device busy meanwhile."""
        if not self._steps % STEPS_AHEAD:
            for loss in self._losses:
                loss.wait_to_read()
        self._losses = self._fresh
        self._steps += 1

    def sync(self) -> None:
        """Raises what went wrong in the engine."""
        mx.nd.waitall()

    def loss(self) -> float | None:
        """Of the last batches of all contexts."""
        if not self._losses:
            return None
        return sum(float(each.mean().asscalar()) for each in self._losses) / len(self._losses)

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        """The class that each sample is taken for, by the first context; a smaller batch is filled up."""
        size = self._rank.task.point.workload.batch_size
        whole = np.concatenate([inputs, np.repeat(inputs[:1], size - len(inputs), axis=0)])
        logits = self.net(self._array(whole, self._rank.contexts[0])).astype("float32", copy=False).asnumpy()
        found = logits[:, 0] > 0 if isinstance(self._rank.spec.target, Binary) else logits.argmax(1)
        classes: NDArray[np.int64] = found[: len(inputs)].astype(np.int64)
        return classes

    def _array(self, inputs: NDArray[Any], context: mx.Context) -> mx.nd.NDArray:
        """Images in the rank's precision, or tokens."""
        return mx.nd.array(inputs, context, self._rank.dtype if inputs.dtype == "float32" else "int32")

    def _queued(self, batches: Sequence[Batch]) -> list[mx.nd.NDArray]:
        """Queue forward and backward of a batch per context; returns arrays of losses, one loss per sample."""
        if self._parts == 1:
            return self._queued_parts(batches)
        for each in self._parameters.values():
            each.zero_grad()
        return [
            loss
            for index in range(self._parts)
            for loss in self._queued_parts([self._part(batch, index) for batch in batches])
        ]

    def _queued_parts(self, batches: Sequence[Batch]) -> list[mx.nd.NDArray]:
        with mx.autograd.record():
            logits = [self.net(images).astype("float32", copy=False) for images, _ in batches]
            losses = [self._criterion(each, labels) for each, (_, labels) in zip(logits, batches, strict=True)]
        if self._goes_back:
            mx.autograd.backward(losses)
            return losses
        # Who keeps them must not keep their graph, whose memory the next pass takes.
        return [each.detach() for each in losses]

    def _part(self, batch: Batch, index: int) -> Batch:
        """The index-th of equal micro-batches, as views."""
        size = len(batch[0]) // self._parts
        images, labels = (each[index * size : (index + 1) * size] for each in batch)
        return images, labels

    def _moved(self, step: int) -> list[Batch]:
        """The feeds' batches on their contexts; classes are exact in float32, in which Gluon's loss has them."""
        array, found = mx.nd.array, []
        for context, feed in zip(self._rank.contexts, self.feeds, strict=True):
            taken, labels = feed.batch(step)
            if isinstance(taken, mx.nd.NDArray):
                found.append((self._normalised(taken, context), labels.as_in_context(context)))
            else:
                found.append((self._array(taken, context), array(labels, context, "float32")))
        return found

    def _normalised(self, images: mx.nd.NDArray, context: mx.Context) -> mx.nd.NDArray:
        """Bytes as a native feed has them, of which a quarter is moved."""
        if context not in self._pixels:
            pictures = data.encoded_pictures(self._rank.task, self._rank.spec)
            self._pixels[context] = [mx.nd.array(each[None], context) for each in (pictures.scale, pictures.shift)]
        scale, shift = self._pixels[context]
        moved = images.as_in_context(context).astype("float32")
        normal = mx.nd.broadcast_sub(mx.nd.broadcast_mul(moved, scale), shift)
        return normal.astype(self._rank.dtype, copy=False)


# ---------------------------------------------------------------- loop

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
        return make_optimizer(self.compute.recipe, options)

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
        set_rate(self.trainer, rate)

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
