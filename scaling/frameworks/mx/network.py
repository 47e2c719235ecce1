"""Networks in Gluon, channels first, built of the layers that describe them (workloads/layers, sequences)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scaling.frameworks.mx import blocks
from scaling.frameworks.mx.library import mx
from scaling.workloads import layers, sequences, weights
from scaling.workloads.layers import Layer, Shape
from scaling.workloads.specs import ModelSpec

nn = mx.gluon.nn
Array: TypeAlias = NDArray[np.float32]
Block: TypeAlias = "mx.gluon.HybridBlock"
Value: TypeAlias = "mx.nd.NDArray | mx.sym.Symbol"
# Of Gluon's parameters, by the name in the description.
NAMES = {"weight": "gamma", "bias": "beta"}
LSTM_NAMES = {"weight_input": "i2h_weight", "weight_state": "h2h_weight", "bias": "i2h_bias"}


def build(spec: ModelSpec, seed: int, contexts: Sequence[mx.Context]) -> Network:
    """The network on all contexts, float32, with the weights of a seed.

    It takes images (batch, channels, height, width) or tokens (batch, length), and returns logits.
    """
    net = empty(spec, contexts)
    load(net, weights.draw(spec, seed))
    if known := weights.statistics(spec):
        for norm, (mean, variance) in zip(net.norms, known, strict=True):
            norm.running_mean.set_data(mx.nd.array(mean))
            norm.running_var.set_data(mx.nd.array(variance))
    return net


def empty(spec: ModelSpec, contexts: Sequence[mx.Context]) -> Network:
    """The network, its weights all zero."""
    net = Network(spec)
    net.initialize(mx.initializer.Zero(), ctx=list(contexts))
    return net


def notes(_spec: ModelSpec) -> tuple[str, ...]:
    """What a reader of its rate should know."""
    return ()


# ---------------------------------------------------------------- weights


def parameters(net: Network) -> dict[str, mx.gluon.Parameter]:
    """What is trained, by the description's names and in its order and shapes."""
    return net.trained


def load(net: Network, arrays: Iterable[tuple[str, Array]]) -> None:
    """Set all that is trained from names and arrays of the description, in its order.

    Raises ValueError where they are not the network's.
    """
    for (wanted, parameter), (name, array) in zip(parameters(net).items(), arrays, strict=True):
        if name != wanted or array.shape != parameter.shape:
            raise ValueError(f"{name} is {array.shape}, and the network has {wanted} {parameter.shape}")
        parameter.set_data(mx.nd.array(array, dtype=parameter.dtype))


def read(net: Network) -> Iterator[tuple[str, Array]]:
    """The reverse: names and arrays as the description has them."""
    for name, parameter in parameters(net).items():
        yield name, parameter.data(parameter.list_ctx()[0]).asnumpy()


def _parameter(block: Block, layer: Layer, name: str) -> mx.gluon.Parameter:
    if isinstance(layer, layers.BatchNorm | sequences.LayerNorm):
        name = NAMES[name]
    elif isinstance(layer, sequences.LSTM):
        side = "r" if name.endswith("_reverse") else "l"
        block, name = block.memory, f"{side}0_{LSTM_NAMES[name.removesuffix('_reverse')]}"
    return getattr(block, name)


# ---------------------------------------------------------------- layers


