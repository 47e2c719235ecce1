"""The worker's side of MXNet's kvstores of one process: it drives all devices of its node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from scaling.frameworks.base import Trainer, read_options
from scaling.frameworks.mx.library import mx
from scaling.frameworks.mx.local_kvstore import CHOICES, STRATEGY
from scaling.frameworks.mx.loop import Exchange, GradientExchange, Training
from scaling.records.task import Task


def connect(task: Task) -> Trainer:
    return NodeGradients(task) if task.point.kind == "comm" else NodeTraining(task)


class Node(Exchange):
    """A Trainer with the weights on all devices and a kvstore between them."""

    def find_contexts(self) -> list[mx.Context]:
        """Return a context per device. On CPU each has its own engine thread and OpenMP team."""
        if self.cuda:
            return [mx.gpu(index) for index in self.task.device_indices]
        return [mx.cpu(index) for index in range(self.task.point.world_size)]

    def ranks(self) -> Sequence[int]:
        return range(self.task.point.world_size)

    def update_samples(self) -> int:
        """Return the samples of all devices, whose gradients the kvstore sums."""
        return super().update_samples() * self.task.point.world_size

    def make_trainer(
        self, parameters: dict[str, mx.gluon.Parameter], optimizer: mx.optimizer.Optimizer
    ) -> mx.gluon.Trainer:
        """Return Gluon's Trainer with the point's options. On one device no kvstore can update."""
        chosen = read_options(STRATEGY.options, self.task.point.options)["update_on_kvstore"]
        return mx.gluon.Trainer(
            parameters,
            optimizer,
            kvstore=self.task.point.strategy.partition(":")[2],
            update_on_kvstore=CHOICES[chosen] if len(self.contexts) > 1 else None,
        )


class NodeTraining(Node, Training):
    def weights(self) -> dict[str, NDArray[Any]]:
        """Return the first device's parameters. Raises RuntimeError if those of another device differ."""
        found = {str(each): self.digest_on(each) for each in self.contexts}
        if len(set(found.values())) > 1:
            raise RuntimeError(f"the devices' parameters differ: {found}")
        return super().weights()


class NodeGradients(Node, GradientExchange):
    """Its sums and updates alone."""
