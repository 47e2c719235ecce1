"""Layers that Keras does not have, for networks that read words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import KerasTensor, ops
from numpy.typing import NDArray

from scaling.workloads import sequences


class GELU(keras.layers.Layer):  # type: ignore[misc]
    """By the error function, or its approximation."""

    def __init__(self, approximate: bool, **options: Any) -> None:
        super().__init__(**options)
        self._approximate = approximate

    def call(self, x: KerasTensor) -> KerasTensor:
        """Of each value."""
        return keras.activations.gelu(x, approximate=self._approximate)


class OneHot(keras.layers.Layer):  # type: ignore[misc]
    """A vector of zeros and a one for each word."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self._words = words

    def call(self, tokens: KerasTensor) -> KerasTensor:
        """(batch, length) to (batch, length, words)."""
        return ops.one_hot(tokens, self._words, dtype=self.compute_dtype)


class _Learnt(keras.layers.Layer):  # type: ignore[misc]
    """With one array, `weight`, which `load` fills."""

    weight: keras.Variable

    def _learn(self, shape: tuple[int, ...]) -> None:
        self.weight = self.add_weight(shape=shape, initializer="zeros", name="weight")


class Positions(_Learnt):
    """Adds a vector for each place."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def build(self, shape: tuple[int, ...]) -> None:
        """(length, width)"""
        self._learn((self._length, shape[-1]))

    def call(self, x: KerasTensor) -> KerasTensor:
        """(batch, length, width)."""
        return x + ops.convert_to_tensor(self.weight)[: x.shape[1]]


class Segments(_Learnt):
    """Adds the vector of the first kind of sentence."""

    def __init__(self, kinds: int) -> None:
        super().__init__()
        self._kinds = kinds

    def build(self, shape: tuple[int, ...]) -> None:
        """(kinds, width)"""
        self._learn((self._kinds, shape[-1]))

    def call(self, x: KerasTensor) -> KerasTensor:
        """(batch, length, width)."""
        return x + ops.convert_to_tensor(self.weight)[0]


class ClassToken(_Learnt):
    """Puts a vector before a sequence."""

    def build(self, shape: tuple[int, ...]) -> None:
        """(width,)"""
        self._learn(shape[-1:])

    def call(self, x: KerasTensor) -> KerasTensor:
        """(batch, length, width) to one longer."""
        token = ops.broadcast_to(self.weight, (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([token, x], axis=1)


class TiedLogits(keras.layers.Layer):  # type: ignore[misc]
    """Products with the vectors of an embedding, which is no part of this layer and counts where it is."""

    bias: keras.Variable | None = None

    def __init__(self, words: keras.layers.Embedding, bias: bool, name: str) -> None:
        super().__init__(name=name)
        # Keras would take a layer in an attribute for one of this layer's.
        self._words: Callable[[], keras.Variable] = lambda: words.embeddings
        self._biased, self._count = bias, words.input_dim

    def build(self, _shape: tuple[int, ...]) -> None:
        """(words,)"""
        if self._biased:
            self.bias = self.add_weight(shape=(self._count,), initializer="zeros", name="bias")

    def call(self, x: KerasTensor) -> KerasTensor:
        """(batch, length, width) to (batch, length, words)."""
        logits = ops.matmul(x, ops.transpose(self._words()))
        return logits if self.bias is None else logits + self.bias


class Attend(keras.layers.Layer):  # type: ignore[misc]
    """Scaled dot-product attention of queries, keys and values, whose weights are other layers'."""

    def __init__(self, layer: sequences.Attention, name: str) -> None:
        super().__init__(name=name)
        self._layer = layer
        self._dropout = keras.layers.Dropout(layer.dropout) if layer.dropout else None

    def compute_output_shape(self, queries_shape: tuple[int, ...], **_others: tuple[int, ...]) -> tuple[int, ...]:
        """As the queries: Keras would trace a graph to find out."""
        return queries_shape

    def call(
        self, queries: KerasTensor, keys: KerasTensor, values: KerasTensor, training: bool = False
    ) -> KerasTensor:
        """(batch, length, width) of queries, and of keys and values perhaps less wide."""
        layer, (_, length, width) = self._layer, queries.shape
        size = width // layer.heads
        queries, keys, values = (self._by_head(each, size) for each in (queries, keys, values))
        if layer.rotary:
            angles = angles_of(length, size, layer.rotary)
            queries, keys = _turned(queries, *angles), _turned(keys, *angles)
        shared = layer.heads // layer.key_heads
        if shared > 1:
            keys, values = (ops.repeat(each, shared, axis=1) for each in (keys, values))
        scores = ops.cast(ops.matmul(queries, ops.transpose(keys, (0, 1, 3, 2))), "float32") / size**0.5
        if layer.causal:
            places = ops.arange(length)
            scores = ops.where(places[:, None] >= places, scores, float("-inf"))
        shares = ops.cast(ops.softmax(scores), values.dtype)
        if self._dropout is not None:
            shares = self._dropout(shares, training=training)
        mixed = ops.transpose(ops.matmul(shares, values), (0, 2, 1, 3))
        return ops.reshape(mixed, (-1, length, width))

    def _by_head(self, x: KerasTensor, size: int) -> KerasTensor:
        """(batch, length, heads x size) to (batch, heads, length, size)."""
        _, length, width = x.shape
        return ops.transpose(ops.reshape(x, (-1, length, width // size, size)), (0, 2, 1, 3))


def angles_of(length: int, size: int, base: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosine and sine of each place's angles (length, size / 2), float32 (Su 2021, section 3.2.2)."""
    angles = np.outer(np.arange(length), base ** -(np.arange(0, size, 2) / size))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _turned(x: KerasTensor, cosine: NDArray[np.float32], sine: NDArray[np.float32]) -> KerasTensor:
    """Each value of the first half of a head turned with its fellow of the second."""
    first, second = ops.split(ops.cast(x, "float32"), 2, axis=-1)
    turned = ops.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return ops.cast(turned, x.dtype)
