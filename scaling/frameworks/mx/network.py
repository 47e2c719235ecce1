"""Networks in Gluon, channels first, built from their layers' descriptions (workloads/layers.py, sequences.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scaling.frameworks.mx.library import mx
from scaling.workloads import layers, sequences, weights
from scaling.workloads.layers import Layer, Shape, Walk
from scaling.workloads.specs import ModelSpec

# ---------------------------------------------------------------- blocks
#
# Blocks that Gluon lacks, for sequences. Gluon calls each `hybrid_forward` with its operators
# (`F`), arrays or symbols, and the block's parameters by name.


Value: TypeAlias = "mx.nd.NDArray | mx.sym.Symbol"


def _gelu_tanh(F: ModuleType, x: Value) -> Value:
    """Return the tanh approximation of GELU (Hendrycks & Gimpel 2016)."""
    return 0.5 * x * (1 + F.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x * x * x)))


class Described(mx.gluon.HybridBlock):  # type: ignore[misc]
    """Base of blocks of one layer, with its parameters by its names and in its shapes."""

    _dtype = "float32"

    def __init__(self, layer: Any, shape: Shape) -> None:
        super().__init__()
        self._layer, self._shape = layer, shape
        for each in layer.parameters(shape):
            setattr(self, each.name, self.params.get(each.name, shape=each.shape))

    def cast(self, dtype: str) -> None:
        self._dtype = dtype
        super().cast(dtype)


class OneHot(Described):
    """A one-hot vector for each word."""

    def hybrid_forward(self, F: ModuleType, x: Value) -> Value:
        """Map (batch, length) to (batch, length, words)."""
        return F.one_hot(x, self._layer.words, dtype=self._dtype)


class Positions(Described):
    """Adds a vector to each position."""

    def hybrid_forward(self, F: ModuleType, x: Value, weight: Value) -> Value:
        used = F.slice_axis(weight, axis=0, begin=0, end=self._shape[0])
        return F.broadcast_add(x, F.expand_dims(used, axis=0))


class Segments(Described):
    """Adds the vector of the first segment."""

    def hybrid_forward(self, F: ModuleType, x: Value, weight: Value) -> Value:
        first = F.slice_axis(weight, axis=0, begin=0, end=1)
        return F.broadcast_add(x, F.expand_dims(first, axis=0))


def _patches(F: ModuleType, x: Value) -> Value:
    """Map an image (batch, channels, height, width) to (batch, places, channels)."""
    return F.transpose(F.reshape(x, (0, 0, -1)), (0, 2, 1))


class ClassToken(Described):
    """Puts a learnt vector in front of a sequence."""

    def hybrid_forward(self, F: ModuleType, x: Value, weight: Value) -> Value:
        """Map (batch, length, width) to (batch, length + 1, width)."""
        zeros = F.zeros_like(F.slice_axis(x, axis=1, begin=0, end=1))
        return F.concat(F.broadcast_add(zeros, F.reshape(weight, (1, 1, -1))), x, dim=1)


def _place(F: ModuleType, x: Value, index: int = 0) -> Value:
    """Map (batch, length, width) to one vector of the sequence: (batch, width)."""
    return F.reshape(F.slice_axis(x, axis=1, begin=index, end=index + 1), (0, -1))


class LastState(mx.gluon.HybridBlock):  # type: ignore[misc]
    """The last states of an LSTM; for the backward direction the state at the first position. MXNet has two
    biases. The second one stays zero and untrained, since the description has one."""

    def __init__(self, layer: sequences.LSTM, shape: Shape) -> None:
        super().__init__()
        length, before = shape
        self._last, self._width, self._both = length - 1, layer.width, layer.both_ways
        self.memory = mx.gluon.rnn.LSTM(
            layer.width, layout="NTC", bidirectional=layer.both_ways, input_size=before
        )
        for name, each in self.memory._reg_params.items():
            if name.endswith("h2h_bias"):
                each.grad_req = "null"

    def hybrid_forward(self, F: ModuleType, x: Value) -> Value:
        """Map (batch, length, inputs) to (batch, width), or twice the width in both directions."""
        states = self.memory(x)
        last = _place(F, states, self._last)
        if not self._both:
            return last
        width = self._width
        forward = F.slice_axis(last, axis=1, begin=0, end=width)
        return F.concat(forward, F.slice_axis(_place(F, states, 0), axis=1, begin=width, end=2 * width), dim=1)


class RMSNorm(Described):
    """Divides each vector by the root of its mean square."""

    def hybrid_forward(self, F: ModuleType, x: Value, weight: Value) -> Value:
        scale = F.rsqrt(F.mean(F.square(x), axis=-1, keepdims=True) + self._layer.epsilon)
        return F.broadcast_mul(F.broadcast_mul(x, scale), weight)


class Gated(Described):
    """down(silu(gate(x)) x up(x))."""

    def hybrid_forward(
        self, F: ModuleType, x: Value, gate_weight: Value, up_weight: Value, down_weight: Value
    ) -> Value:
        gate, up = (_linear(F, x, each, self._layer.width) for each in (gate_weight, up_weight))
        return _linear(F, gate * F.sigmoid(gate) * up, down_weight, self._shape[-1])


class TiedLogits(mx.gluon.HybridBlock):  # type: ignore[misc]
    """Products with the vectors of an embedding. The shared parameter counts once."""

    def __init__(self, words: mx.gluon.nn.Embedding, layer: sequences.TiedLogits) -> None:
        super().__init__()
        self._words = layer.words
        self.shared = words.weight
        if layer.bias:
            self.bias = self.params.get("bias", shape=(layer.words,))

    def hybrid_forward(self, F: ModuleType, x: Value, shared: Value, bias: Value | None = None) -> Value:
        """Map (batch, length, width) to (batch, length, words)."""
        return _linear(F, x, shared, self._words, bias)


def _linear(F: ModuleType, x: Value, weight: Value, width: int, bias: Value | None = None) -> Value:
    arrays = (x, weight) if bias is None else (x, weight, bias)
    return F.FullyConnected(*arrays, num_hidden=width, no_bias=bias is None, flatten=False)


class Attention(Described):
    """Scaled dot-product attention, with its parameters named and ordered as described."""

    def __init__(self, layer: sequences.Attention, shape: Shape) -> None:
        super().__init__(layer, shape)
        (self._length, self._width), self._size = shape, shape[1] // layer.heads
        self.dropout = mx.gluon.nn.Dropout(layer.dropout)
        if layer.rotary:
            cosine, sine = weights.angles(self._length, self._size, layer.rotary)
            self.cosine = self.params.get_constant("cosine", cosine)
            self.sine = self.params.get_constant("sine", sine)

    def hybrid_forward(self, F: ModuleType, x: Value, **given: Value) -> Value:
        layer, size = self._layer, self._size

        def project(x: Value, name: str, width: int) -> Value:
            return _linear(F, x, given[f"{name}_weight"], width, given.get(f"{name}_bias"))

        width, of_keys = layer.widths(self._width)
        widths = (width, of_keys, of_keys)
        if layer.fused:
            joined, edges = project(x, "qkv", sum(widths)), np.cumsum((0, *widths)).tolist()
            projected = [F.slice_axis(joined, axis=-1, begin=start, end=stop) for start, stop in pairwise(edges)]
        else:
            names = ("query", "key", "value")
            projected = [project(x, name, wide) for name, wide in zip(names, widths, strict=True)]
        # (batch, heads, length, size)
        queries, keys, values = (
            F.transpose(F.reshape(each, (0, 0, wide // size, size)), (0, 2, 1, 3))
            for each, wide in zip(projected, widths, strict=True)
        )
        if layer.rotary:
            queries, keys = (self._turned(F, each, given["cosine"], given["sine"]) for each in (queries, keys))
        shared = layer.heads // layer.key_heads
        if shared > 1:
            keys, values = (F.repeat(each, repeats=shared, axis=1) for each in (keys, values))
        queries, keys, values = (F.reshape(each, (-3, 0, 0)) for each in (queries, keys, values))
        scores = F.batch_dot(queries, keys, transpose_b=True) / size**0.5
        if layer.causal:
            scores = F.broadcast_add(scores, F.cast(self._hidden(F), self._dtype))
        mixed = F.batch_dot(self.dropout(F.softmax(scores)), values)
        joined = F.reshape(F.transpose(F.reshape(mixed, (-4, -1, layer.heads, 0, 0)), (0, 2, 1, 3)), (0, 0, -3))
        return project(joined, "output", width)

    def _turned(self, F: ModuleType, x: Value, cosine: Value, sine: Value) -> Value:
        """Rotate each value of a head's first half with the corresponding value of the second half."""
        first, second = F.split(x, num_outputs=2, axis=-1)
        times = F.broadcast_mul
        return F.concat(
            times(first, cosine) - times(second, sine), times(second, cosine) + times(first, sine), dim=-1
        )

    def _hidden(self, F: ModuleType) -> Value:
        """Return (1, length, length): -3e4 where a position would see a later one. fp16 can hold this value."""
        row = F.arange(self._length)
        later = F.broadcast_greater(F.reshape(row, (1, 1, -1)), F.reshape(row, (1, -1, 1)))
        return -3e4 * later


