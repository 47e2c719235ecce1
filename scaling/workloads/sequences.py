"""Layers of networks that read sequences: shapes, parameters and operations as in `layers.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain

from scaling.workloads.layers import (
    IMAGES,
    SEQUENCE,
    TOKENS,
    Layer,
    Parameter,
    Shape,
    ShapeError,
    Start,
    need,
    scale_and_shift,
    weights,
)

# ---------------------------------------------------------------- from words to vectors


@dataclass(frozen=True)
class OneHot(Layer):
    """A one-hot vector for each word."""

    words: int

    def output(self, shape: Shape) -> Shape:
        need(shape, 1, TOKENS)
        return *shape, self.words


@dataclass(frozen=True)
class Embedding(Layer):
    """A learnt vector for each word."""

    words: int
    width: int
    start: Start = "normal-0.02"

    def output(self, shape: Shape) -> Shape:
        need(shape, 1, TOKENS)
        return *shape, self.width

    def parameters(self, _shape: Shape) -> tuple[Parameter, ...]:
        return (Parameter("weight", (self.words, self.width), self.start, self.words, self.width),)


@dataclass(frozen=True)
class Positions(Layer):
    """Adds a learnt vector to each position of a sequence of at most `length`."""

    length: int
    start: Start = "normal-0.02"

    def output(self, shape: Shape) -> Shape:
        need(shape, 2, SEQUENCE)
        if shape[0] > self.length:
            raise ShapeError(f"has {self.length} positions, and the sequence has {shape[0]}")
        return shape

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        return (Parameter("weight", (self.length, shape[1]), self.start),)


@dataclass(frozen=True)
class Segments(Layer):
    """Adds the first of `kinds` learnt vectors to a whole sequence: BERT's segments, for a single sentence."""

    kinds: int

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        return (Parameter("weight", (self.kinds, shape[1]), "normal-0.02"),)


@dataclass(frozen=True)
class Patches(Layer):
    """An image's positions as a sequence, row by row."""

    def output(self, shape: Shape) -> Shape:
        need(shape, 3, IMAGES)
        return shape[1] * shape[2], shape[0]


@dataclass(frozen=True)
class ClassToken(Layer):
    """Puts a learnt vector in front of a sequence."""

    def output(self, shape: Shape) -> Shape:
        need(shape, 2, SEQUENCE)
        return shape[0] + 1, shape[1]

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        return (Parameter("weight", shape[1:], "zeros"),)


@dataclass(frozen=True)
class First(Layer):
    def output(self, shape: Shape) -> Shape:
        need(shape, 2, SEQUENCE)
        return shape[1:]


# ---------------------------------------------------------------- recurrence


@dataclass(frozen=True)
class LSTM(Layer):
    """The last state of a long short-term memory over a sequence, or of two from both ends. Gates are in the order
    input, forget, cell, output. One bias serves both matrices, as in Keras."""

    width: int
    both_ways: bool = False

    def output(self, shape: Shape) -> Shape:
        """Return (width,), twice the width for both ways."""
        need(shape, 2, SEQUENCE)
        return ((1 + self.both_ways) * self.width,)

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        """Return (4 width, input width), (4 width, width), (4 width,) for each direction."""
        return tuple(
            chain(*(self._one_way(shape[1], suffix) for suffix in ("", "_reverse")[: 1 + self.both_ways]))
        )

    def operations(self, shape: Shape) -> int:
        matrices = [each.size for each in self.parameters(shape) if len(each.shape) == 2]
        return 2 * shape[0] * sum(matrices)

    def recurrent_operations(self, shape: Shape) -> int:
        states = [each.size for each in self.parameters(shape) if each.name.startswith("weight_state")]
        return 2 * shape[0] * sum(states)

    def _one_way(self, before: int, suffix: str) -> tuple[Parameter, ...]:
        gates = 4 * self.width
        return (
            Parameter(f"weight_input{suffix}", (gates, before), "glorot", before, gates),
            Parameter(f"weight_state{suffix}", (gates, self.width), "orthogonal", self.width, gates),
            Parameter(f"bias{suffix}", (gates,), "forget"),
        )


# ---------------------------------------------------------------- transformers


@dataclass(frozen=True)
class LayerNorm(Layer):
    """Normalises each vector by its own mean and deviation."""

    epsilon: float = 1e-5

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        return scale_and_shift(shape[-1])


@dataclass(frozen=True)
class RMSNorm(Layer):
    """Divides each vector by the root of its mean square (Zhang & Sennrich 2019)."""

    epsilon: float = 1e-5

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        return (Parameter("weight", shape[-1:], "ones"),)


@dataclass(frozen=True)
class Attention(Layer):
    """Scaled dot-product attention of a sequence to itself (Vaswani 2017).

    * groups: heads of keys and values, fewer than `heads` if several share one (Ainslie 2023); 0 for `heads`.
    * rotary: base of the angles that rotate one half of a head with the other by position (Su 2021); 0 for none.
    * fused: one matrix makes queries, keys and values.
    * dropout: of the attention weights.
    """

    heads: int
    groups: int = 0
    causal: bool = False
    rotary: float = 0.0
    bias: bool = True
    fused: bool = False
    dropout: float = 0.0

    def output(self, shape: Shape) -> Shape:
        need(shape, 2, SEQUENCE)
        if shape[1] % self.heads or self.heads % self.key_heads:
            raise ShapeError(f"{self.heads} heads ({self.key_heads} of keys) cannot share a width of {shape[1]}")
        return shape

    @property
    def key_heads(self) -> int:
        return self.groups or self.heads

    def widths(self, width: int) -> tuple[int, int]:
        """Return the width of all queries, and of all keys."""
        return width, width // self.heads * self.key_heads

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        """Return the matrices of queries, keys and values, or one for all three, then the output matrix."""
        width, keys = self.widths(shape[1])
        made = {"qkv": width + 2 * keys} if self.fused else {"query": width, "key": keys, "value": keys}
        return tuple(
            Parameter(f"{name}_{each.name}", each.shape, each.start)
            for name, wide in {**made, "output": width}.items()
            for each in weights((wide, shape[1]), self.bias, "normal-0.02", fans=(shape[1], wide))
        )

    def operations(self, shape: Shape) -> int:
        """Return two operations per weight and vector, and two products of every pair of positions."""
        length, width = shape
        matrices = [each.size for each in self.parameters(shape) if len(each.shape) == 2]
        return 2 * length * sum(matrices) + 4 * length * length * width


@dataclass(frozen=True)
class Gated(Layer):
    """Llama's gated feed-forward layer: down(silu(gate(x)) x up(x)), `width` inside (SwiGLU, Shazeer 2020)."""

    width: int

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        inside, outside = (self.width, shape[-1]), (shape[-1], self.width)
        shapes = {"gate_weight": inside, "up_weight": inside, "down_weight": outside}
        return tuple(Parameter(name, each, "normal-0.02") for name, each in shapes.items())

    def operations(self, shape: Shape) -> int:
        return 6 * self.width * math.prod(shape)


@dataclass(frozen=True)
class TiedLogits(Layer):
    """Products of each vector with every word's vector in the network's `Embedding`, and perhaps a bias."""

    words: int
    bias: bool = False

    def output(self, shape: Shape) -> Shape:
        need(shape, 2, SEQUENCE)
        return shape[0], self.words

    def parameters(self, _shape: Shape) -> tuple[Parameter, ...]:
        """Return the bias only: the matrix counts in `Embedding`."""
        return (Parameter("bias", (self.words,), "zeros"),) if self.bias else ()

    def operations(self, shape: Shape) -> int:
        return 2 * self.words * math.prod(shape)
