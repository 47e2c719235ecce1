"""Networks in JAX as functions of their parameters, by their layers' descriptions (workloads/layers.py,
sequences.py). Images are channels last, because XLA's fast convolutions on CPU know no other order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from scaling.frameworks import outside
from scaling.workloads import layers, sequences, weights
from scaling.workloads.layers import Layer, Shape, Walk
from scaling.workloads.specs import ModelSpec

Arrays: TypeAlias = dict[str, jax.Array]
# Mean and variance of each batch norm, in order.
Statistics: TypeAlias = tuple[tuple[jax.Array, jax.Array], ...]


class Network:
    """The network of a description, as functions of its parameters."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        self.spec, self._seed = spec, seed
        trained = layers.parameters(spec.layers, spec.input.shape)
        self.shapes = {name: each.shape for name, each in trained.items()}

    def first(self) -> dict[str, NDArray[np.float32]]:
        """Return the first parameters, on the host."""
        return dict(weights.draw(self.spec, self._seed))

    def apply(self, arrays: Arrays, known: Statistics, inputs: jax.Array, key: jax.Array, dtype: Any) -> Any:
        """Return outputs and new statistics of a training step."""
        return apply(self.spec, arrays, known, inputs, key=key, dtype=dtype)


class Own(Network):
    """A model of a user's file. Its parameters are the leaves of a tree, named by their paths."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        self.spec, self.file = spec, outside.Model(spec.name)
        made = self.file.make(jax.random.key(seed))
        if not (isinstance(made, tuple) and len(made) == 2 and callable(made[1])):
            raise self.file.wrong("", made, "parameters and a function apply(parameters, inputs)")
        leaves, self._tree = jax.tree_util.tree_flatten_with_path(made[0])
        self._first = {jax.tree_util.keystr(path): np.array(leaf, np.float32) for path, leaf in leaves}
        self._apply = made[1]
        self.shapes = {name: each.shape for name, each in self._first.items()}

    def first(self) -> dict[str, NDArray[np.float32]]:
        return self._first

    def apply(self, arrays: Arrays, known: Statistics, inputs: jax.Array, _key: jax.Array, dtype: Any) -> Any:
        """Compute in `dtype`, without statistics and key."""
        given = inputs.astype(dtype) if jnp.issubdtype(inputs.dtype, jnp.floating) else inputs
        whole = jax.tree.unflatten(self._tree, [arrays[name].astype(dtype) for name in self._first])
        with self.file.located():
            return self._apply(whole, given), known

    def losses(self, outputs: Any, labels: jax.Array) -> jax.Array:
        with self.file.located():
            loss: jax.Array = self.file.loss(outputs, labels)  # type: ignore[misc]
        if jnp.shape(loss):
            raise self.file.wrong("loss", loss, "one number")
        return loss


def statistics(spec: ModelSpec) -> tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]:
    """Return the first statistics: 0 and 1, or those of the model's file."""
    norms = [each for each in spec.placed if isinstance(each.layer, layers.BatchNorm)]
    drawn = tuple((np.zeros(each.shape[0], np.float32), np.ones(each.shape[0], np.float32)) for each in norms)
    return weights.statistics(spec) or drawn


def apply(
    spec: ModelSpec, arrays: Arrays, known: Statistics, inputs: jax.Array, *, key: jax.Array | None,
    dtype: Any = jnp.float32,
) -> tuple[jax.Array, Statistics]:  # fmt: skip
    """Map images (batch, height, width, channels) or tokens (batch, length) to float32 logits and new statistics,
    computing in `dtype`. With a `key` for dropout it trains, without one it infers."""
    walked = _Pass(spec, {name: each.astype(dtype) for name, each in arrays.items()}, known, key, dtype)
    logits = walked.chain(spec.layers, inputs.astype(dtype) if inputs.ndim == 4 else inputs)
    return logits.astype(jnp.float32), tuple(walked.statistics)


