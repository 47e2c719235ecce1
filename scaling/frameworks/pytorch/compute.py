"""What computes a rank's gradients: its CPU or GPU, here, or a device that sleeps (loop.py).

The training loop (loop.py) is the same for both, and so are the strategies' classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling.frameworks.feeding import Opened
from scaling.frameworks.pytorch import native_feed, network
from scaling.hosts import proc
from scaling.records import point
from scaling.records.task import Task
from scaling.workloads import feeds, models
from scaling.workloads.specs import IGNORED, Binary, MaskedTokens, NextToken, Recipe, Target

# ---------------------------------------------------------------- optimizers
#
# The optimisers of the models' recipes, with the constants that Keras gives them where a recipe says nothing.


EPSILON = 1e-7
OPTIMIZERS: dict[point.Optimizer, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.9, "eps": EPSILON}),
    "adadelta": (torch.optim.Adadelta, {"rho": 0.95, "eps": EPSILON}),
    "adam": (torch.optim.Adam, {"eps": EPSILON}),
    "adamw": (torch.optim.AdamW, {"eps": EPSILON}),
}


def optimizer_of(recipe: Recipe, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """One that updates what is trained."""
    kind, constants = OPTIMIZERS[recipe.optimizer]
    if recipe.optimizer == "sgd":
        constants = {"momentum": recipe.momentum}
    trained = [each for each in parameters if each.requires_grad]
    return kind(trained, lr=recipe.rate, weight_decay=recipe.decay, **constants)  # type: ignore[call-arg]


# ---------------------------------------------------------------- losses
#
# The loss of what a model learns.


Loss = Callable[[Tensor, Tensor], Tensor]


def loss_of(target: Target) -> Loss:
    """A function of logits and labels that gives their mean loss, over what counts."""
    match target:
        case Binary():
            return _binary
        case NextToken() | MaskedTokens():
            return _tokens
        case _:
            return functional.cross_entropy


def _binary(logits: Tensor, labels: Tensor) -> Tensor:
    """Of one logit per sample; labels are 0 or 1."""
    return functional.binary_cross_entropy_with_logits(logits[:, 0].float(), labels.float())


def _tokens(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits (batch, length, words), labels (batch, length)."""
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


# ---------------------------------------------------------------- compute

# Images and their labels.
Batch = tuple[Tensor, Tensor]


class Optimizer(Protocol):
    """What updates the parameters: one of torch's, Horovod's around it, or the servers that stand for one."""

    def zero_grad(self) -> None:
        """Begin a step."""

    def step(self) -> object:
        """End it."""


