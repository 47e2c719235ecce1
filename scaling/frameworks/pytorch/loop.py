"""The PyTorch training loop of all torch strategies, its emulated device and its profiler.

Strategies differ in what they wrap around the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from scaling.emulated.device import EmulatedDevice, Timeline, value
from scaling.emulated.layers import Span
from scaling.frameworks import feeding
from scaling.frameworks.abilities import Learnt, Rank, Tracer, Trained, Untrained
from scaling.frameworks.base import Trainer
from scaling.frameworks.options import accumulated
from scaling.frameworks.pytorch import native_feed, network
from scaling.frameworks.pytorch.compute import Batch, Optimizer, OwnCompute, RealCompute
from scaling.frameworks.pytorch.group import nccl_version
from scaling.records.task import Task
from scaling.records.telemetry import TRACED
from scaling.workloads import models, weights

# ---------------------------------------------------------------- device digest
#
# A hash of parameters that a GPU computes: one thread would take seconds to copy and hash gigabytes.


# Odd constants of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
GAMMA, MIX = -0x61C8864680B583EB, -0x40A7B892E31B1A47
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
CHUNK = 1 << 24


def device_digest(parameters: Iterable[Tensor], chunk: int = CHUNK) -> str:
    """Hash the bits of the parameters in their order, as 16 hexadecimal digits. Any changed, moved or exchanged
    value changes it. Integer sums do not depend on their order, so ranks with equal parameters agree."""
    sums = [part for each in parameters for part in _sums(each.detach(), chunk)]
    found = torch.stack(sums).cpu().numpy().tobytes() if sums else b""
    return hashlib.sha256(found).hexdigest()[:16]


def _sums(tensor: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Return two sums of mixed values, modulo 2**64: alone, and times their odd places."""
    bits = tensor.contiguous().flatten().view(INTEGERS[tensor.element_size()])
    first = second = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, len(bits), chunk):
        values = bits[start : start + chunk].long()
        places = torch.arange(start, start + len(values), device=tensor.device)
        mixed = (values + places * GAMMA) * MIX
        mixed = (mixed ^ (mixed >> 31)) * MIX
        first = first + mixed.sum()
        second = second + (mixed * (2 * places + 1)).sum()
    return first, second


# ---------------------------------------------------------------- emulated
#
# Real gradients and exchange; sleeps replace the compute.
# * The module has the model's parameters, divided by the point's `shrink`, in the model's order.
# * Each layer is an autograd function that sleeps until its absolute end. So gradients appear one by one.
# * A gradient has one value per rank and step: the digest shows what an exchange leaves out or adds twice.
# * The update is plain SGD, the cheapest one that depends on every element.


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
        # Only their number is used.
        self._labels = torch.zeros(point.workload.batch_size)
        self._value = 0.0
        self.name = self._device.name
        torch.set_num_threads(1)

    def build(self) -> nn.Module:
        return nn.Sequential(*(Layer(self._timeline, span) for span in self._device.spans))

    def place(self, module: nn.Module) -> nn.Module:
        return module

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self._rate, fused=True)

    def start(self) -> None:
        self._timeline.meet()

    def batch(self, step: int) -> Batch:
        """Begin a step. Return the input of the layers, and set this step's gradients."""
        self._timeline.begin(self._device.rate.step_s)
        self._value = value(self._rank, step)
        return torch.ones((), requires_grad=True), self._labels

    def forward(self, images: Tensor, _labels: Tensor) -> Tensor:
        return self.model(images) * self._value

    def backward(self, images: Tensor, labels: Tensor, _parts: int = 1) -> Tensor:
        """Sleep as the profile says, for a whole batch (options.refuse_emulated)."""
        loss = self.forward(images, labels)
        loss.backward()
        return loss.detach()

    def update(self, optimizer: Optimizer) -> None:
        """Update at once. The next step may have to wait for the servers."""
        if self._exchanges:
            self._timeline.meet()
        optimizer.step()
        self._timeline.ask()

    def sync(self) -> None:
        """Sleep to the end. A strategy with servers has waited for them before."""
        self._timeline.granted()
        self._timeline.finish()


class Layer(nn.Module):
    """A module with the parameters of one span."""

    def __init__(self, timeline: Timeline, span: Span) -> None:
        super().__init__()
        self._timeline, self._span = timeline, span
        for index, size in enumerate(span.sizes):
            self.register_parameter(f"weight{index}", nn.Parameter(torch.zeros(size)))
        # Registered before other hooks, which may wait for parameters.
        self.register_forward_pre_hook(lambda *_: timeline.ask())

    def forward(self, images: Tensor) -> Tensor:
        self._timeline.granted()
        slept: Tensor = Sleep.apply(images, self._timeline, self._span, *self._parameters.values())  # type: ignore[no-untyped-call]
        return slept


