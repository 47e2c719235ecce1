"""Networks in PyTorch, built from their layers' descriptions (workloads/layers.py, sequences.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from scaling.workloads import layers, sequences, weights
from scaling.workloads.layers import Layer, Shape
from scaling.workloads.specs import ModelSpec

# ---------------------------------------------------------------- modules
#
# Modules that torch lacks, for networks that read sequences.


class Mapped(nn.Module):
    """A function without parameters."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        return self._function(x)


class Learnt(nn.Module):
    """Base of modules with the parameters of the description, by its names and in its order."""

    weight: nn.Parameter

    def __init__(self, layer: Layer, shape: Shape) -> None:
        super().__init__()
        for each in layer.parameters(shape):
            self.register_parameter(each.name, nn.Parameter(torch.empty(each.shape)))


class Positions(Learnt):
    """Adds a vector to each position of (batch, length, width)."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight[: x.shape[1]]


class Segments(Learnt):
    """Adds the vector of the first segment to (batch, length, width)."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight[0]


class ClassToken(Learnt):
    """Puts a learnt vector in front of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to (batch, length + 1, width)."""
        return torch.cat([self.weight.expand(len(x), 1, -1).to(x.dtype), x], 1)


class LastState(nn.LSTM):
    """The last states of an LSTM; for the backward direction the state at the first position. torch has two
    biases. The second one is frozen, and `build` zeroes it: the description has one."""

    def __init__(self, inputs: int, width: int, *, both_ways: bool) -> None:
        super().__init__(inputs, width, batch_first=True, bidirectional=both_ways)
        for name, each in self.named_parameters():
            each.requires_grad_(not name.startswith("bias_hh"))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Map (batch, length, inputs) to (batch, width), or twice the width in both directions."""
        states: Tensor = super().forward(x)[1][0]
        return states.transpose(0, 1).flatten(1)


class Gated(Learnt):
    """down(silu(gate(x)) x up(x)), for x (batch, length, width)."""

    gate_weight: nn.Parameter
    up_weight: nn.Parameter
    down_weight: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        gate = functional.silu(functional.linear(x, self.gate_weight))
        return functional.linear(gate * functional.linear(x, self.up_weight), self.down_weight)


class TiedLogits(nn.Module):
    """Products with the vectors of an embedding, whose parameter this shares."""

    def __init__(self, words: nn.Embedding, *, bias: bool) -> None:
        super().__init__()
        # In a tuple it is no child module.
        self._words = (words,)
        self.tie()
        self.bias = nn.Parameter(torch.empty(words.num_embeddings)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to (batch, length, words)."""
        return functional.linear(x, self.weight, self.bias)

    def tie(self) -> None:
        """Share the parameter again: `to_empty` gives each module its own."""
        self.weight = self._words[0].weight


class Attention(Learnt):
    """Scaled dot-product attention."""

    def __init__(self, layer: sequences.Attention, shape: Shape) -> None:
        super().__init__(layer, shape)
        self._layer, self._size = layer, shape[1] // layer.heads
        self._widths = layer.widths(shape[1])

    def forward(self, x: Tensor) -> Tensor:
        layer = self._layer
        queries, keys, values = map(self._by_head, self._projected(x))
        if layer.rotary:
            angles = _angles(x.shape[1], self._size, layer.rotary, x.device)
            queries, keys = _turned(queries, *angles), _turned(keys, *angles)
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values,
            dropout_p=layer.dropout if self.training else 0.0,
            is_causal=layer.causal,
            enable_gqa=layer.key_heads != layer.heads,
        )  # fmt: skip
        return self._linear("output", mixed.transpose(1, 2).flatten(2))

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        if self._layer.fused:
            width, keys = self._widths
            queries, keys_, values = torch.split(self._linear("qkv", x), [width, keys, keys], -1)
            return queries, keys_, values
        return tuple(self._linear(name, x) for name in ("query", "key", "value"))

    def _linear(self, name: str, x: Tensor) -> Tensor:
        weight = self._parameters[f"{name}_weight"]
        assert weight is not None
        return functional.linear(x, weight, self._parameters.get(f"{name}_bias"))

    def _by_head(self, x: Tensor) -> Tensor:
        """Map (batch, length, heads x size) to (batch, heads, length, size)."""
        return x.view(*x.shape[:2], -1, self._size).transpose(1, 2)


def _angles(length: int, size: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of each position's angles: (length, size / 2), float32 (Su 2021, section 3.2.2)."""
    powers = torch.arange(0, size, 2, device=device, dtype=torch.float32) / size
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), base**-powers)
    return angles.cos(), angles.sin()


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each value of a head's first half with its partner in the second half, as Hugging Face does."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1).to(x.dtype)


# ---------------------------------------------------------------- network


