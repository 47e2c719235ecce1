"""The PyTorch training loop that all torch strategies share: they differ in what they wrap around the model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scaling.frameworks.base import Trainer
from scaling.frameworks.digest import digest_of
from scaling.frameworks.evaluating import Learnt
from scaling.frameworks.options import accumulated
from scaling.frameworks.pytorch import libraries, native_feed, network
from scaling.frameworks.pytorch.compute import Compute, Optimizer, RealCompute
from scaling.frameworks.pytorch.emulated import EmulatedCompute
from scaling.frameworks.pytorch.tracing import TorchTracer
from scaling.frameworks.tracing import Tracer
from scaling.records.task import Task
from scaling.workloads import models, weights

# What feeds a rank, alone.
pipeline = native_feed.pipeline


def connect(task: Task) -> Trainer:
    """The plain loop. ImportError when the model needs a package that is not installed."""
    return Training(task)


class TorchRank:
    """One worker's device and the facts about it and its model."""

    parameters: int
    gradient_bytes: int

    def __init__(self, task: Task) -> None:
        self.task = task
        self.cuda = task.point.hardware.device == "cuda"
        self.device = torch.device("cuda", task.device_index) if self.cuda else torch.device("cpu")
        emulated = task.point.hardware.device == "emulated"
        self.compute: Compute = EmulatedCompute(task) if emulated else RealCompute(task, self.device)
        self.device_name = self.compute.name
        self.is_done_on_return = task.point.hardware.device == "cpu"
        self.has_device_clock = self.cuda
        self._marks: list[torch.cuda.Event] = []
        self.versions = _versions(cuda=self.cuda)
        self.notes: tuple[str, ...] = ()

    def sync(self) -> None:
        """Wait for the device."""
        self.compute.sync()

    def mark(self) -> None:
        """On the stream that computes; the exchange's own is waited for before the update."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def between_marks_s(self) -> tuple[float, ...]:
        """By the GPU's own clock."""
        marks, self._marks = self._marks, []
        return tuple(earlier.elapsed_time(later) / 1000 for earlier, later in pairwise(marks))

    def peak_memory_bytes(self) -> int:
        """The most that torch's allocator has handed out; 0 on CPU, where the process's own peak counts."""
        return int(torch.cuda.max_memory_allocated(self.device)) if self.cuda else 0

    def close(self) -> None:
        """Nothing to leave."""

    def tracers(self) -> Sequence[Tracer]:
        """torch's own."""
        return [TorchTracer(cuda=self.cuda)]

    def build(self) -> nn.Module:
        """The point's model; ImportError when it needs a package that is not installed."""
        return self.compute.build()

    def describe(self, module: nn.Module) -> list[int]:
        """Set what is known of a model's size; returns the bytes of each gradient, in the model's order."""
        trained = [each for each in module.parameters() if each.requires_grad]
        sizes = [each.numel() * each.element_size() for each in trained]
        self.parameters = sum(each.numel() for each in trained)
        self.gradient_bytes = sum(sizes)
        return sizes


