"""Groups of layers that many networks share."""

from __future__ import annotations

from scaling.workloads.layers import Activation, BatchNorm, Conv, Dense, Dropout, Layer, Start

Layers = tuple[Layer, ...]
RELU = Activation("relu")
NORM = BatchNorm()
TORCHVISION_EPSILON = 1e-3


def conv(
    channels: int,
    kernel: int | tuple[int, int],
    stride: int = 1,
    pad: int | tuple[int, int] = 0,
    start: Start = "he-in",
) -> Layers:
    """Return a convolution with bias, and ReLU."""
    return Conv(channels, kernel, stride, pad, start=start), RELU


def normed(
    channels: int,
    kernel: int | tuple[int, int],
    stride: int = 1,
    pad: int | tuple[int, int] = 0,
    *,
    norm: BatchNorm = NORM,
    bias: bool = False,
) -> Layers:
    """Return a convolution, batch normalisation, and ReLU."""
    return Conv(channels, kernel, stride, pad, bias=bias, start="he-out"), norm, RELU


def dense(width: int, start: Start = "he-in", dropout: float = 0.0) -> Layers:
    """Return a matrix with bias, ReLU, and perhaps dropout."""
    layers: Layers = (Dense(width, start=start), RELU)
    return (*layers, Dropout(dropout)) if dropout else layers
