"""What the devices of a worker do in a training step beside the exchange."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling.frameworks.feeding import Opened
from scaling.frameworks.mx import losses, native_feed, network
from scaling.frameworks.mx.library import mx
from scaling.frameworks.mx.rank import MxnetRank
from scaling.frameworks.options import accumulated
from scaling.workloads import feeds as data
from scaling.workloads.specs import Binary, Recipe

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
        self._criterion = losses.of(self._rank.spec.target)
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