def build(spec: ModelSpec, seed: int) -> nn.Module:
    """Return the network with the weights of a seed: float32, on the CPU, in training mode. It maps images (batch,
    channels, height, width) or tokens (batch, length) to logits."""
    network = empty(spec).to_empty(device="cpu")
    for each in network.modules():
        if isinstance(each, TiedLogits):
            each.tie()
    load(network, weights.draw(spec, seed))
    for parameter in network.parameters():
        if not parameter.requires_grad:
            nn.init.zeros_(parameter)
    for norm in norms(network):
        norm.reset_running_stats()
    if known := weights.statistics(spec):
        for norm, (mean, variance) in zip(norms(network), known, strict=True):
            norm.running_mean, norm.running_var = torch.tensor(mean), torch.tensor(variance)
    return network


def empty(spec: ModelSpec) -> nn.Module:
    """Return the network on torch's meta device, without memory."""
    with torch.device("meta"):
        return _Builder(spec).chain(spec.layers, "")


def trained(network: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the trained parameters in the description's shapes, order and names (except an LSTM's names)."""
    return ((name, each) for name, each in network.named_parameters() if each.requires_grad)


def norms(network: nn.Module) -> list[nn.BatchNorm1d | nn.BatchNorm2d]:
    return [each for each in network.modules() if isinstance(each, nn.BatchNorm1d | nn.BatchNorm2d)]


def statistics(network: nn.Module) -> tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]:
    both = ((norm.running_mean, norm.running_var) for norm in norms(network))
    return tuple((_array(mean), _array(variance)) for mean, variance in both)


def _array(of: Tensor | None) -> NDArray[np.float32]:
    assert of is not None
    found: NDArray[np.float32] = of.detach().cpu().numpy().copy()
    return found


def load(network: nn.Module, drawn: Iterable[tuple[str, NDArray[np.float32]]]) -> None:
    with torch.no_grad():
        for (name, parameter), (path, array) in zip(trained(network), drawn, strict=True):
            if parameter.shape != array.shape:
                raise ValueError(f"{path} is {array.shape}, and {name} {tuple(parameter.shape)}")
            parameter.copy_(torch.from_numpy(array))


class Residual(nn.Module):
    """The sum of two paths, one of which may be empty."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Tensor) -> Tensor:
        body: Tensor = self.body(x)
        short: Tensor = self.shortcut(x)
        # In place, as in torchvision, to save a large tensor. Not if autocast left one in half precision.
        return body.add_(short) if body.dtype == short.dtype else body + short


class Branches(nn.ModuleList):
    """Parallel paths, whose channels are concatenated."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([each(x) for each in self], 1)


class _Builder:
    """Walks a description once. `words` is the embedding that tied logits share."""

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
                return TiedLogits(self._words, bias=layer.bias)
        made = MAKERS[type(layer)](layer, self._shapes[path])
        if isinstance(made, nn.Embedding):
            self._words = made
        return made


def _pool(layer: layers.Pool, _shape: Shape) -> nn.Module:
    kind: Callable[..., nn.Module] = {"max": nn.MaxPool2d, "mean": nn.AvgPool2d}[layer.kind]
    return kind(layer.kernel, layer.stride, layer.pad, ceil_mode=layer.ceil)


def _activation(layer: layers.Activation, _shape: Shape) -> nn.Module:
    if layer.kind == "relu":
        # The layer before needs its input for backward, not its output.
        return nn.ReLU(inplace=True)
    return nn.GELU(approximate="tanh" if layer.kind == "gelu-tanh" else "none")


MAKERS: dict[type[Layer], Callable[[Any, Shape], nn.Module]] = {
    layers.Conv: lambda layer, shape: nn.Conv2d(
        shape[0], layer.channels, layer.kernel, layer.stride, layer.pad, bias=layer.bias
    ),
    layers.Pool: _pool,
    layers.GlobalMean: lambda _layer, _shape: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    layers.Flatten: lambda _layer, _shape: nn.Flatten(),
    layers.BatchNorm: lambda layer, shape: (nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d)(
        shape[0], layer.epsilon, 1 - layer.momentum
    ),
    layers.Dense: lambda layer, shape: nn.Linear(shape[-1], layer.width, bias=layer.bias),
    layers.Activation: _activation,
    layers.Dropout: lambda layer, _shape: nn.Dropout(layer.rate),
    # (batch, length) to float (batch, length, words)
    sequences.OneHot: lambda layer, _shape: Mapped(lambda x: functional.one_hot(x, layer.words).float()),
    sequences.Embedding: lambda layer, _shape: nn.Embedding(layer.words, layer.width),
    sequences.Positions: Positions,
    sequences.Segments: Segments,
    # (batch, channels, height, width) to (batch, places, channels)
    sequences.Patches: lambda _layer, _shape: Mapped(lambda x: x.flatten(2).transpose(1, 2)),
    sequences.ClassToken: ClassToken,
    # (batch, length, width) to (batch, width)
    sequences.First: lambda _layer, _shape: Mapped(lambda x: x[:, 0]),
    sequences.LSTM: lambda layer, shape: LastState(shape[1], layer.width, both_ways=layer.both_ways),
    sequences.LayerNorm: lambda layer, shape: nn.LayerNorm(shape[-1], layer.epsilon),
    sequences.RMSNorm: lambda layer, shape: nn.RMSNorm(shape[-1], layer.epsilon),
    sequences.Attention: Attention,
    sequences.Gated: Gated,
}
