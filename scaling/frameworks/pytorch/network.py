"""Networks in PyTorch, built of the layers that describe them (workloads/layers.py, sequences.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scaling.frameworks.pytorch import modules
from scaling.workloads import layers, sequences, weights
from scaling.workloads.layers import Layer, Shape
from scaling.workloads.specs import ModelSpec


def build(spec: ModelSpec, seed: int) -> nn.Module:
    """The network with the weights of a seed: float32, on the CPU, in training mode.

    It takes images (batch, channels, height, width) or tokens (batch, length), and returns logits.
    """
    network = empty(spec).to_empty(device="cpu")
    for each in network.modules():
        if isinstance(each, modules.TiedLogits):
            each.tie()
    load(network, weights.draw(spec, seed))
    for each in network.modules():
        if isinstance(each, modules.LastState):
            each.reset_frozen()
    for norm in norms(network):
        norm.reset_running_stats()
    if known := weights.statistics(spec):
        for norm, (mean, variance) in zip(norms(network), known, strict=True):
            norm.running_mean, norm.running_var = torch.tensor(mean), torch.tensor(variance)
    return network


def empty(spec: ModelSpec) -> nn.Module:
    """The network on torch's meta device: without memory."""
    with torch.device("meta"):
        return _Builder(spec).chain(spec.layers, "")


def trained(network: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """What is trained, with the description's names, but for an LSTM's; in its shapes and order."""
    return ((name, each) for name, each in network.named_parameters() if each.requires_grad)


def norms(network: nn.Module) -> list[nn.BatchNorm1d | nn.BatchNorm2d]:
    """Every batch norm, in the description's order."""
    return [each for each in network.modules() if isinstance(each, nn.BatchNorm1d | nn.BatchNorm2d)]


def statistics(network: nn.Module) -> tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]:
    """The running mean and variance of each."""
    both = ((norm.running_mean, norm.running_var) for norm in norms(network))
    return tuple((_array(mean), _array(variance)) for mean, variance in both)


def _array(of: Tensor | None) -> NDArray[np.float32]:
    assert of is not None
    found: NDArray[np.float32] = of.detach().cpu().numpy().copy()
    return found


def load(network: nn.Module, drawn: Iterable[tuple[str, NDArray[np.float32]]]) -> None:
    """Set all that is trained; ValueError where the arrays are not the network's."""
    with torch.no_grad():
        for (name, parameter), (path, array) in zip(trained(network), drawn, strict=True):
            if parameter.shape != array.shape:
                raise ValueError(f"{path} is {array.shape}, and {name} {tuple(parameter.shape)}")
            parameter.copy_(torch.from_numpy(array))


class Residual(nn.Module):
    """The sum of two ways, one of which may be empty."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Of equal shapes."""
        body: Tensor = self.body(x)
        short: Tensor = self.shortcut(x)
        # In place, as torchvision adds: a large tensor less. Not where autocast left one in half precision.
        return body.add_(short) if body.dtype == short.dtype else body + short


class Branches(nn.ModuleList):
    """Ways beside each other, their channels one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        """Of equal heights and widths."""
        return torch.cat([each(x) for each in self], 1)


class _Builder:
    """Goes through a description once; `words` is the embedding that tied logits share."""

    def __init__(self, spec: ModelSpec) -> None:
        self._shapes = {each.path: each.shape for each in spec.placed}
        self._words: nn.Embedding | None = None

    def chain(self, body: Iterable[Layer], path: str) -> nn.Module:
        return nn.Sequential(*(self.one(each, f"{path}{index}") for index, each in enumerate(body)))

    def one(self, layer: Layer, path: str) -> nn.Module:
        match layer:
            case layers.Chain(body):
                return self.chain(body, f"{path}.")
            case layers.Residual(body, shortcut):
                return Residual(self.chain(body, f"{path}.body."), self.chain(shortcut, f"{path}.shortcut."))
            case layers.Branches(branches):
                return Branches(self.chain(each, f"{path}.{index}.") for index, each in enumerate(branches))
            case sequences.TiedLogits():
                assert self._words is not None
                return modules.TiedLogits(self._words, bias=layer.bias)
        made = MAKERS[type(layer)](layer, self._shapes[path])
        if isinstance(made, nn.Embedding):
            self._words = made
        return made


def _pool(layer: layers.Pool, _shape: Shape) -> nn.Module:
    kind: Callable[..., nn.Module] = {"max": nn.MaxPool2d, "mean": nn.AvgPool2d}[layer.kind]
    return kind(layer.kernel, layer.stride, layer.pad, ceil_mode=layer.ceil)


def _norm(layer: layers.BatchNorm, shape: Shape) -> nn.Module:
    kind = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
    return kind(shape[0], layer.epsilon, 1 - layer.momentum)


def _activation(layer: layers.Activation, _shape: Shape) -> nn.Module:
    if layer.kind == "relu":
        # What comes before it needs its input, and not what it gave.
        return nn.ReLU(inplace=True)
    return nn.GELU(approximate="tanh" if layer.kind == "gelu-tanh" else "none")


def _conv(layer: layers.Conv, shape: Shape) -> nn.Module:
    return nn.Conv2d(shape[0], layer.channels, layer.kernel, layer.stride, layer.pad, bias=layer.bias)


MAKERS: dict[type[Layer], Callable[[Any, Shape], nn.Module]] = {
    layers.Conv: _conv,
    layers.Pool: _pool,
    layers.GlobalMean: lambda _layer, _shape: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    layers.Flatten: lambda _layer, _shape: nn.Flatten(),
    layers.BatchNorm: _norm,
    layers.Dense: lambda layer, shape: nn.Linear(shape[-1], layer.width, bias=layer.bias),
    layers.Activation: _activation,
    layers.Dropout: lambda layer, _shape: nn.Dropout(layer.rate),
    sequences.OneHot: lambda layer, _shape: modules.OneHot(layer.words),
    sequences.Embedding: lambda layer, _shape: nn.Embedding(layer.words, layer.width),
    sequences.Positions: lambda layer, shape: modules.Positions(layer.length, shape[1]),
    sequences.Segments: lambda layer, shape: modules.Segments(layer.kinds, shape[1]),
    sequences.Patches: lambda _layer, _shape: modules.Patches(),
    sequences.ClassToken: lambda _layer, shape: modules.ClassToken(shape[1]),
    sequences.First: lambda _layer, _shape: modules.First(),
    sequences.LSTM: lambda layer, shape: modules.LastState(shape[1], layer.width, both_ways=layer.both_ways),
    sequences.LayerNorm: lambda layer, shape: nn.LayerNorm(shape[-1], layer.epsilon),
    sequences.RMSNorm: lambda layer, shape: nn.RMSNorm(shape[-1], layer.epsilon),
    sequences.Attention: modules.Attention,
    sequences.Gated: lambda layer, shape: modules.Gated(shape[-1], layer.width),
}
