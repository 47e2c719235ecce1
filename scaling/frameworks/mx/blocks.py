"""Blocks that Gluon does not have, for networks whose layers branch and for those that read words.

Each `hybrid_forward` is called by Gluon with its operators (`F`) on arrays or on symbols, and with the block's
parameters by their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from scaling.frameworks.mx.library import mx
from scaling.workloads import sequences
from scaling.workloads.layers import Layer, Shape

Value: TypeAlias = "mx.nd.NDArray | mx.sym.Symbol"


class Residual(mx.gluon.HybridBlock):  # type: ignore[misc]
    """The sum of two ways, one of which may be empty."""

    def __init__(self, body: mx.gluon.HybridBlock, shortcut: mx.gluon.HybridBlock) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def hybrid_forward(self, _operators: ModuleType, x: Value) -> Value:
        """Of equal shapes."""
        return self.body(x) + self.shortcut(x)


class Branches(mx.gluon.HybridBlock):  # type: ignore[misc]
    """Ways beside each other, their channels one after the other."""

    def __init__(self, branches: Sequence[mx.gluon.HybridBlock]) -> None:
        super().__init__()
        self._branches = branches
        for each in branches:
            self.register_child(each)

    def hybrid_forward(self, F: ModuleType, x: Value) -> Value:
        """Of equal heights and widths."""
        return F.concat(*(each(x) for each in self._branches), dim=1)


class GELUTanh(mx.gluon.HybridBlock):  # type: ignore[misc]
    """The approximation of GELU (Hendrycks & Gimpel 2016)."""

    def hybrid_forward(self, F: ModuleType, x: Value) -> Value:
        """Of each value."""
        return 0.5 * x * (1 + F.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x * x * x)))


class OneHot(mx.gluon.HybridBlock):  # type: ignore[misc]
    """A vector of zeros and a one for each word."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self._words, self._dtype = words, "float32"

    def cast(self, dtype: str) -> None:
        """What comes out; tokens stay whole."""
        self._dtype = dtype
        super().cast(dtype)

    def hybrid_forward(self, F: ModuleType, x: Value) -> Value:
        """(batch, length) to (batch, length, words)."""
        return F.one_hot(x, self._words, dtype=self._dtype)


class Learnt(mx.gluon.HybridBlock):  # type: ignore[misc]
    """One that has parameters by the description's names and in its shapes."""

    def __init__(self, layer: Layer, shape: Shape) -> None:
        super().__init__()
        for each in layer.parameters(shape):
            setattr(self, each.name, self.params.get(each.name, shape=each.shape))


class Positions(Learnt):
    """Adds a vector for each place."""

    def __init__(self, layer: sequences.Positions, shape: Shape) -> None:
        super().__init__(layer, shape)
        self._length = shape[0]

    def hybrid_forward(self, F: ModuleType, x: Value, weight: Value) -> Value:
        """(batch, length, width)."""
        used = F.slice_axis(weight, axis=0, begin=0, end=self._length)
        return F.broadcast_add(x, F.expand_dims(used, axis=0))


class Segments(Learnt):
    """Adds the vector of the first kind of sentence."""

    def hybrid_forward(self, F: ModuleType, x: Value, weight: Value) -> Value:
        """(batch, length, width)."""
        first = F.slice_axis(weight, axis=0, begin=0, end=1)
        return F.broadcast_add(x, F.expand_dims(first, axis=0))


class Patches(mx.gluon.HybridBlock):  # type: ignore[misc]
    """An image's places as a sequence."""

    def hybrid_forward(self, F: ModuleType, x: Value) -> Value:
        """(batch, channels, height, width) to (batch, places, channels)."""
        return F.transpose(F.reshape(x, (0, 0, -1)), (0, 2, 1))


