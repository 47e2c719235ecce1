"""The layers of networks that read words: shapes, parameters and operations as in `layers.py`."""

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
    """A vector of zeros and a one for each word."""

    words: int

    def output(self, shape: Shape) -> Shape:
        """(length, words)"""
        need(shape, 1, TOKENS)
        return *shape, self.words


@dataclass(frozen=True)
class Embedding(Layer):
    """A learnt vector for each word."""

    words: int
    width: int
    start: Start = "normal-0.02"

    def output(self, shape: Shape) -> Shape:
        """(length, width)"""
        need(shape, 1, TOKENS)
        return *shape, self.width

    def parameters(self, _shape: Shape) -> tuple[Parameter, ...]:
        """(words, width)"""
        return (Parameter("weight", (self.words, self.width), self.start, self.words, self.width),)


@dataclass(frozen=True)
class Positions(Layer):
    """Adds a learnt vector for each place of a sequence, which may have `length` of them."""

    length: int
    start: Start = "normal-0.02"

    def output(self, shape: Shape) -> Shape:
        """As it was."""
        need(shape, 2, SEQUENCE)
        if shape[0] > self.length:
            raise ShapeError(f"knows {self.length} places, and the sequence has {shape[0]}")
        return shape

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        """(length, width)"""
        return (Parameter("weight", (self.length, shape[1]), self.start),)


@dataclass(frozen=True)
class Segments(Layer):
    """Adds the first of `kinds` learnt vectors to a whole sequence: BERT's kinds of sentence, of one sentence."""

    kinds: int

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        """(kinds, width)"""
        return (Parameter("weight", (self.kinds, shape[1]), "normal-0.02"),)


@dataclass(frozen=True)
class Patches(Layer):
    """An image's places as a sequence, row after row."""

    def output(self, shape: Shape) -> Shape:
        """(height x width, channels)"""
        need(shape, 3, IMAGES)
        return shape[1] * shape[2], shape[0]


@dataclass(frozen=True)
class ClassToken(Layer):
    """Puts a learnt vector before a sequence."""

    def output(self, shape: Shape) -> Shape:
        """One longer."""
        need(shape, 2, SEQUENCE)
        return shape[0] + 1, shape[1]

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        """(width,)"""
        return (Parameter("weight", shape[1:], "zeros"),)


@dataclass(frozen=True)
class First(Layer):
    """The first vector of a sequence."""

    def output(self, shape: Shape) -> Shape:
        """(width,)"""
        need(shape, 2, SEQUENCE)
        return shape[1:]


# ---------------------------------------------------------------- recurrence


@dataclass(frozen=True)
class LSTM(Layer):
    """The last state of a long short-term memory that reads a sequence, or of two that read it from both ends.

    Gates in the order input, forget, cell, output; one bias for both matrices, as Keras has it.
    """

    width: int
    both_ways: bool = False

    def output(self, shape: Shape) -> Shape:
        """(width,), or twice that."""
        need(shape, 2, SEQUENCE)
        return ((1 + self.both_ways) * self.width,)

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        """(4 width, width before), (4 width, width), (4 width,) of each direction."""
        return tuple(
            chain(*(self._one_way(shape[1], suffix) for suffix in ("", "_reverse")[: 1 + self.both_ways]))
        )

    def operations(self, shape: Shape) -> int:
        """Two per weight of a matrix and place."""
        matrices = [each.size for each in self.parameters(shape) if len(each.shape) == 2]
        return 2 * shape[0] * sum(matrices)

    def recurrent_operations(self, shape: Shape) -> int:
        """Of the matrices that states go through."""
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
        """A scale and a shift for each value."""
        return scale_and_shift(shape[-1])


@dataclass(frozen=True)
class RMSNorm(Layer):
    """Divides each vector by the root of its mean square (Zhang & Sennrich 2019)."""

    epsilon: float = 1e-5

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        """A scale for each value."""
        return (Parameter("weight", shape[-1:], "ones"),)


@dataclass(frozen=True)
class Attention(Layer):
    """Scaled dot-product attention of a sequence to itself (Vaswani 2017).

    `groups`: heads of keys and values, fewer than `heads` where several share one (Ainslie 2023). `rotary`: the
    base of the angles that turn queries and keys by their places, a half of a head's values with the other (Su
    2021); 0 for none. `fused`: one matrix makes queries, keys and values. `dropout`: of the attention's weights.
    """

    heads: int
    groups: int = 0
    causal: bool = False
    rotary: float = 0.0
    bias: bool = True
    fused: bool = False
    dropout: float = 0.0

    def output(self, shape: Shape) -> Shape:
        """As it was."""
        need(shape, 2, SEQUENCE)
        if shape[1] % self.heads or self.heads % self.key_heads:
            raise ShapeError(f"{self.heads} heads ({self.key_heads} of keys) cannot share a width of {shape[1]}")
        return shape

    @property
    def key_heads(self) -> int:
        """Of keys, and of values."""
        return self.groups or self.heads

    def widths(self, width: int) -> tuple[int, int]:
        """Of the queries of all heads, and of their keys."""
        return width, width // self.heads * self.key_heads

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        """The matrices of queries, keys, values, or of the three in one; then the one that joins the heads."""
        width, keys = self.widths(shape[1])
        made = {"qkv": width + 2 * keys} if self.fused else {"query": width, "key": keys, "value": keys}
        return tuple(
            Parameter(f"{name}_{each.name}", each.shape, each.start)
            for name, wide in {**made, "output": width}.items()
            for each in weights((wide, shape[1]), self.bias, "normal-0.02", fans=(shape[1], wide))
        )

    def operations(self, shape: Shape) -> int:
        """Two per weight and vector, and two products of every place with every other, also with later ones."""
        length, width = shape
        matrices = [each.size for each in self.parameters(shape) if len(each.shape) == 2]
        return 2 * length * sum(matrices) + 4 * length * length * width


@dataclass(frozen=True)
class Gated(Layer):
    """The gated feed-forward of Llama: down(silu(gate(x)) x up(x)), of `width` inside (SwiGLU, Shazeer 2020)."""

    width: int

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        """Gate and up (width, width before), down the other way."""
        inside, outside = (self.width, shape[-1]), (shape[-1], self.width)
        shapes = {"gate_weight": inside, "up_weight": inside, "down_weight": outside}
        return tuple(Parameter(name, each, "normal-0.02") for name, each in shapes.items())

    def operations(self, shape: Shape) -> int:
        """Two per weight and vector."""
        return 6 * self.width * math.prod(shape)


@dataclass(frozen=True)
class TiedLogits(Layer):
    """Products of each vector with every word's vector of the network's `Embedding`, and perhaps a bias."""

    words: int
    bias: bool = False

    def output(self, shape: Shape) -> Shape:
        """(length, words)"""
        need(shape, 2, SEQUENCE)
        return shape[0], self.words

    def parameters(self, _shape: Shape) -> tuple[Parameter, ...]:
        """The bias alone: the matrix counts where it is made."""
        return (Parameter("bias", (self.words,), "zeros"),) if self.bias else ()

    def operations(self, shape: Shape) -> int:
        """Two per word, value and vector."""
        return 2 * self.words * math.prod(shape)
