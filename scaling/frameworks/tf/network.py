"""Networks in Keras 3, built from their layers' descriptions (workloads/layers.py, sequences.py).

They are channels last, because TensorFlow's CPU kernels support no other order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import KerasTensor, ops
from numpy.typing import NDArray

from scaling.workloads import layers, sequences, weights
from scaling.workloads.layers import Layer, Parameter, Placed, Shape, Walk
from scaling.workloads.specs import Images, ModelSpec

# ---------------------------------------------------------------- layers
#
# Layers that Keras lacks, for networks that read sequences.


class Learnt(keras.layers.Layer):  # type: ignore[misc]
    """A function of a sequence (batch, length, width) and the one parameter of the description, `weight`."""

    def __init__(self, function: Callable[[KerasTensor, Any], KerasTensor], only: Parameter) -> None:
        super().__init__()
        self._function = function
        self.weight = self.add_weight(shape=only.shape, initializer="zeros", name=only.name)

    def call(self, x: KerasTensor) -> KerasTensor:
        return self._function(x, ops.convert_to_tensor(self.weight))


def _class_token(x: KerasTensor, weight: Any) -> KerasTensor:
    """Map (batch, length, width) to (batch, length + 1, width)."""
    return ops.concatenate([ops.broadcast_to(weight, (ops.shape(x)[0], 1, x.shape[-1])), x], axis=1)


class TiedLogits(keras.layers.Layer):  # type: ignore[misc]
    """Products with the vectors of an embedding, which belongs to another layer and counts there."""

    bias: keras.Variable | None = None

    def __init__(self, words: keras.layers.Embedding, bias: bool, name: str) -> None:
        super().__init__(name=name)
        # A function: Keras would adopt a layer in an attribute.
        self._words: Callable[[], keras.Variable] = lambda: words.embeddings
        self._biased, self._count = bias, words.input_dim

    def build(self, _shape: tuple[int, ...]) -> None:
        if self._biased:
            self.bias = self.add_weight(shape=(self._count,), initializer="zeros", name="bias")

    def call(self, x: KerasTensor) -> KerasTensor:
        """Map (batch, length, width) to (batch, length, words)."""
        logits = ops.matmul(x, ops.transpose(self._words()))
        return logits if self.bias is None else logits + self.bias


class Attend(keras.layers.Layer):  # type: ignore[misc]
    """Scaled dot-product attention of queries, keys and values. Other layers have the weights."""

    def __init__(self, layer: sequences.Attention, name: str) -> None:
        super().__init__(name=name)
        self._layer = layer
        self._dropout = keras.layers.Dropout(layer.dropout) if layer.dropout else None

    def compute_output_shape(self, queries_shape: tuple[int, ...], **_others: tuple[int, ...]) -> tuple[int, ...]:
        """Return the queries' shape: Keras would trace a graph to find it."""
        return queries_shape

    def call(
        self, queries: KerasTensor, keys: KerasTensor, values: KerasTensor, training: bool = False
    ) -> KerasTensor:
        """Map queries (batch, length, width), and keys and values that may be narrower, to the queries' shape."""
        layer, (_, length, width) = self._layer, queries.shape
        size = width // layer.heads
        # (batch, heads, length, size)
        queries, keys, values = (
            ops.transpose(ops.reshape(each, (-1, length, each.shape[-1] // size, size)), (0, 2, 1, 3))
            for each in (queries, keys, values)
        )
        if layer.rotary:
            angles = weights.angles(length, size, layer.rotary)
            queries, keys = _turned_kernel(queries, *angles), _turned_kernel(keys, *angles)
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


def _turned_kernel(x: KerasTensor, cosine: NDArray[np.float32], sine: NDArray[np.float32]) -> KerasTensor:
    """Rotate each value of a head's first half with the corresponding value of the second half."""
    first, second = ops.split(ops.cast(x, "float32"), 2, axis=-1)
    turned = ops.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return ops.cast(turned, x.dtype)


# ---------------------------------------------------------------- network

Array: TypeAlias = NDArray[np.float32]
# Keras's variable names, by the description's.
NAMES = {
    layers.Conv: {"weight": "kernel"},
    layers.Dense: {"weight": "kernel"},
    layers.BatchNorm: {"weight": "gamma", "bias": "beta"},
    sequences.LayerNorm: {"weight": "gamma", "bias": "beta"},
    sequences.RMSNorm: {"weight": "scale"},
    sequences.Embedding: {"weight": "embeddings"},
    sequences.LSTM: {"weight_input": "kernel", "weight_state": "recurrent_kernel"},
}
ZEROS = {"kernel_initializer": "zeros"}


def build(spec: ModelSpec, seed: int) -> keras.Model:
    """Return the network with the weights of a seed: float32 variables, computing in the global dtype policy. It
    maps images (batch, height, width, channels) or int64 tokens (batch, length) to logits."""
    model = empty(spec)
    load(model, weights.draw(spec, seed))
    if known := weights.statistics(spec):
        for norm, (mean, variance) in zip(norms(model), known, strict=True):
            norm.moving_mean.assign(mean)
            norm.moving_variance.assign(variance)
    return model


def norms(model: keras.Model) -> list[keras.layers.Layer]:
    placed = model.described.placed
    return [model.get_layer(each.path) for each in placed if isinstance(each.layer, layers.BatchNorm)]


def empty(spec: ModelSpec) -> keras.Model:
    keras.config.set_image_data_format("channels_last")
    if isinstance(spec.input, Images):
        taken = keras.Input((spec.input.height, spec.input.width, spec.input.channels))
    else:
        taken = keras.Input(spec.input.shape, dtype="int64")
    model = keras.Model(taken, _Builder(spec).chain(spec.layers, taken), name=spec.name.replace("-", "_"))
    model.described = spec
    return model


# ---------------------------------------------------------------- weights


def parameters(model: keras.Model) -> list[keras.Variable]:
    """Return the trained parameters in the description's order (Keras uses the graph's order)."""
    return [variable for _, variable, *_ in _described(model)]


def load(model: keras.Model, arrays: Iterable[tuple[str, Array]]) -> None:
    """Set all trained parameters from the description's names and arrays, in its order."""
    for (_, variable, _, wide), (_, array) in zip(_described(model), arrays, strict=True):
        turned = array.reshape(wide).transpose(TURNED) if wide else array
        variable.assign(turned.reshape(variable.shape))


def read(model: keras.Model) -> Iterator[tuple[str, Array]]:
    return as_described(model, (np.array(ops.convert_to_numpy(each)) for each in parameters(model)))


def as_described(model: keras.Model, arrays: Iterable[Array]) -> Iterator[tuple[str, Array]]:
    """Name arrays of all parameters, or of their gradients, as described and in the description's shapes."""
    for (name, _, shape, wide), array in zip(_described(model), arrays, strict=True):
        if wide:
            array = array.reshape([wide[axis] for axis in TURNED]).transpose(np.argsort(TURNED))  # noqa: PLW2901
        yield name, array.reshape(shape)


# The axes of a kernel (outputs, inputs, height, width) in Keras's order.
TURNED = (2, 3, 1, 0)


def _described(model: keras.Model) -> Iterator[tuple[str, keras.Variable, Shape, Shape]]:
    """Yield the description's name, Keras's variable, the described shape, and for a kernel its shape (outputs,
    inputs, height, width). Keras's images are flattened channels innermost; height and width are 1 without any."""
    flat: Shape = ()
    for placed in model.described.placed:
        if isinstance(placed.layer, layers.Flatten) and len(placed.shape) == 3:
            flat = placed.shape
        for each in placed.parameters:
            variable, wide = _variable(model, placed.path, placed.layer, each.name), ()
            if variable.path.endswith("kernel"):
                wide = (each.shape[0], *flat) if flat and len(each.shape) == 2 else (*each.shape, 1, 1)[:4]
            yield f"{placed.path}.{each.name}", variable, each.shape, wide
        if isinstance(placed.layer, layers.Dense):
            flat = ()


def _variable(model: keras.Model, path: str, layer: Layer, name: str) -> keras.Variable:
    if isinstance(layer, sequences.Attention | sequences.Gated):
        part, _, kind = name.rpartition("_")
        return getattr(model.get_layer(f"{path}.{part}"), {"weight": "kernel"}.get(kind, kind))
    found = model.get_layer(path)
    if isinstance(layer, sequences.LSTM):
        if layer.both_ways:
            found = found.backward_layer if name.endswith("_reverse") else found.forward_layer
        found, name = found.cell, name.removesuffix("_reverse")
    return getattr(found, NAMES.get(type(layer), {}).get(name, name))


# ---------------------------------------------------------------- layers


class _Builder(Walk[KerasTensor]):
    """Builds a graph from a description. `words` is the embedding that tied logits share."""

    def __init__(self, spec: ModelSpec) -> None:
        self._placed = {each.path: each for each in spec.placed}
        self._words: keras.layers.Embedding | None = None

    def one(self, layer: Layer, x: KerasTensor, path: str) -> KerasTensor:
        if isinstance(layer, sequences.TiedLogits):
            return TiedLogits(self._words, layer.bias, name=path)(x)
        made = MAKERS[type(layer)](layer, x, self._placed[path])
        if isinstance(layer, sequences.Embedding):
            self._words = made._keras_history.operation
        return made

    def add(self, body: KerasTensor, shortcut: KerasTensor, path: str) -> KerasTensor:
        return keras.layers.Add(name=path)([body, shortcut])

    def join(self, branches: list[KerasTensor], path: str) -> KerasTensor:
        return keras.layers.Concatenate(name=path)(branches)


def _padded(x: KerasTensor, before: tuple[int, int], after: tuple[int, int], value: float = 0.0) -> KerasTensor:
    if not any((*before, *after)):
        return x
    down, across = zip(before, after, strict=True)
    return ops.pad(x, ((0, 0), down, across, (0, 0)), constant_values=value)


def _conv(layer: layers.Conv, x: KerasTensor, placed: Placed) -> KerasTensor:
    """Pad by hand if the stride is above 1: Keras's "same" pads the far side only, which shifts the image."""
    kernel, pad = layers.pair(layer.kernel), layers.pair(layer.pad)
    same = layer.stride == 1 and all(2 * p == k - 1 for p, k in zip(pad, kernel, strict=True))
    return keras.layers.Conv2D(
        layer.channels, kernel, layer.stride, padding="same" if same else "valid", use_bias=layer.bias,
        name=placed.path, **ZEROS,
    )(x if same else _padded(x, pad, pad))  # fmt: skip


def _pool(layer: layers.Pool, x: KerasTensor, placed: Placed) -> KerasTensor:
    """Pad by hand: Keras rounds down, and its "same" leaves the border out of means."""
    kind = keras.layers.MaxPooling2D if layer.kind == "max" else keras.layers.AveragePooling2D
    if layer.kind == "max" and layer.stride == 1 and 2 * layer.pad == layer.kernel - 1:
        return kind(layer.kernel, 1, padding="same", name=placed.path)(x)
    down, across = (
        max(0, (count - 1) * layer.stride + layer.kernel - size - layer.pad)
        for size, count in zip(placed.shape[1:], placed.output[1:], strict=True)
    )
    x = _padded(x, (layer.pad, layer.pad), (down, across), float("-inf") if layer.kind == "max" else 0.0)
    return kind(layer.kernel, layer.stride, name=placed.path)(x)


def _activation(layer: layers.Activation, x: KerasTensor, placed: Placed) -> KerasTensor:
    if layer.kind == "relu":
        return keras.layers.ReLU(name=placed.path)(x)
    gelu = partial(keras.activations.gelu, approximate=layer.kind == "gelu-tanh")
    return keras.layers.Activation(gelu, name=placed.path)(x)


def _lstm(layer: sequences.LSTM, x: KerasTensor, placed: Placed) -> KerasTensor:
    one = keras.layers.LSTM(layer.width, recurrent_initializer="zeros", name=placed.path, **ZEROS)
    return (keras.layers.Bidirectional(one, name=placed.path) if layer.both_ways else one)(x)


def _dense(x: KerasTensor, width: int, path: str, *, bias: bool = False) -> KerasTensor:
    return keras.layers.Dense(width, use_bias=bias, name=path, **ZEROS)(x)


def _attention(layer: sequences.Attention, x: KerasTensor, placed: Placed) -> KerasTensor:
    width, keys = layer.widths(placed.shape[1])
    if layer.fused:
        joined = _dense(x, width + 2 * keys, f"{placed.path}.qkv", bias=layer.bias)
        parts = ops.split(joined, (width, width + keys), axis=-1)
    else:
        named = {"query": width, "key": keys, "value": keys}
        parts = [_dense(x, wide, f"{placed.path}.{name}", bias=layer.bias) for name, wide in named.items()]
    mixed = Attend(layer, name=placed.path)(*parts)
    return _dense(mixed, width, f"{placed.path}.output", bias=layer.bias)


def _gated(layer: sequences.Gated, x: KerasTensor, placed: Placed) -> KerasTensor:
    gate, up = (_dense(x, layer.width, f"{placed.path}.{name}") for name in ("gate", "up"))
    return _dense(ops.silu(gate) * up, placed.shape[-1], f"{placed.path}.down")


def _simple(make: Callable[[Any, Shape], keras.layers.Layer]) -> Callable[..., KerasTensor]:
    """Return a maker for a layer that Keras, or this file, has as described."""

    def apply(layer: Any, x: KerasTensor, placed: Placed) -> KerasTensor:
        made = make(layer, placed.shape)
        made.name = placed.path
        return made(x)

    return apply


def _learnt(function: Callable[[KerasTensor, Any], KerasTensor]) -> Callable[..., KerasTensor]:
    return _simple(lambda each, shape: Learnt(function, *each.parameters(shape)))


def _one_hot(layer: sequences.OneHot, x: KerasTensor, _placed: Placed) -> KerasTensor:
    return ops.one_hot(x, layer.words, dtype=keras.config.dtype_policy().compute_dtype)


MAKERS: dict[type[Layer], Callable[[Any, KerasTensor, Placed], KerasTensor]] = {
    layers.Conv: _conv,
    layers.Pool: _pool,
    layers.GlobalMean: _simple(lambda _layer, _shape: keras.layers.GlobalAveragePooling2D()),
    layers.Flatten: _simple(lambda _layer, _shape: keras.layers.Flatten()),
    layers.BatchNorm: _simple(
        lambda each, _shape: keras.layers.BatchNormalization(-1, each.momentum, each.epsilon)
    ),
    layers.Dense: lambda each, x, placed: _dense(x, each.width, placed.path, bias=each.bias),
    layers.Activation: _activation,
    layers.Dropout: _simple(lambda each, _shape: keras.layers.Dropout(each.rate)),
    sequences.OneHot: _one_hot,
    sequences.Embedding: _simple(lambda each, _shape: keras.layers.Embedding(each.words, each.width, "zeros")),
    sequences.Positions: _learnt(lambda x, weight: x + weight[: x.shape[1]]),
    sequences.Segments: _learnt(lambda x, weight: x + weight[0]),
    sequences.Patches: _simple(lambda _layer, shape: keras.layers.Reshape((-1, shape[0]))),
    sequences.ClassToken: _learnt(_class_token),
    sequences.First: lambda _layer, x, _placed: x[:, 0],
    sequences.LSTM: _lstm,
    sequences.LayerNorm: _simple(lambda each, _shape: keras.layers.LayerNormalization(epsilon=each.epsilon)),
    sequences.RMSNorm: _simple(lambda each, _shape: keras.layers.RMSNormalization(epsilon=each.epsilon)),
    sequences.Attention: _attention,
    sequences.Gated: _gated,
}
