"""Layers that describe networks, and the walk through a network: sizes, parameters, operations, and no framework.

* Shapes have no batch: images (channels, height, width), tokens (length,), sequences (length, width), vectors
  (width,).
* A multiplication and an addition are two operations. Activations, pooling and normalisation count none, as in
  torch.utils.flop_counter.
* `Chain`, `Residual` and `Branches` hold other layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

from scaling.errors import UsageError

Shape: TypeAlias = tuple[int, ...]
# How a parameter's first values are drawn (weights.py): He et al. 2015 by fan in or out; Glorot & Bengio 2010;
# U(-1, 1) / sqrt(fan in); normal with that deviation; U(-0.05, 0.05); an orthogonal matrix; zeros; ones; zeros
# except ones for an LSTM's forget gates.
Start = Literal[
    "he-in", "he-out", "glorot", "uniform", "normal-0.01", "normal-0.02", "uniform-0.05", "orthogonal",
    "zeros", "ones", "forget",
]  # fmt: skip


class ShapeError(ValueError):
    """A layer cannot take its input."""


@dataclass(frozen=True)
class Parameter:
    """A trained array: its name in its layer, its shape, its start, and the fans of one unit."""

    name: str
    shape: Shape
    start: Start
    fan_in: int = 1
    fan_out: int = 1

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layer:
    """The base of all layers; it changes nothing."""

    def output(self, shape: Shape) -> Shape:
        """Return the shape of the output. Raises ShapeError if `shape` cannot be the input."""
        return shape

    def parameters(self, _shape: Shape) -> tuple[Parameter, ...]:
        """Return the trained arrays, in the order of every framework."""
        return ()

    def operations(self, _shape: Shape) -> int:
        """Return the operations of one sample's forward pass."""
        return 0

    def recurrent_operations(self, _shape: Shape) -> int:
        """Return the operations on the layer's own output, whose gradient is needed at any place of the layer."""
        return 0


def need(shape: Shape, rank: int, what: str) -> None:
    """Refuse a shape of another rank. Raises ShapeError."""
    if len(shape) != rank:
        raise ShapeError(f"takes {what}, and gets {' x '.join(map(str, shape))}")


IMAGES, SEQUENCE, VECTOR, TOKENS = "images", "a sequence of vectors", "a vector", "tokens"


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


# ---------------------------------------------------------------- images


@dataclass(frozen=True)
class Conv(Layer):
    """A convolution to `channels` with zero padding. With `whole`, its windows must cover all pixels."""

    channels: int
    kernel: int | tuple[int, int]
    stride: int = 1
    pad: int | tuple[int, int] = 0
    bias: bool = True
    start: Start = "he-in"
    whole: bool = False

    def output(self, shape: Shape) -> Shape:
        counts = _windows(shape, pair(self.kernel), self.stride, pair(self.pad), ceil=False)
        if self.whole:
            self._check_edges(shape)
        return self.channels, *counts

    def _check_edges(self, shape: Shape) -> None:
        """Refuse an image whose lower or right edge no window covers. Raises ShapeError."""
        for size, length, border in zip(shape[1:], pair(self.kernel), pair(self.pad), strict=True):
            if left := (size + 2 * border - length) % self.stride:
                sizes = f"{size - left} and {size - left + self.stride} would"
                raise ShapeError(f"windows of {length}, {self.stride} apart, do not fill {size}; {sizes}")

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        area = math.prod(pair(self.kernel))
        return weights((self.channels, shape[0], *pair(self.kernel)), self.bias, self.start,
                        fans=(shape[0] * area, self.channels * area))  # fmt: skip

    def operations(self, shape: Shape) -> int:
        """Return two operations per weight and position; the bias counts none."""
        return 2 * math.prod(self.output(shape)) * shape[0] * math.prod(pair(self.kernel))


@dataclass(frozen=True)
class Pool(Layer):
    """The largest or the mean value of each window. A mean includes the zeros of the padding."""

    kind: Literal["max", "mean"]
    kernel: int
    stride: int
    pad: int = 0
    ceil: bool = False

    def output(self, shape: Shape) -> Shape:
        """Return the shape, rounded down; with `ceil` up, if the last window begins inside the image."""
        return shape[0], *_windows(shape, pair(self.kernel), self.stride, pair(self.pad), ceil=self.ceil)