# ---------------------------------------------------------------- network

nn = mx.gluon.nn
Array: TypeAlias = NDArray[np.float32]
Block: TypeAlias = "mx.gluon.HybridBlock"
# Gluon's parameter names, by the description's.
NAMES = {"weight": "gamma", "bias": "beta"}
LSTM_NAMES = {"weight_input": "i2h_weight", "weight_state": "h2h_weight", "bias": "i2h_bias"}


def build(spec: ModelSpec, seed: int, contexts: Sequence[mx.Context]) -> Network:
    """Return the network on all contexts, float32, with the weights of a seed. It maps images (batch, channels,
    height, width) or tokens (batch, length) to logits."""
    net = empty(spec, contexts)
    load(net, weights.draw(spec, seed))
    if known := weights.statistics(spec):
        for norm, (mean, variance) in zip(net.norms, known, strict=True):
            norm.running_mean.set_data(mx.nd.array(mean))
            norm.running_var.set_data(mx.nd.array(variance))
    return net


def empty(spec: ModelSpec, contexts: Sequence[mx.Context]) -> Network:
    net = Network(spec)
    net.initialize(mx.initializer.Zero(), ctx=list(contexts))
    return net


# ---------------------------------------------------------------- weights


def load(net: Network, arrays: Iterable[tuple[str, Array]]) -> None:
    """Set all trained parameters from the description's names and arrays, in its order."""
    for parameter, (_, array) in zip(net.trained.values(), arrays, strict=True):
        parameter.set_data(mx.nd.array(array, dtype=parameter.dtype))