class Compute(Protocol):
    """A device that computes. `model` is what a step calls in place of the module, with the gradient exchange
    inside; without `learns` the loss says nothing."""

    name: str
    model: Callable[[Tensor], Tensor]
    learns: bool

    def build(self) -> nn.Module:
        """The point's model; ImportError when it needs a package that is not installed."""

    def place(self, module: nn.Module) -> nn.Module:
        """The model, where it is trained."""

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """That of the plain loop."""

    def start(self) -> Batch | None:
        """Training begins, its exchange connected; returns the batch of all steps where they share one."""

    def batch(self, step: int) -> Batch:
        """Begin a step with its batch."""

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean loss."""

    def backward(self, images: Tensor, labels: Tensor, parts: int = 1) -> Tensor:
        """Both passes over a batch, or over one of so many micro-batches: the gradients, and its share of the
        mean loss."""

    def update(self, optimizer: Optimizer) -> None:
        """End a step: the gradients of all ranks are there, or on their way to the servers."""

    def sync(self) -> None:
        """Wait for the device."""


class RealCompute:
    """The model's loss and recipe on a CPU or a GPU."""

    learns = True
    model: Callable[[Tensor], Tensor]
    _autocast: torch.autocast
    _scaler: torch.amp.GradScaler
    _feed: Opened

    def __init__(self, task: Task, device: torch.device) -> None:
        workload = task.point.workload
        self._task, self._device, self._cuda = task, device, device.type == "cuda"
        self._spec = models.at(task.point)
        self._losses = loss_of(self._spec.target)
        self._pixels: tuple[Tensor, Tensor] | None = None
        last = workload.memory_format == "channels_last"
        layout = torch.channels_last if last else torch.contiguous_format
        # The stubs of Module.to have no memory_format.
        self._format: dict[str, Any] = {"device": device, "memory_format": layout, "non_blocking": True}
        torch.set_num_threads(task.threads)
        if self._cuda:
            _prepare_cuda(device, tf32=workload.precision == "tf32")
        self.name = torch.cuda.get_device_name(device) if self._cuda else proc.cpu_model(proc.cpuinfo())

    def build(self) -> nn.Module:
        """With the weights of the task's seed."""
        return network.build(self._spec, self._task.seed)

    def place(self, module: nn.Module) -> nn.Module:
        """On the device, in the memory format that was asked for."""
        return module.to(**self._format)

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The same in every strategy."""
        return optimizer_of(self._spec.recipe, parameters)

    def start(self) -> Batch | None:
        """Precision and feed; images that stay the same go to the device once."""
        precision = self._task.point.workload.precision
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        self._autocast = torch.autocast(self._device.type, dtype=half, enabled=half is not None)
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=precision == "fp16")
        self._feed = native_feed.opened(self._task, self._spec)
        return self.batch(0) if self._feed.fixed else None

    def batch(self, step: int) -> Batch:
        """The feed's, on the device."""
        images, labels = map(torch.as_tensor, self._feed.batch(step))
        if self._cuda:
            labels = labels.pin_memory()
        return self._moved(images), labels.to(self._device, non_blocking=True)

    def _moved(self, images: Tensor) -> Tensor:
        if self._cuda:
            images = images.pin_memory()
        # Only images have a memory format.
        how = self._format if images.ndim == 4 else {"device": self._device, "non_blocking": True}
        moved = images.to(**how)
        return self._normalised(moved) if images.dtype == torch.uint8 else moved

    def _normalised(self, images: Tensor) -> Tensor:
        """Bytes as a native feed has them, of which a quarter is moved."""
        if self._pixels is None:
            found = feeds.encoded_pictures(self._task, self._spec)
            scale, shift = (torch.from_numpy(each).to(self._device) for each in (found.scale, found.shift))
            self._pixels = scale, shift
        scale, shift = self._pixels
        return (images * scale).sub_(shift)

    def predict(self, module: nn.Module, inputs: Tensor) -> Tensor:
        """The class that each sample is taken for, on the CPU."""
        module.eval()
        with torch.no_grad(), self._autocast:
            logits = module(self._moved(inputs))
        module.train()
        found: Tensor = logits[:, 0] > 0 if isinstance(self._spec.target, Binary) else logits.argmax(1)
        return found.long().cpu()

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """In the precision that was asked for."""
        with self._autocast:
            return self._losses(self.model(images), labels)

    def backward(self, images: Tensor, labels: Tensor, parts: int = 1) -> Tensor:
        """With fp16 the gradients come scaled, so that none of them vanishes."""
        loss = self.forward(images, labels)
        if parts > 1:
            loss = loss / parts
        self._scaler.scale(loss).backward()
        return loss.detach()

    def update(self, optimizer: Optimizer) -> None:
        """The parameters, with fp16 only if all gradients are finite."""
        # With fp16 it is one of torch's; else this does no more than its step().
        self._scaler.step(optimizer)  # type: ignore[arg-type]
        self._scaler.update()

    def sync(self) -> None:
        """Wait for the GPU; on CPU a step has ended when it returns."""
        if self._cuda:
            torch.cuda.synchronize(self._device)


def _prepare_cuda(device: torch.device, *, tf32: bool) -> None:
    """Take a GPU. Torch convolves in TF32 by default: "fp32" must switch it off."""
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