class _Pass(Walk[jax.Array]):
    """One forward pass over a description. `words` is the embedding that tied logits share."""

    words: jax.Array

    def __init__(
        self, spec: ModelSpec, arrays: Arrays, known: Statistics, key: jax.Array | None, dtype: Any
    ) -> None:
        self._placed = {each.path: each for each in spec.placed}
        self._arrays, self._known, self._key, self.dtype, self._drawn = arrays, known, key, dtype, 0
        self.statistics: list[tuple[jax.Array, jax.Array]] = []

    def one(self, layer: Layer, x: jax.Array, path: str) -> jax.Array:
        placed = self._placed[path]
        own = {each.name: self._arrays[f"{path}.{each.name}"] for each in placed.parameters}
        return APPLIED[type(layer)](self, layer, x, own, placed.output)

    def add(self, body: jax.Array, shortcut: jax.Array, _path: str) -> jax.Array:
        return body + shortcut

    def join(self, branches: list[jax.Array], _path: str) -> jax.Array:
        return jnp.concatenate(branches, -1)

    def dropped(self, x: jax.Array, rate: float) -> jax.Array:
        if self._key is None or not rate:
            return x
        self._drawn += 1
        kept = jax.random.bernoulli(jax.random.fold_in(self._key, self._drawn), 1 - rate, x.shape)
        return jnp.where(kept, x / (1 - rate), 0)

    def norm(self, layer: layers.BatchNorm, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return mean and variance of a batch, or in inference the running ones, which training moves."""
        known, keep = self._known[len(self.statistics)], layer.momentum
        if self._key is None:
            self.statistics.append(known)
            return known
        axes = tuple(range(x.ndim - 1))
        found = x.mean(axes), x.var(axes)
        mean, variance = (keep * before + (1 - keep) * each for before, each in zip(known, found, strict=True))
        self.statistics.append((mean, variance))
        return found


# ---------------------------------------------------------------- layers
#
# Each function takes the pass, the layer, its input, its own parameters by name, and the shape of its output.


def _linear(x: jax.Array, own: Arrays, name: str = "") -> jax.Array:
    """Map (..., inputs) by a matrix (outputs, inputs) and perhaps a bias."""
    found = x @ own[f"{name}weight"].T
    return found + own[f"{name}bias"] if f"{name}bias" in own else found


def _conv(_pass: _Pass, layer: layers.Conv, x: jax.Array, own: Arrays, _output: Shape) -> jax.Array:
    borders = [(each, each) for each in layers.pair(layer.pad)]
    strides = layers.pair(layer.stride)
    found = lax.conv_general_dilated(
        x, own["weight"], strides, borders, dimension_numbers=("NHWC", "OIHW", "NHWC")
    )
    return found + own["bias"] if "bias" in own else found


def _pool(_pass: _Pass, layer: layers.Pool, x: jax.Array, _own: Arrays, output: Shape) -> jax.Array:
    borders = [
        (layer.pad, max(0, (count - 1) * layer.stride + layer.kernel - size - layer.pad))
        for size, count in zip(x.shape[1:3], output[1:], strict=True)
    ]
    window, strides = (1, layer.kernel, layer.kernel, 1), (1, layer.stride, layer.stride, 1)
    padding = [(0, 0), *borders, (0, 0)]
    if layer.kind == "max":
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)
    return lax.reduce_window(x, 0.0, lax.add, window, strides, padding) / layer.kernel**2


def _flatten(_pass: _Pass, _layer: Layer, x: jax.Array, _own: Arrays, _output: Shape) -> jax.Array:
    """Put channels outermost, as described."""
    return (x.transpose(0, 3, 1, 2) if x.ndim == 4 else x).reshape(len(x), -1)


def _normed(
    passed: _Pass,
    layer: layers.BatchNorm | sequences.LayerNorm | sequences.RMSNorm,
    x: jax.Array,
    own: Arrays,
    _output: Shape,
) -> jax.Array:
    """Normalise in float32."""
    wide = x.astype(jnp.float32)
    if isinstance(layer, sequences.RMSNorm):
        scale = lax.rsqrt((wide * wide).mean(-1, keepdims=True) + layer.epsilon)
        return (wide * scale * own["weight"]).astype(passed.dtype)
    if isinstance(layer, layers.BatchNorm):
        mean, variance = passed.norm(layer, wide)
        scale = lax.rsqrt(variance + layer.epsilon) * own["weight"]
        return ((wide - mean) * scale + own["bias"]).astype(passed.dtype)
    mean, scale = wide.mean(-1, keepdims=True), lax.rsqrt(wide.var(-1, keepdims=True) + layer.epsilon)
    return ((wide - mean) * scale * own["weight"] + own["bias"]).astype(passed.dtype)


def _activation(_pass: _Pass, layer: layers.Activation, x: jax.Array, _own: Arrays, _output: Shape) -> jax.Array:
    return jax.nn.relu(x) if layer.kind == "relu" else jax.nn.gelu(x, approximate=layer.kind == "gelu-tanh")


def _embedding(passed: _Pass, _layer: Layer, x: jax.Array, own: Arrays, _output: Shape) -> jax.Array:
    passed.words = own["weight"]
    return passed.words[x]


def _class_token(_pass: _Pass, _layer: Layer, x: jax.Array, own: Arrays, _output: Shape) -> jax.Array:
    token = jnp.broadcast_to(own["weight"], (len(x), 1, x.shape[-1]))
    return jnp.concatenate([token, x], 1)


def _lstm(_pass: _Pass, layer: sequences.LSTM, x: jax.Array, own: Arrays, _output: Shape) -> jax.Array:
    ways = [_last_state(x, own, "")]
    if layer.both_ways:
        ways.append(_last_state(x[:, ::-1], own, "_reverse"))
    return jnp.concatenate(ways, -1)


def _last_state(x: jax.Array, own: Arrays, suffix: str) -> jax.Array:
    """Map (batch, length, inputs) to the state after the last position: (batch, width)."""
    fed = x @ own[f"weight_input{suffix}"].T + own[f"bias{suffix}"]
    state_weight = own[f"weight_state{suffix}"]
    empty = jnp.zeros((len(x), state_weight.shape[1]), x.dtype)

    def move(states: tuple[jax.Array, jax.Array], one: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        state, cell = states
        entered, forgot, new, shown = jnp.split(one + state @ state_weight.T, 4, -1)
        cell = jax.nn.sigmoid(forgot) * cell + jax.nn.sigmoid(entered) * jnp.tanh(new)
        return (jax.nn.sigmoid(shown) * jnp.tanh(cell), cell), None

    (state, _), _ = lax.scan(move, (empty, empty), fed.swapaxes(0, 1))
    return state


def _attention(passed: _Pass, layer: sequences.Attention, x: jax.Array, own: Arrays, _output: Shape) -> jax.Array:
    """Map (batch, length, width) to the same shape."""
    batch, length, width = x.shape
    if layer.fused:
        of_queries, of_keys = layer.widths(width)
        projected = jnp.split(_linear(x, own, "qkv_"), (of_queries, of_queries + of_keys), -1)
    else:
        projected = [_linear(x, own, f"{each}_") for each in ("query", "key", "value")]
    # (batch, heads, length, size)
    size = width // layer.heads
    queries, keys, values = (each.reshape(batch, length, -1, size).swapaxes(1, 2) for each in projected)
    if layer.rotary:
        angles = weights.angles(length, size, layer.rotary)
        queries, keys = _turned(queries, *angles), _turned(keys, *angles)
    shared = layer.heads // layer.key_heads
    if shared > 1:
        keys, values = jnp.repeat(keys, shared, 1), jnp.repeat(values, shared, 1)
    scores = (queries @ keys.swapaxes(2, 3)).astype(jnp.float32) / size**0.5
    if layer.causal:
        scores = jnp.where(jnp.tri(length, dtype=bool), scores, -jnp.inf)
    shares = passed.dropped(jax.nn.softmax(scores).astype(values.dtype), layer.dropout)
    return _linear((shares @ values).swapaxes(1, 2).reshape(x.shape), own, "output_")


def _turned(x: jax.Array, cosine: NDArray[np.float32], sine: NDArray[np.float32]) -> jax.Array:
    """Rotate each value of a head's first half with the corresponding value of the second half."""
    first, second = jnp.split(x.astype(jnp.float32), 2, -1)
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(turned, -1).astype(x.dtype)


def _gated(_pass: _Pass, _layer: Layer, x: jax.Array, own: Arrays, _output: Shape) -> jax.Array:
    return _linear(jax.nn.silu(_linear(x, own, "gate_")) * _linear(x, own, "up_"), own, "down_")


APPLIED: dict[type[Layer], Callable[[_Pass, Any, jax.Array, Arrays, Shape], jax.Array]] = {
    layers.Conv: _conv,
    layers.Pool: _pool,
    layers.GlobalMean: lambda _pass, _layer, x, _own, _output: x.mean((1, 2)),
    layers.Flatten: _flatten,
    layers.Dense: lambda _pass, _layer, x, own, _output: _linear(x, own),
    layers.Activation: _activation,
    layers.Dropout: lambda passed, layer, x, _own, _output: passed.dropped(x, layer.rate),
    **dict.fromkeys((layers.BatchNorm, sequences.LayerNorm, sequences.RMSNorm), _normed),
    sequences.OneHot: lambda passed, layer, x, _own, _output: jax.nn.one_hot(x, layer.words, dtype=passed.dtype),
    sequences.Embedding: _embedding,
    sequences.Positions: lambda _pass, _layer, x, own, _output: x + own["weight"][: x.shape[1]],
    sequences.Segments: lambda _pass, _layer, x, own, _output: x + own["weight"][0],
    sequences.Patches: lambda _pass, _layer, x, _own, _output: x.reshape(len(x), -1, x.shape[-1]),
    sequences.ClassToken: _class_token,
    sequences.First: lambda _pass, _layer, x, _own, _output: x[:, 0],
    sequences.LSTM: _lstm,
    sequences.Attention: _attention,
    sequences.Gated: _gated,
    sequences.TiedLogits: lambda passed, _layer, x, own, _output: _linear(x, {**own, "weight": passed.words}),
}