class Sleep(torch.autograd.Function):
    """Both passes of a span. Its gradients are views of one number, which torch copies into their own memory."""

    @staticmethod
    def forward(context: Any, images: Tensor, timeline: Timeline, span: Span, *_weights: Tensor) -> Tensor:
        context.timeline, context.span = timeline, span
        timeline.spend(span.forward_s)
        return images.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        context.timeline.spend(context.span.backward_s)
        return gradient, None, None, *(gradient.expand(size) for size in context.span.sizes)


# ---------------------------------------------------------------- tracing


class TorchTracer(Tracer):
    """torch.profiler: operators on the CPU and, with `cuda`, kernels on the GPU."""

    def __init__(self, *, cuda: bool) -> None:
        self.tells_gpu = cuda
        self._activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]

    def start(self, path: Path) -> None:
        """Start the trace. The first one of a process takes seconds."""
        self._path = path
        self._profile = profile(activities=self._activities)
        self._profile.start()

    def window(self) -> AbstractContextManager[object]:
        return record_function(TRACED)

    def stop(self) -> None:
        self._profile.stop()
        self._profile.export_chrome_trace(str(self._path))


# ---------------------------------------------------------------- loop

pipeline = partial(feeding.alone, native=native_feed.Loader)


def connect(task: Task) -> Trainer:
    return Training(task)


class TorchRank(Rank):
    """One worker's device, and the facts of it and its model."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.cuda = task.point.hardware.device == "cuda"
        self.device = torch.device("cuda", task.device_index) if self.cuda else torch.device("cpu")
        self.compute: RealCompute | EmulatedCompute
        if task.point.hardware.device == "emulated":
            self.compute = EmulatedCompute(task)
        else:
            real = OwnCompute if models.is_own(task.point.workload.model) else RealCompute
            self.compute = real(task, self.device)
        self.device_name = self.compute.name
        self.is_done_on_return = task.point.hardware.device == "cpu"
        self.has_device_clock = self.cuda
        self._marks: list[torch.cuda.Event] = []
        self.versions = _versions(cuda=self.cuda)

    def sync(self) -> None:
        self.compute.sync()

    def enter_thread(self) -> None:
        if self.cuda:
            torch.cuda.set_device(self.device)

    def mark(self) -> None:
        """Mark the computing stream, which waits for the exchange before the update."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def between_marks_s(self, ahead: int = 0) -> tuple[float, ...]:
        last = len(self._marks) - ahead
        passed, self._marks = self._marks[:last], self._marks[last - 1 :] if ahead else []
        passed[-1].synchronize()
        return tuple(earlier.elapsed_time(later) / 1000 for earlier, later in pairwise(passed))

    def peak_memory_bytes(self) -> int:
        """Return the most that torch's allocator has handed out, in bytes; 0 on CPU."""
        return int(torch.cuda.max_memory_allocated(self.device)) if self.cuda else 0

    def release_memory(self) -> None:
        """Give back what the allocator caches: activations of a step, most of a worker's memory."""
        if self.cuda:
            torch.cuda.empty_cache()

    def tracers(self) -> Sequence[Tracer]:
        return [TorchTracer(cuda=self.cuda)]

    def build(self) -> nn.Module:
        return self.compute.build()

    def describe(self, module: nn.Module) -> list[int]:
        """Set the model's size. Return the bytes of each gradient, in the model's order."""
        trained = [each for each in module.parameters() if each.requires_grad]
        sizes = [each.numel() * each.element_size() for each in trained]
        self.parameters = sum(each.numel() for each in trained)
        self.gradient_bytes = sum(sizes)
        return sizes

    def join(self) -> None:
        """Do nothing: no other rank is met."""