def read(net: Network) -> Iterator[tuple[str, Array]]:
    for name, parameter in net.trained.items():
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
    """A description's blocks.

    * trained: their parameters by the description's names.
    * norms: every batch norm, in order.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self._layers = spec.layers
        self.blocks: dict[str, Block] = {}
        self.trained: dict[str, mx.gluon.Parameter] = {}
        self.norms: list[Block] = []
        words: Block | None = None
        for placed in spec.placed:
            layer = placed.layer
            if isinstance(layer, sequences.TiedLogits):
                made = TiedLogits(words, layer)
            else:
                made = MAKERS[type(layer)](layer, placed.shape)
            self.blocks[placed.path] = made
            self.register_child(made)
            if isinstance(layer, sequences.Embedding):
                words = made
            elif isinstance(layer, layers.BatchNorm):
                self.norms.append(made)
            for each in placed.parameters:
                self.trained[f"{placed.path}.{each.name}"] = _parameter(made, layer, each.name)

    def hybrid_forward(self, F: ModuleType, x: Value) -> Value:
        return _Pass(self.blocks, F).chain(self._layers, x)


class _Pass(Walk[Value]):
    """One forward pass over a description's blocks."""

    def __init__(self, blocks: dict[str, Block], operators: ModuleType) -> None:
        self._blocks, self._operators = blocks, operators

    def one(self, _layer: Layer, x: Value, path: str) -> Value:
        return self._blocks[path](x)

    def add(self, body: Value, shortcut: Value, _path: str) -> Value:
        return body + shortcut

    def join(self, branches: list[Value], _path: str) -> Value:
        return self._operators.concat(*branches, dim=1)


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
    return nn.GELU() if layer.kind == "gelu" else nn.HybridLambda(_gelu_tanh)


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
    sequences.OneHot: OneHot,
    sequences.Embedding: lambda each, _shape: nn.Embedding(each.words, each.width),
    sequences.Positions: Positions,
    sequences.Segments: Segments,
    sequences.Patches: lambda _layer, _shape: nn.HybridLambda(_patches),
    sequences.ClassToken: ClassToken,
    sequences.First: lambda _layer, _shape: nn.HybridLambda(_place),
    sequences.LSTM: LastState,
    sequences.LayerNorm: lambda each, shape: nn.LayerNorm(epsilon=each.epsilon, in_channels=shape[-1]),
    sequences.RMSNorm: RMSNorm,
    sequences.Attention: Attention,
    sequences.Gated: Gated,
}