class Training(TorchRank):
    """The model's loss and optimiser, without any exchange: the plain loop.

    A strategy overrides `wrap`, `make_optimizer`, `hold` and `update`; all else stays the same.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        # The same weights on every rank, and with every strategy.
        torch.manual_seed(task.seed)
        self._module = self.compute.place(self.build())
        self.describe(self._module)
        self.compute.model = self.wrap(self._module)
        self._optimizer = self.make_optimizer()
        self._parts = accumulated(task.point)
        self._pass = task.point.workload.pass_
        self._backward = self.compute.backward if self._parts == 1 else self._in_parts
        self._fixed = self.compute.start()
        self._steps = 0
        self._loss: Tensor | None = None
        self.samples = 0
        if task.point.workload.compile:
            self._compile()

    def wrap(self, module: nn.Module) -> nn.Module:
        """What the step calls in place of the model, with the gradient exchange inside."""
        return module

    def make_optimizer(self) -> Optimizer:
        """What updates the parameters once `backward` is through; made after `wrap`."""
        return self.compute.make_optimizer(self._module.parameters())

    def hold(self) -> AbstractContextManager[None]:
        """A backward pass inside adds to the gradients and exchanges nothing."""
        return nullcontext()

    def update(self) -> None:
        """The parameters, from the gradients of all ranks."""
        self.compute.update(self._optimizer)

    def step(self) -> None:
        """Forward, backward, update; or those passes alone that the point asks for."""
        images, labels = self._fixed or self.compute.batch(self._steps)
        if self._pass == "forward":
            # Its graph must not be there any more while the next one grows.
            self._loss = self.compute.forward(images, labels).detach()
        else:
            self._optimizer.zero_grad()
            self._loss = self._backward(images, labels)
        if self._pass == "step":
            self.update()
        self._steps += 1
        self.samples += len(labels)

    def loss(self) -> float | None:
        """Of this rank's last batch; None where passes train nothing."""
        learns = self.compute.learns and self._pass == "step"
        return float(self._loss) if self._loss is not None and learns else None

    def set_rate(self, rate: float) -> None:
        """Of all parameters."""
        for group in getattr(self._optimizer, "param_groups", ()):
            group["lr"] = rate

    def average_statistics(self) -> None:
        """Batch norm's buffers, in one message."""
        buffers = [each for each in self._module.buffers() if each.is_floating_point()]
        if buffers and self.task.point.world_size > 1:
            mean = self.mean_over_ranks(torch.cat([each.flatten() for each in buffers]))
            for each, part in zip(buffers, mean.split([each.numel() for each in buffers]), strict=True):
                each.copy_(part.view_as(each))

    def mean_over_ranks(self, values: Tensor) -> Tensor:
        """The same on every rank; of strategies that have a collective."""
        raise NotImplementedError(f"{self.task.point.strategy} averages nothing but gradients")

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        """Without the wrapper: what is exchanged is parameters alone."""
        assert isinstance(self.compute, RealCompute)
        found: NDArray[np.int64] = self.compute.predict(self._module, torch.from_numpy(inputs)).numpy()
        return found

    def learnt(self) -> Learnt:
        """Without the biases of LSTMs that the description has not."""
        wanted = [name for name, _ in network.trained(self._module)]
        found, statistics = self.weights(), network.statistics(self._module)
        paths = weights.names(models.of(self.task.point.workload))
        return Learnt(dict(zip(paths, (found[name] for name in wanted), strict=True)), statistics)

    def weights(self) -> dict[str, NDArray[Any]]:
        """The parameters as NumPy arrays that later steps do not change."""
        named = self._module.named_parameters()
        return {name: each.detach().cpu().numpy().copy() for name, each in named}

    def digest(self) -> str:
        """Of the parameters alone: buffers (running means) follow each rank's own images."""
        return digest_of(self.weights())

    def _compile(self) -> None:
        """Around the wrapper, as DDP's manual asks; now, and not later under the clock for stalls."""
        self.compute.model = torch.compile(self.compute.model)
        images, labels = self.compute.batch(0)
        part = len(labels) // self._parts
        self.compute.forward(images[:part], labels[:part]).backward()

    def _in_parts(self, images: Tensor, labels: Tensor) -> Tensor:
        """The gradients of a batch from one micro-batch after the other; returns its mean loss."""
        size, backward = len(labels) // self._parts, self.compute.backward
        parts = list(zip(images.split(size), labels.split(size), strict=True))
        with self.hold():
            held = sum(backward(*part, self._parts) for part in parts[:-1])
        return held + backward(*parts[-1], self._parts)


def _versions(*, cuda: bool) -> dict[str, str]:
    versions = {"torch": str(torch.__version__)}
    if cuda:
        versions["cuda"] = str(torch.version.cuda)
        versions["cudnn"] = str(torch.backends.cudnn.version())
        versions["nccl"] = libraries.nccl()
    return versions