class Training(TorchRank, Trained):
    """The model's loss and optimiser: the plain loop. Strategies override `join`, `wrap`, `make_optimizer`, `hold`
    and `update`."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        # The same weights on every rank and with every strategy.
        torch.manual_seed(task.seed)
        self._module = self.compute.place(self.build())
        self.describe(self._module)
        self.join()
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
        """Return what the step calls for the model, with the exchange inside."""
        return module

    def make_optimizer(self) -> Optimizer:
        """Return what updates the parameters after `backward`. It is called after `wrap`."""
        return self.compute.make_optimizer(self._module.parameters())

    def hold(self) -> AbstractContextManager[None]:
        """Return a context in which backward adds to the gradients and exchanges nothing."""
        return nullcontext()

    def update(self) -> None:
        self.compute.update(self._optimizer)

    def step(self) -> None:
        images, labels = self._fixed or self.compute.batch(self._steps)
        if self._pass == "forward":
            # Detached: its graph must be freed before the next one grows.
            self._loss = self.compute.forward(images, labels).detach()
        else:
            self._optimizer.zero_grad()
            self._loss = self._backward(images, labels)
        if self._pass == "step":
            self.update()
        self._steps += 1
        self.samples += len(labels)

    def loss(self) -> float | None:
        learns = self.compute.learns and self._pass == "step"
        return float(self._loss) if self._loss is not None and learns else None

    def set_rate(self, rate: float) -> None:
        for group in getattr(self._optimizer, "param_groups", ()):
            group["lr"] = rate

    def average_statistics(self) -> None:
        buffers = [each for each in self._module.buffers() if each.is_floating_point()]
        if buffers and self.task.point.world_size > 1:
            mean = self.mean_over_ranks(torch.cat([each.flatten() for each in buffers]))
            for each, part in zip(buffers, mean.split([each.numel() for each in buffers]), strict=True):
                each.copy_(part.view_as(each))

    def mean_over_ranks(self, values: Tensor) -> Tensor:
        """Return the mean over ranks, for strategies with a collective for it. The plain loop has none."""
        raise NotImplementedError(f"{self.task.point.strategy} only averages gradients")

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        """Return each sample's class, without the wrapper: only parameters are exchanged."""
        assert isinstance(self.compute, RealCompute)
        found: NDArray[np.int64] = self.compute.predict(self._module, torch.from_numpy(inputs)).numpy()
        return found

    def learnt(self) -> Learnt:
        """Return what was learnt, without the biases of LSTMs that the description lacks."""
        wanted = [name for name, _ in network.trained(self._module)]
        found, statistics = self.weights(), network.statistics(self._module)
        paths = weights.names(models.of(self.task.point.workload))
        return Learnt(dict(zip(paths, (found[name] for name in wanted), strict=True)), statistics)

    def weights(self) -> dict[str, NDArray[Any]]:
        named = self._module.named_parameters()
        return {name: each.detach().cpu().numpy().copy() for name, each in named}

    def device_digest(self) -> str | None:
        return device_digest(self._module.parameters()) if self.cuda else None

    def _compile(self) -> None:
        """Compile around the wrapper, as DDP's manual asks. Done here, since a step would count as stalled."""
        self.compute.model = torch.compile(self.compute.model)
        images, labels = self.compute.batch(0)
        part = len(labels) // self._parts
        self.compute.forward(images[:part], labels[:part]).backward()

    def _in_parts(self, images: Tensor, labels: Tensor) -> Tensor:
        size, backward = len(labels) // self._parts, self.compute.backward
        parts = list(zip(images.split(size), labels.split(size), strict=True))
        with self.hold():
            held = sum(backward(*part, self._parts) for part in parts[:-1])
        return held + backward(*parts[-1], self._parts)


class Exchange(Untrained, TorchRank):
    """A rank that exchanges as in training and computes nothing. A strategy overrides `send` and `join`. With
    `beside`, another trainer of the process computes and has joined. On a GPU this one then has its own stream."""

    def __init__(self, task: Task, *, beside: bool = False) -> None:
        super().__init__(task)
        self._stream = torch.cuda.Stream(self.device) if beside and self.cuda else None
        if not beside:
            self.join()

    def described(self) -> tuple[nn.Module, list[int]]:
        """Build the model and set its size. Return it, which nothing keeps, and the bytes of its gradients."""
        module = self.build()
        return module, self.describe(module)

    def send(self) -> None:
        raise NotImplementedError

    def step(self) -> None:
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            self.send()

    def sync(self) -> None:
        if self._stream is None:
            super().sync()
        else:
            self._stream.synchronize()


def alongside(rank: Training, exchange: Callable[..., Trainer]) -> Trainer | None:
    """Return the exchange beside a rank's compute; None on all ranks if any rank lacks the memory."""
    try:
        made = exchange(rank.task, beside=True)
    except torch.OutOfMemoryError:
        made = None
    fits = rank.mean_over_ranks(torch.full((1,), float(made is not None), device=rank.device))
    return made if float(fits) == 1.0 else None


def _versions(*, cuda: bool) -> dict[str, str]:
    versions = {"torch": str(torch.__version__)}
    if cuda:
        versions["cuda"] = str(torch.version.cuda)
        versions["cudnn"] = str(torch.backends.cudnn.version())
        versions["nccl"] = nccl_version()
    return versions
