"""Layers that describe networks: sizes, parameters and operations of each, without any framework.

* Shapes have no batch: images (channels, height, width), tokens (length,), sequences (length, width), vectors
  (width,).
* A multiplication and an addition are two operations. Activations, pooling and normalisation count none, as in
  torch.utils.flop_counter.
* `Chain`, `Residual` and `Branches` hold other layers (`walk.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

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