class Network(mx.gluon.HybridBlock):  # type: ignore[misc]
    """A description's blocks; `trained` are their parameters by the description's names and `norms` every batch
    norm, in its order."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        builder = _Builder(spec)
        self.body = builder.chain(spec.layers, "")
        self.trained, self.norms = builder.trained, builder.norms

    def hybrid_forward(self, _operators: ModuleType, x: Value) -> Value:
        """Gluon calls it with its operators on arrays or on symbols."""
        return self.body(x)


class _Builder:
    """Goes through a description once; `words` is the embedding that tied logits share."""

    def __init__(self, spec: ModelSpec) -> None:
        self.trained: dict[str, mx.gluon.Parameter] = {}
        self.norms: list[Block] = []
        self._placed = {each.path: each for each in spec.placed}
        self._words: Block | None = None

    def chain(self, body: Iterable[Layer], path: str) -> Block:
        net = nn.HybridSequential()
        for index, layer in enumerate(body):
            net.add(self.one(layer, f"{path}{index}"))
        return net

    def one(self, layer: Layer, path: str) -> Block:
        match layer:
            case layers.Chain(body):
                return self.chain(body, f"{path}.")
            case layers.Residual(body, shortcut):
                return blocks.Residual(
                    self.chain(body, f"{path}.body."), self.chain(shortcut, f"{path}.shortcut.")
                )
            case layers.Branches(ways):
                return blocks.Branches([self.chain(each, f"{path}.{index}.") for index, each in enumerate(ways)])
            case sequences.TiedLogits():
                made = blocks.TiedLogits(self._words, layer)
            case _:
                made = MAKERS[type(layer)](layer, self._placed[path].shape)
        if isinstance(layer, sequences.Embedding):
            self._words = made
        elif isinstance(layer, layers.BatchNorm):
            self.norms.append(made)
        for each in self._placed[path].parameters:
            self.trained[f"{path}.{each.name}"] = _parameter(made, layer, each.name)
        return made


def _conv(layer: layers.Conv, shape: Shape) -> Block:
    return nn.Conv2D(
        layer.channels, layers.pair(layer.kernel), layer.stride, layers.pair(layer.pad),
        in_channels=shape[0], use_bias=layer.bias,
    )  # fmt: skip


def _pool(layer: layers.Pool, _shape: Shape) -> Block:
    kind = {"max": nn.MaxPool2D, "mean": nn.AvgPool2D}[layer.kind]
    return kind(layer.kernel, layer.stride, layer.pad, ceil_mode=layer.ceil)


def _global_mean(_layer: Layer, _shape: Shape) -> Block:
    net = nn.HybridSequential()
    net.add(nn.GlobalAvgPool2D(), nn.Flatten())
    return net


def _activation(layer: layers.Activation, _shape: Shape) -> Block:
    if layer.kind == "relu":
        return nn.Activation("relu")
    return nn.GELU() if layer.kind == "gelu" else blocks.GELUTanh()


MAKERS: dict[type[Layer], Callable[[Any, Shape], Block]] = {
    layers.Conv: _conv,
    layers.Pool: _pool,
    layers.GlobalMean: _global_mean,
    layers.Flatten: lambda _layer, _shape: nn.Flatten(),
    layers.BatchNorm: lambda each, shape: nn.BatchNorm(
        momentum=each.momentum, epsilon=each.epsilon, in_channels=shape[0]
    ),
    layers.Dense: lambda each, shape: nn.Dense(each.width, use_bias=each.bias, flatten=False, in_units=shape[-1]),
    layers.Activation: _activation,
    layers.Dropout: lambda each, _shape: nn.Dropout(each.rate),
    sequences.OneHot: lambda each, _shape: blocks.OneHot(each.words),
    sequences.Embedding: lambda each, _shape: nn.Embedding(each.words, each.width),
    sequences.Positions: blocks.Positions,
    sequences.Segments: blocks.Segments,
    sequences.Patches: lambda _layer, _shape: blocks.Patches(),
    sequences.ClassToken: lambda _layer, shape: blocks.ClassToken(shape),
    sequences.First: lambda _layer, _shape: blocks.First(),
    sequences.LSTM: blocks.LastState,
    sequences.LayerNorm: lambda each, shape: nn.LayerNorm(epsilon=each.epsilon, in_channels=shape[-1]),
    sequences.RMSNorm: blocks.RMSNorm,
    sequences.Attention: blocks.Attention,
    sequences.Gated: blocks.Gated,
}
