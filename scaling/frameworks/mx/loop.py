"""The Gluon training loop that all MXNet strategies share: they differ in their contexts and in the Trainer
that exchanges the gradients."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from scaling.frameworks.mx.rank import MxnetRank, accumulated
from scaling.records.task import Task
from scaling.workloads import feeds as data
from scaling.workloads.feeds import Feed

MOMENTUM = 0.9
# Batches that wait in the engine fill the memory; waiting for it in each step costs 2 % of a short one.
STEPS_AHEAD = 8


class Exchange(MxnetRank):
    """A model's parameters and the gluon.Trainer that exchanges their gradients and updates them.

    Here it exchanges nothing. A strategy overrides some of `find_contexts`, `update_samples`, `make_trainer`,
    `start` and `update` in a subclass E, trains as `class (E, Training)`, and is measured without
    compute as `class (E, GradientExchange)`.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.net = self.build()
        # By name, in the model's order.
        self.trained: dict[str, Any] = self.describe(self.net)
        self.parts = accumulated(task.point)
        if self.parts > 1:
            for each in self.trained.values():
                each.grad_req = "add"
        self.trainer = self.make_trainer(self.trained, self._optimizer_options())
        self.start()

    def update_samples(self) -> int:
        """Samples that the gradients of one update are summed over; the update is their mean."""
        return self.task.point.workload.batch_size

    def make_trainer(self, parameters: dict[str, Any], options: dict[str, Any]) -> Any:
        """The gluon.Trainer of SGD with these `options` of the optimiser."""
        return self.mx.gluon.Trainer(parameters, "sgd", options, kvstore=None)

    def start(self) -> None:
        """Join the exchange and give all ranks the same weights; equal seeds have made them equal already."""

    def update(self) -> None:
        """Exchange the gradients and update the weights, which the engine does later."""
        # By 1: the optimiser divides, since a Trainer knows only its own process's batch. Where nothing is
        # trained, no gradient is ever fresh.
        self.trainer.step(1, ignore_stale_grad=self.task.point.kind == "comm")

    def _optimizer_options(self) -> dict[str, Any]:
        return {
            "learning_rate": self.spec.learning_rate,
            "momentum": MOMENTUM,
            "wd": 0.0,
            "rescale_grad": 1.0 / self.update_samples(),
            "multi_precision": self.dtype == "float16",
        }


class Training(Exchange):
    """SGD of momentum 0.9 and cross-entropy: with the Exchange above the plain loop."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._criterion = self.mx.gluon.loss.SoftmaxCrossEntropyLoss()
        self._criterion.hybridize(static_alloc=True, static_shape=True)
        self._batches = self._moved(0) if all(feed.fixed for feed in self.feeds) else None
        self._steps = 0
        self._losses: list[Any] = []
        self.samples = 0

    def find_feeds(self) -> list[Feed]:
        """A feed per context."""
        return [data.feed(self.task, self.spec)]

    @cached_property
    def feeds(self) -> list[Feed]:
        """Made when first asked for: the Trainer needs to know the size of a batch."""
        return self.find_feeds()

    def update_samples(self) -> int:
        """As many as are really fed."""
        return len(self.feeds[0].batch(0)[0])

    def step(self) -> None:
        """Forward, backward, update: queued in MXNet's engine, which is then a few steps behind."""
        batches = self._batches or self._moved(self._steps)
        losses = self._differentiate(batches)
        self.update()
        if not self._steps % STEPS_AHEAD:
            # The last step: this one keeps the device busy meanwhile.
            for loss in self._losses:
                loss.wait_to_read()
        self._losses = losses
        self._steps += 1
        self.samples += sum(len(images) for images, _ in batches)

    def loss(self) -> float | None:
        """Of the last batches of all contexts."""
        if not self._losses:
            return None
        return sum(float(each.mean().asscalar()) for each in self._losses) / len(self._losses)

    def weights(self) -> dict[str, Any]:
        """The parameters as NumPy arrays that later steps do not change."""
        return self.weights_of(self.contexts[0])

    def weights_of(self, context: Any) -> dict[str, Any]:
        """Those of one context."""
        return {name: each.data(context).asnumpy() for name, each in self.trained.items()}

    def digest(self) -> str:
        """Of the parameters alone: running means follow each rank's own images."""
        return self.digest_of(self.contexts[0])

    def digest_of(self, context: Any) -> str:
        """That of one context."""
        digest = hashlib.sha256()
        for array in self.weights_of(context).values():
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]

    def _differentiate(self, batches: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Queue forward and backward of a batch per context; returns arrays of losses, one loss per sample."""
        if self.parts == 1:
            return self._differentiate_parts(batches)
        for each in self.trained.values():
            each.zero_grad()
        return [
            loss
            for index in range(self.parts)
            for loss in self._differentiate_parts([self._part(batch, index) for batch in batches])
        ]

    def _differentiate_parts(self, batches: Sequence[tuple[Any, Any]]) -> list[Any]:
        with self.mx.autograd.record():
            logits = [self.net(images).astype("float32", copy=False) for images, _ in batches]
            losses = [self._criterion(each, labels) for each, (_, labels) in zip(logits, batches, strict=True)]
        self.mx.autograd.backward(losses)
        return losses

    def _part(self, batch: tuple[Any, Any], index: int) -> tuple[Any, Any]:
        """The index-th of equal micro-batches, as views."""
        size = len(batch[0]) // self.parts
        images, labels = (each[index * size : (index + 1) * size] for each in batch)
        return images, labels

    def _moved(self, step: int) -> list[tuple[Any, Any]]:
        """The feeds' batches on their contexts; classes are exact in float32, in which Gluon's loss has them."""
        array, found = self.mx.nd.array, []
        for context, feed in zip(self.contexts, self.feeds, strict=True):
            images, labels = feed.batch(step)
            found.append((array(images, context, self.dtype), array(labels, context, "float32")))
        return found


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
