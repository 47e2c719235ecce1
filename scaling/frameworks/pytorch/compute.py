"""The computation of a rank's gradients on a CPU or GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling.frameworks import feeding, outside
from scaling.frameworks.pytorch import native_feed, network, strategies
from scaling.hosts import proc
from scaling.records import point
from scaling.records.task import Task
from scaling.workloads import feeds, models
from scaling.workloads.feeds.batches import Fixed
from scaling.workloads.specs import IGNORED, Binary, MaskedTokens, NextToken, Recipe, Target

# ---------------------------------------------------------------- optimizers
#
# Constants that a recipe does not give are those of Keras.


EPSILON = 1e-7
OPTIMIZERS: dict[point.Optimizer, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.9, "eps": EPSILON}),
    "adadelta": (torch.optim.Adadelta, {"rho": 0.95, "eps": EPSILON}),
    "adam": (torch.optim.Adam, {"eps": EPSILON}),
    "adamw": (torch.optim.AdamW, {"eps": EPSILON}),
}


def optimizer_of(
    recipe: Recipe, parameters: Iterable[nn.Parameter], *, fused: bool = False
) -> torch.optim.Optimizer:
    """Return a recipe's optimiser of the trained parameters; with `fused` one kernel updates all of them."""
    kind, constants = OPTIMIZERS[recipe.optimizer]
    if recipe.optimizer == "sgd":
        constants = {"momentum": recipe.momentum}
    if fused:
        constants = {**constants, "fused": True}
    trained = [each for each in parameters if each.requires_grad]
    return kind(trained, lr=recipe.rate, weight_decay=recipe.decay, **constants)  # type: ignore[call-arg]


# ---------------------------------------------------------------- losses


Loss = Callable[[Tensor, Tensor], Tensor]


def loss_of(target: Target) -> Loss:
    """Return a function of logits and labels to their mean loss over everything that counts."""
    match target:
        case Binary():
            return _binary
        case NextToken() | MaskedTokens():
            return _tokens
        case _:
            return functional.cross_entropy


def _binary(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits (batch, 1), labels 0 or 1."""
    return functional.binary_cross_entropy_with_logits(logits[:, 0].float(), labels.float())


def _tokens(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


# ---------------------------------------------------------------- compute

# Images and their labels.
Batch = tuple[Tensor, Tensor]


class Optimizer(Protocol):
    """What updates the parameters: an optimiser of torch, Horovod's wrapper, or parameter servers."""

    def zero_grad(self) -> None:
        """Begin a step."""

    def step(self) -> object:
        """End a step."""


class RealCompute:
    """The model's loss and recipe on a CPU or a GPU. `model` is the module with the exchange. `learns`: the loss
    has a meaning."""

    learns = True
    model: Callable[[Tensor], Tensor]
    _autocast: torch.autocast
    _scaler: torch.amp.GradScaler
    _feed: feeding.Opened

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
            torch.cuda.set_device(device)
            torch.backends.cudnn.benchmark = True
            # It must be set: torch convolves "fp32" in TF32 by default.
            tf32 = workload.precision == "tf32"
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        self.name = torch.cuda.get_device_name(device) if self._cuda else proc.cpu_model(proc.cpuinfo())

    def build(self) -> nn.Module:
        """Build the point's model. Raises ImportError if a package that it needs is missing."""
        return network.build(self._spec, self._task.seed)

    def place(self, module: nn.Module) -> nn.Module:
        return module.to(**self._format)

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return optimizer_of(self._spec.recipe, parameters, fused=strategies.fused(self._task.point))

    def start(self) -> Batch | None:
        """Set precision and feed, with the exchange connected. Return the batch of all steps if they share one."""
        precision = self._task.point.workload.precision
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        self._autocast = torch.autocast(self._device.type, dtype=half, enabled=half is not None)
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=precision == "fp16")
        self._feed = self.open()
        return self.batch(0) if self._feed.fixed else None

    def open(self) -> feeding.Opened:
        return feeding.opened(self._task, self._spec, native_feed.Loader)

    def batch(self, step: int) -> Batch:
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
        """Normalise bytes of a native feed on the device: bytes are a quarter of the transfer."""
        if self._pixels is None:
            found = feeds.encoded_pictures(self._task, self._spec)
            scale, shift = (torch.from_numpy(each).to(self._device) for each in (found.scale, found.shift))
            self._pixels = scale, shift
        scale, shift = self._pixels
        return (images * scale).sub_(shift)

    def predict(self, module: nn.Module, inputs: Tensor) -> Tensor:
        module.eval()
        with torch.no_grad(), self._autocast:
            logits = module(self._moved(inputs))
        module.train()
        found: Tensor = logits[:, 0] > 0 if isinstance(self._spec.target, Binary) else logits.argmax(1)
        return found.long().cpu()

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        with self._autocast:
            return self._losses(self.model(images), labels)

    def backward(self, images: Tensor, labels: Tensor, parts: int = 1) -> Tensor:
        """Compute gradients of a batch or of one of `parts` micro-batches; with fp16 they are scaled, so that none
        underflows. Return its share of the mean loss."""
        loss = self.forward(images, labels)
        if parts > 1:
            loss = loss / parts
        self._scaler.scale(loss).backward()
        return loss.detach()

    def update(self, optimizer: Optimizer) -> None:
        """Update the parameters; with fp16 only if all gradients are finite."""
        # With fp16 this is one of torch's. Otherwise the scaler only calls its step().
        self._scaler.step(optimizer)  # type: ignore[arg-type]
        self._scaler.update()

    def sync(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self._device)


class OwnCompute(RealCompute):
    """A model of a user's file, on one batch of its own. Without a function `loss` it is the cross-entropy."""

    def build(self) -> nn.Module:
        """Return the result of NAME(), with the weights of the seed on every rank."""
        self._file = outside.Model(self._spec.name)
        made = self._file.make()
        if not isinstance(made, nn.Module):
            raise self._file.wrong("", made, "a torch.nn.Module")
        return made.train()

    def open(self) -> feeding.Opened:
        generator = torch.Generator().manual_seed(hash((self._task.seed, self._task.rank)))
        found = self._file.batch(self._task.point.workload.batch_size, generator)
        if not all(isinstance(each, Tensor) for each in found):
            raise self._file.wrong("batch", found[0], "two tensors")
        return feeding.Opened(Fixed(found))

    def _normalised(self, images: Tensor) -> Tensor:
        """Return bytes as the file gives them."""
        return images

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        with self._autocast, self._file.located():
            outputs = self.model(images)
            if self._file.loss is None:
                return self._losses(outputs, labels)
            loss = self._file.loss(outputs, labels)
        if not isinstance(loss, Tensor) or loss.ndim:
            raise self._file.wrong("loss", loss, "a tensor of one number")
        return loss