@dataclass(frozen=True)
class GlobalMean(Layer):
    def output(self, shape: Shape) -> Shape:
        need(shape, 3, IMAGES)
        return shape[:1]


@dataclass(frozen=True)
class Flatten(Layer):
    """All values in one vector, channels outermost."""

    def output(self, shape: Shape) -> Shape:
        return (math.prod(shape),)


@dataclass(frozen=True)
class BatchNorm(Layer):
    """Normalisation of each channel or value over the batch. Running statistics keep `momentum` in a step."""

    epsilon: float = 1e-5
    momentum: float = 0.9

    def output(self, shape: Shape) -> Shape:
        if len(shape) not in (1, 3):
            need(shape, 3, IMAGES)
        return shape

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        return scale_and_shift(shape[0])


def _windows(
    shape: Shape, kernel: tuple[int, int], stride: int, pad: tuple[int, int], *, ceil: bool
) -> tuple[int, int]:
    need(shape, 3, IMAGES)
    counts = []
    for size, length, border in zip(shape[1:], kernel, pad, strict=True):
        room = size + 2 * border - length
        if room < 0:
            raise ShapeError(f"a window of {kernel[0]} x {kernel[1]} does not fit in {shape[1]} x {shape[2]}")
        count = (-(-room // stride) if ceil else room // stride) + 1
        counts.append(count - 1 if ceil and (count - 1) * stride >= size + border else count)
    return counts[0], counts[1]


def weights(shape: Shape, bias: bool, start: Start, *, fans: tuple[int, int]) -> tuple[Parameter, ...]:
    weight = Parameter("weight", shape, start, *fans)
    if not bias:
        return (weight,)
    # As in torch, if the start is torch's. Other uniform starts have no bias.
    return weight, Parameter("bias", shape[:1], "uniform" if start == "uniform" else "zeros", *fans)


def scale_and_shift(width: int) -> tuple[Parameter, ...]:
    return Parameter("weight", (width,), "ones"), Parameter("bias", (width,), "zeros")


# ---------------------------------------------------------------- vectors, and each vector of a sequence


@dataclass(frozen=True)
class Dense(Layer):
    """A matrix and perhaps a bias, applied to the last axis."""

    width: int
    bias: bool = True
    start: Start = "he-in"

    def output(self, shape: Shape) -> Shape:
        if len(shape) > 2:
            need(shape, 1, VECTOR)
        return *shape[:-1], self.width

    def parameters(self, shape: Shape) -> tuple[Parameter, ...]:
        return weights((self.width, shape[-1]), self.bias, self.start, fans=(shape[-1], self.width))

    def operations(self, shape: Shape) -> int:
        return 2 * self.width * math.prod(shape)


@dataclass(frozen=True)
class Activation(Layer):
    """A function of each value. GELU uses the error function; `gelu-tanh` approximates it."""

    kind: Literal["relu", "gelu", "gelu-tanh"] = "relu"


@dataclass(frozen=True)
class Dropout(Layer):
    """Zeroes a fraction of the values in training, and enlarges the others."""

    rate: float


# ---------------------------------------------------------------- composites


@dataclass(frozen=True)
class Chain(Layer):
    """Consecutive layers as one: a block that a network repeats."""

    body: tuple[Layer, ...]


@dataclass(frozen=True)
class Residual(Layer):
    """The sum of `body` and the input, which `shortcut` may bring to the same shape."""

    body: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()


@dataclass(frozen=True)
class Branches(Layer):
    """Parallel chains on the same images, whose channels are concatenated."""

    branches: tuple[tuple[Layer, ...], ...]


# ---------------------------------------------------------------- walk

Value = TypeVar("Value")


class Walk(Generic[Value]):
    """One pass of a value through a network. A subclass says what its layers make of it."""

    def one(self, layer: Layer, x: Value, path: str) -> Value:
        """Apply a layer that holds no others. `path` counts from 0 at each depth (`4.0.1`)."""
        raise NotImplementedError

    def add(self, body: Value, shortcut: Value, path: str) -> Value:
        raise NotImplementedError

    def join(self, branches: list[Value], path: str) -> Value:
        """Concatenate the channels of branches."""
        raise NotImplementedError

    def chain(self, layers: Iterable[Layer], x: Value, path: str = "") -> Value:
        """Branches come one after the other, and a residual's body before its shortcut."""
        for index, layer in enumerate(layers):
            here = f"{path}{index}"
            match layer:
                case Chain(body):
                    x = self.chain(body, x, f"{here}.")
                case Residual(body, shortcut):
                    inside = self.chain(body, x, f"{here}.body.")
                    x = self.add(inside, self.chain(shortcut, x, f"{here}.shortcut."), here)
                case Branches(branches):
                    ways = [self.chain(each, x, f"{here}.{number}.") for number, each in enumerate(branches)]
                    x = self.join(ways, here)
                case _:
                    x = self.one(layer, x, here)
        return x


# ---------------------------------------------------------------- shapes


@dataclass(frozen=True)
class Placed:
    """A layer in its place.

    * shape, output: the shapes of its input and its output.
    * follows: its input depends on parameters, so the gradient of its input is needed.
    """

    path: str
    layer: Layer
    shape: Shape
    output: Shape
    follows: bool = False

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return self.layer.parameters(self.shape)

    @property
    def operations(self) -> int:
        """Return the operations of one sample's forward pass."""
        return self.layer.operations(self.shape)


# The shape of a layer's input, and whether it depends on parameters.
_Flow: TypeAlias = tuple[Shape, bool]


class _Shapes(Walk[_Flow]):
    def __init__(self) -> None:
        self.placed: list[Placed] = []

    def one(self, layer: Layer, x: _Flow, path: str) -> _Flow:
        shape, follows = x
        try:
            placed = Placed(path, layer, shape, layer.output(shape), follows)
        except ShapeError as error:
            raise UsageError(f"layer {path}, {type(layer).__name__}: {error}") from None
        self.placed.append(placed)
        return placed.output, follows or bool(placed.parameters)

    def add(self, body: _Flow, shortcut: _Flow, path: str) -> _Flow:
        if body[0] != shortcut[0]:
            raise UsageError(f"layer {path}, Residual: cannot add {_text(body[0])} and {_text(shortcut[0])}")
        return body[0], body[1] or shortcut[1]

    def join(self, branches: list[_Flow], path: str) -> _Flow:
        first = branches[0][0]
        for each, _ in branches:
            if len(each) != 3:
                raise UsageError(f"layer {path}, Branches: takes branches of images, and gets {_text(each)}")
            if each[1:] != first[1:]:
                raise UsageError(f"layer {path}, Branches: cannot put {_text(each)} beside {_text(first)}")
        return (sum(each[0] for each, _ in branches), *first[1:]), any(follows for _, follows in branches)


def _text(shape: Shape) -> str:
    return " x ".join(map(str, shape))


def walk(layers: Sequence[Layer], shape: Shape) -> tuple[Placed, ...]:
    """Return every layer that holds no others, in the order of the forward pass, which is that of parameters.
    Raises UsageError with the layer that cannot take its input, and the shapes."""
    shapes = _Shapes()
    shapes.chain(layers, (shape, False))
    return tuple(shapes.placed)


def parameters(layers: Sequence[Layer], shape: Shape) -> dict[str, Parameter]:
    return {f"{one.path}.{each.name}": each for one in walk(layers, shape) for each in one.parameters}


def forward_operations(layers: Sequence[Layer], shape: Shape) -> int:
    return sum(one.operations for one in walk(layers, shape))


def training_operations(layers: Sequence[Layer], shape: Shape) -> int:
    """Return the floating-point operations of one sample's forward and backward pass."""
    return forward_operations(layers, shape) + sum(backwards(walk(layers, shape)))


def backwards(placed: Sequence[Placed]) -> tuple[int, ...]:
    """Return the operations of each layer's backward pass. Gradients of weights cost as much as the forward pass,
    and so do those of the input. A layer whose input is the sample needs only the first; an LSTM there also needs
    the gradients of its states."""
    return tuple(
        one.operations + (one.operations if one.follows else one.layer.recurrent_operations(one.shape))
        for one in placed
    )
