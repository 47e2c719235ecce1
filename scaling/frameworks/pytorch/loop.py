"""The PyTorch training loop that all torch strategies share: they differ in what they wrap around the
model. Torch is imported when a rank is made: the agent imports this module too."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

from scaling.frameworks import limits, options
from scaling.hosts import proc
from scaling.records.point import Point
from scaling.records.task import Task
from scaling.workloads import feeds, models

MOMENTUM = 0.9
# Every torch strategy has these options beside its own.
OPTIONS = options.LOOP
accumulated = options.accumulated


def refuse(point: Point) -> str | None:
    """Why the loop cannot do what the point asks for, naming the flag; None when it can."""
    return limits.refuse(point) or options.refuse(point)


def missing() -> str | None:
    """Why torch cannot be imported, found without importing it."""
    return "torch is not installed: ./launch/install torch" if find_spec("torch") is None else None


def prepare() -> None:
    """Import torch."""
    import torch  # noqa: F401


class TorchRank:
    """One worker's device and the facts about it and its model."""

    parameters: int
    gradient_bytes: int

    def __init__(self, task: Task) -> None:
        import torch

        self.task = task
        self.torch: Any = torch
        self.cuda = task.point.hardware.device == "cuda"
        self.device = torch.device("cuda", task.device_index) if self.cuda else torch.device("cpu")
        self.spec = models.spec(task.point.workload.model)
        torch.set_num_threads(task.threads)
        if self.cuda:
            self._prepare_cuda()
        self.device_name = self._name_device()
        self.versions = self._versions()
        self.notes: tuple[str, ...] = ()

    def sync(self) -> None:
        """Wait for the GPU; on CPU a step has ended when it returns."""
        if self.cuda:
            self.torch.cuda.synchronize(self.device)

    def peak_memory_bytes(self) -> int:
        """The most that torch's allocator has handed out; 0 on CPU, where the process's own peak counts."""
        return int(self.torch.cuda.max_memory_allocated(self.device)) if self.cuda else 0

    def close(self) -> None:
        """Nothing to leave."""

    def build(self) -> Any:
        """The point's model; ImportError when it needs a package that is not installed."""
        from scaling.frameworks.pytorch import vision

        self.notes = vision.notes(self.spec)
        return vision.build(self.spec)

    def describe(self, module: Any) -> list[int]:
        """Set what is known of a model's size; returns the bytes of each gradient, in the model's order."""
        trained = [each for each in module.parameters() if each.requires_grad]
        sizes = [each.numel() * each.element_size() for each in trained]
        self.parameters = sum(each.numel() for each in trained)
        self.gradient_bytes = sum(sizes)
        return sizes

    def _prepare_cuda(self) -> None:
        self.torch.cuda.set_device(self.device)
        backends = self.torch.backends
        backends.cudnn.benchmark = True
        # Torch convolves in TF32 by default: "fp32" must switch it off.
        tf32 = self.task.point.workload.precision == "tf32"
        backends.cuda.matmul.allow_tf32 = tf32
        backends.cudnn.allow_tf32 = tf32

    def _name_device(self) -> str:
        if self.cuda:
            return str(self.torch.cuda.get_device_name(self.device))
        return proc.cpu_model(proc.cpuinfo())

    def _versions(self) -> dict[str, str]:
        torch = self.torch
        found = {"torch": str(torch.__version__)}
        if self.cuda:
            found["cuda"] = torch.version.cuda
            found["cudnn"] = str(torch.backends.cudnn.version())
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        return found


class Training(TorchRank):
    """SGD of momentum 0.9 and cross-entropy, without any exchange: the plain loop.

    A strategy overrides `wrap`, `make_optimizer`, `hold` and `update`; all else stays the same.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        torch, point = self.torch, task.point
        layout = (
            torch.channels_last if point.workload.memory_format == "channels_last" else torch.contiguous_format
        )
        self._format = {"device": self.device, "memory_format": layout, "non_blocking": True}
        # The same weights on every rank, and with every strategy.
        torch.manual_seed(task.seed)
        self._module = self.build().to(**self._format)
        self.describe(self._module)
        self._model = self.wrap(self._module)
        self._optimizer = self.make_optimizer()
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(point.workload.precision)
        self._autocast = torch.autocast(self.device.type, dtype=half, enabled=half is not None)
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=point.workload.precision == "fp16")
        self._feed = feeds.feed(task, self.spec)
        self._batch = self._moved(0) if self._feed.fixed else None
        self._parts = accumulated(point)
        self._backward = self._in_one if self._parts == 1 else self._in_parts
        self._steps = 0
        self._loss: Any = None
        self.samples = 0
        if point.workload.compile:
            self._compile()

    def wrap(self, module: Any) -> Any:
        """What the step calls in place of the model, with the gradient exchange inside."""
        return module

    def make_optimizer(self) -> Any:
        """What updates the parameters once `backward` is through; made after `wrap`."""
        rate = self.spec.learning_rate
        return self.torch.optim.SGD(self._module.parameters(), lr=rate, momentum=MOMENTUM)

    def hold(self) -> AbstractContextManager[Any]:
        """A backward pass inside adds to the gradients and exchanges nothing."""
        return nullcontext()

    def update(self) -> None:
        """The parameters, from the gradients of all ranks; with fp16 only if all are finite."""
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def step(self) -> None:
        """Forward, backward, update."""
        images, labels = self._batch or self._moved(self._steps)
        self._optimizer.zero_grad()
        self._loss = self._backward(images, labels)
        self.update()
        self._steps += 1
        self.samples += len(images)

    def loss(self) -> float | None:
        """Of this rank's last batch."""
        return None if self._loss is None else float(self._loss)

    def weights(self) -> dict[str, Any]:
        """The parameters as NumPy arrays that later steps do not change."""
        named = self._module.named_parameters()
        return {name: each.detach().cpu().numpy().copy() for name, each in named}

    def digest(self) -> str:
        """Of the parameters alone: buffers (running means) follow each rank's own images."""
        digest = hashlib.sha256()
        for array in self.weights().values():
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]

    def _compile(self) -> None:
        """Around the wrapper, as DDP's manual asks; now, and not later under the clock for stalls."""
        self._model = self.torch.compile(self._model)
        images, labels = self._moved(0)
        part = len(images) // self._parts
        self._forward(images[:part], labels[:part]).backward()

    def _in_one(self, images: Any, labels: Any) -> Any:
        """The gradients of a batch; returns its mean loss."""
        loss = self._forward(images, labels)
        self._scaler.scale(loss).backward()
        return loss.detach()

    def _in_parts(self, images: Any, labels: Any) -> Any:
        """The same from one micro-batch after the other."""
        size = len(images) // self._parts
        parts = list(zip(images.split(size), labels.split(size), strict=True))
        with self.hold():
            held = sum(self._one_part(*part) for part in parts[:-1])
        return held + self._one_part(*parts[-1])

    def _one_part(self, images: Any, labels: Any) -> Any:
        loss = self._forward(images, labels) / self._parts
        self._scaler.scale(loss).backward()
        return loss.detach()

    def _forward(self, images: Any, labels: Any) -> Any:
        with self._autocast:
            return self.torch.nn.functional.cross_entropy(self._model(images), labels)

    def _moved(self, step: int) -> tuple[Any, Any]:
        """The feed's batch on the device."""
        images, labels = map(self.torch.from_numpy, self._feed.batch(step))
        if self.cuda:
            images, labels = images.pin_memory(), labels.pin_memory()
        return images.to(**self._format), labels.to(self.device, non_blocking=True)