class ClassToken(Learnt):
    """Puts a vector before a sequence."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(sequences.ClassToken(), shape)

    def hybrid_forward(self, F: ModuleType, x: Value, weight: Value) -> Value:
        """(batch, length, width) to one longer."""
        zeros = F.zeros_like(F.slice_axis(x, axis=1, begin=0, end=1))
        return F.concat(F.broadcast_add(zeros, F.reshape(weight, (1, 1, -1))), x, dim=1)


class First(mx.gluon.HybridBlock):  # type: ignore[misc]
    """The first vector of a sequence."""

    def hybrid_forward(self, F: ModuleType, x: Value) -> Value:
        """(batch, length, width) to (batch, width)."""
        return _place(F, x, 0)


def _place(F: ModuleType, x: Value, index: int) -> Value:
    return F.reshape(F.slice_axis(x, axis=1, begin=index, end=index + 1), (0, -1))


class LastState(mx.gluon.HybridBlock):  # type: ignore[misc]
    """The last states of an LSTM, the backward direction's at the first place.

    MXNet has two biases; the second stays zero and untrained, so that what is trained is what is described.
    """

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
        """(batch, length, inputs) to (batch, width), or twice the width."""
        states = self.memory(x)
        last = _place(F, states, self._last)
        if not self._both:
            return last
        width = self._width
        forward = F.slice_axis(last, axis=1, begin=0, end=width)
        return F.concat(forward, F.slice_axis(_place(F, states, 0), axis=1, begin=width, end=2 * width), dim=1)


class RMSNorm(Learnt):
    """Divides each vector by the root of its mean square."""

    def __init__(self, layer: sequences.RMSNorm, shape: Shape) -> None:
        super().__init__(layer, shape)
        self._epsilon = layer.epsilon

    def hybrid_forward(self, F: ModuleType, x: Value, weight: Value) -> Value:
        """(batch, length, width)."""
        scale = F.rsqrt(F.mean(F.square(x), axis=-1, keepdims=True) + self._epsilon)
        return F.broadcast_mul(F.broadcast_mul(x, scale), weight)


class Gated(Learnt):
    """down(silu(gate(x)) x up(x))."""

    def __init__(self, layer: sequences.Gated, shape: Shape) -> None:
        super().__init__(layer, shape)
        self._width, self._inside = shape[-1], layer.width

    def hybrid_forward(
        self,
        F: ModuleType,
        x: Value,
        gate_weight: Value,
        up_weight: Value,
        down_weight: Value,
    ) -> Value:
        """(batch, length, width)."""
        gate, up = _linear(F, x, gate_weight, self._inside), _linear(F, x, up_weight, self._inside)
        return _linear(F, gate * F.sigmoid(gate) * up, down_weight, self._width)


class TiedLogits(mx.gluon.HybridBlock):  # type: ignore[misc]
    """Products with the vectors of an embedding, whose parameter it shares: it counts once."""

    def __init__(self, words: mx.gluon.nn.Embedding, layer: sequences.TiedLogits) -> None:
        super().__init__()
        self._words = layer.words
        self.shared = words.weight
        if layer.bias:
            self.bias = self.params.get("bias", shape=(layer.words,))

    def hybrid_forward(self, F: ModuleType, x: Value, shared: Value, bias: Value | None = None) -> Value:
        """(batch, length, width) to (batch, length, words)."""
        return _linear(F, x, shared, self._words, bias)


def _linear(F: ModuleType, x: Value, weight: Value, width: int, bias: Value | None = None) -> Value:
    """Of each vector of a sequence."""
    arrays = (x, weight) if bias is None else (x, weight, bias)
    return F.FullyConnected(*arrays, num_hidden=width, no_bias=bias is None, flatten=False)


class Attention(Learnt):
    """Scaled dot-product attention, its parameters named and ordered as described."""

    def __init__(self, layer: sequences.Attention, shape: Shape) -> None:
        super().__init__(layer, shape)
        self._layer, (self._length, self._width), self._dtype = layer, shape, "float32"
        self._size = shape[1] // layer.heads
        self.dropout = mx.gluon.nn.Dropout(layer.dropout)
        if layer.rotary:
            cosine, sine = angles(self._length, self._size, layer.rotary)
            self.cosine = self.params.get_constant("cosine", cosine)
            self.sine = self.params.get_constant("sine", sine)

    def cast(self, dtype: str) -> None:
        """What it computes in."""
        self._dtype = dtype
        super().cast(dtype)

    def hybrid_forward(self, F: ModuleType, x: Value, **given: Value) -> Value:
        """(batch, length, width)."""
        layer = self._layer
        queries, keys, values = (
            self._by_head(F, each, count)
            for each, count in zip(
                self._projected(F, x, given), (layer.heads, layer.key_heads, layer.key_heads), strict=True
            )
        )
        if layer.rotary:
            queries, keys = (self._turned(F, each, given["cosine"], given["sine"]) for each in (queries, keys))
        shared = layer.heads // layer.key_heads
        if shared > 1:
            keys, values = (F.repeat(each, repeats=shared, axis=1) for each in (keys, values))
        queries, keys, values = (F.reshape(each, (-3, 0, 0)) for each in (queries, keys, values))
        scores = F.batch_dot(queries, keys, transpose_b=True) / self._size**0.5
        if layer.causal:
            scores = F.broadcast_add(scores, F.cast(self._hidden(F), self._dtype))
        mixed = F.batch_dot(self.dropout(F.softmax(scores)), values)
        joined = F.reshape(F.transpose(F.reshape(mixed, (-4, -1, layer.heads, 0, 0)), (0, 2, 1, 3)), (0, 0, -3))
        return self._project(F, joined, "output", self._width, given)

    def _project(self, F: ModuleType, x: Value, name: str, width: int, given: dict[str, Value]) -> Value:
        return _linear(F, x, given[f"{name}_weight"], width, given.get(f"{name}_bias"))

    def _projected(self, F: ModuleType, x: Value, given: dict[str, Value]) -> list[Value]:
        """Queries, keys and values."""
        width, keys = self._layer.widths(self._width)
        widths = (width, keys, keys)
        if not self._layer.fused:
            return [
                self._project(F, x, name, wide, given)
                for name, wide in zip(("query", "key", "value"), widths, strict=True)
            ]
        joined = self._project(F, x, "qkv", sum(widths), given)
        edges = np.cumsum((0, *widths)).tolist()
        return [F.slice_axis(joined, axis=-1, begin=start, end=stop) for start, stop in pairwise(edges)]

    def _by_head(self, F: ModuleType, x: Value, heads: int) -> Value:
        """(batch, length, heads x size) to (batch, heads, length, size)."""
        return F.transpose(F.reshape(x, (0, 0, heads, self._size)), (0, 2, 1, 3))

    def _turned(self, F: ModuleType, x: Value, cosine: Value, sine: Value) -> Value:
        """Each value of the first half of a head turned with its fellow of the second."""
        first, second = F.split(x, num_outputs=2, axis=-1)
        times = F.broadcast_mul
        return F.concat(
            times(first, cosine) - times(second, sine), times(second, cosine) + times(first, sine), dim=-1
        )

    def _hidden(self, F: ModuleType) -> Value:
        """(1, length, length): minus infinity, or as good in fp16, where a place would look at a later one."""
        row = F.arange(self._length)
        later = F.broadcast_greater(F.reshape(row, (1, 1, -1)), F.reshape(row, (1, -1, 1)))
        return -3e4 * later


def angles(length: int, size: int, base: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosine and sine of each place's angles (length, size / 2), float32 (Su 2021, section 3.2.2)."""
    turns = np.outer(np.arange(length), base ** -(np.arange(0, size, 2) / size))
    return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)
