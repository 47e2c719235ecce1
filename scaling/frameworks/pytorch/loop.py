"""The PyTorch training loop that all torch strategies share: they differ in what they wrap around the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from scaling.frameworks.base import Trainer
from scaling.frameworks.digest import digest_of
from scaling.frameworks.evaluating import Learnt
from scaling.frameworks.options import accumulated
from scaling.frameworks.pytorch import libraries, native_feed, network
from scaling.frameworks.pytorch.compute import Batch, Compute, Optimizer, RealCompute
from scaling.frameworks.tracing import Tracer
from scaling.records.gpu_time import WINDOW
from scaling.records.task import Task
from scaling.tools.emulated.device import EmulatedDevice, value
from scaling.tools.emulated.layers import Span
from scaling.tools.emulated.timeline import Timeline
from scaling.workloads import models, weights

# ---------------------------------------------------------------- emulated
#
# An emulated device in the worker: real gradients for a real exchange, and sleeps in place of computing.
#
# The emulated module has the model's parameters, divided by the point's `shrink`, in the model's order. Each
# layer is an autograd function that sleeps until its absolute end, forward and backward, so that DDP, Horovod
# and the parameter servers' client see gradients appear one after the other, as on a GPU. All elements of a
# rank's gradients have one value, other in each rank and step: what an exchange leaves out or adds twice shows
# in the digest. The update is plain SGD, the cheapest that depends on every element.


class EmulatedCompute:
    """A device that takes as long as the profile says."""

    learns = False
    model: Callable[[Tensor], Tensor]

    def __init__(self, task: Task) -> None:
        point = task.point
        self._device = EmulatedDevice(point)
        self._timeline = self._device.timeline
        self._rank = task.rank
        self._exchanges = point.kind == "exchange"
        self._rate = models.of(point.workload).recipe.rate
        # As many as a batch has images; nobody reads them.
        self._labels = torch.zeros(point.workload.batch_size)
        self._value = 0.0
        self.name = self._device.name
        torch.set_num_threads(1)

    def build(self) -> nn.Module:
        """The emulated module."""
        return nn.Sequential(*(Layer(self._timeline, span) for span in self._device.spans))

    def place(self, module: nn.Module) -> nn.Module:
        """It is there."""
        return module

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Without momentum: nothing is learnt."""
        return torch.optim.SGD(parameters, lr=self._rate, fused=True)

    def start(self) -> None:
        """The strategies' first contact is over: what it took is not of the first step."""
        self._timeline.meet()

    def batch(self, step: int) -> Batch:
        """What flows through the layers, and this step's gradients to come."""
        self._timeline.begin(self._device.rate.step_s)
        self._value = value(self._rank, step)
        return torch.ones((), requires_grad=True), self._labels

    def forward(self, images: Tensor, _labels: Tensor) -> Tensor:
        """As long as the profile says."""
        return self.model(images) * self._value

    def backward(self, images: Tensor, labels: Tensor, _parts: int = 1) -> Tensor:
        """As long as the profile says; batches come as a whole (limits.refuse)."""
        loss = self.forward(images, labels)
        loss.backward()
        return loss.detach()

    def update(self, optimizer: Optimizer) -> None:
        """At once. What comes next may have to wait for the servers."""
        if self._exchanges:
            self._timeline.meet()
        optimizer.step()
        self._timeline.ask()

    def sync(self) -> None:
        """Sleep to the end. A strategy that waits for its servers first has done so."""
        self._timeline.granted()
        self._timeline.finish()


class Layer(nn.Module):
    """A module with the parameters of one span."""

    def __init__(self, timeline: Timeline, span: Span) -> None:
        super().__init__()
        self._timeline, self._span = timeline, span
        for index, size in enumerate(span.sizes):
            self.register_parameter(f"weight{index}", nn.Parameter(torch.zeros(size)))
        # Before the hooks of others, in which they may wait for parameters.
        self.register_forward_pre_hook(lambda *_: timeline.ask())

    def forward(self, images: Tensor) -> Tensor:
        """Sleep, once the parameters are there."""
        self._timeline.granted()
        slept: Tensor = Sleep.apply(images, self._timeline, self._span, *self._parameters.values())  # type: ignore[no-untyped-call]
        return slept


class Sleep(torch.autograd.Function):
    """Both passes of a span. Its gradients are views of one number, which torch copies into memory of its own."""

    @staticmethod
    def forward(context: Any, images: Tensor, timeline: Timeline, span: Span, *_weights: Tensor) -> Tensor:
        """Sleep for the forward pass."""
        context.timeline, context.span = timeline, span
        timeline.spend(span.forward_s)
        return images.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Sleep for the backward pass."""
        (gradient,) = gradients
        context.timeline.spend(context.span.backward_s)
        return gradient, None, None, *(gradient.expand(size) for size in context.span.sizes)


# ---------------------------------------------------------------- tracing
#
# torch.profiler as the worker starts and stops it. Worker's side.


class TorchTracer(Tracer):
    """Operators on the CPU and, with `cuda`, kernels on the GPU."""

    def __init__(self, *, cuda: bool) -> None:
        self.tells_gpu = cuda
        self._activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]

    def start(self, path: Path) -> None:
        """The first start of a process takes seconds."""
        self._path = path
        self._profile = profile(activities=self._activities)
        self._profile.start()

    def window(self) -> AbstractContextManager[object]:
        """An annotation, by which the steps are found again."""
        return record_function(WINDOW)

    def stop(self) -> None:
        """torch compresses it."""
        self._profile.stop()
        self._profile.export_chrome_trace(str(self._path))


# ---------------------------------------------------------------- loop

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
