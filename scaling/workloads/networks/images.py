"""Convolutional networks for ImageNet without branches, and the small ones of the Keras examples."""

from __future__ import annotations

from scaling.workloads.layers import (
    BatchNorm,
    Branches,
    Conv,
    Dense,
    Dropout,
    Flatten,
    GlobalMean,
    Pool,
    Residual,
)
from scaling.workloads.networks.common import RELU, Layers, conv, dense, normed

HALVE = Pool("max", 2, 2)
OVERLAPPING = Pool("max", 3, 2)


def alexnet(_size: int, classes: int) -> Layers:
    """Return AlexNet in one column (Krizhevsky 2014, "One weird trick")."""
    return (
        *conv(64, 11, 4, 2, "uniform"), OVERLAPPING,
        *conv(192, 5, 1, 2, "uniform"), OVERLAPPING,
        *conv(384, 3, 1, 1, "uniform"), *(conv(256, 3, 1, 1, "uniform") * 2), OVERLAPPING,
        Flatten(), Dropout(0.5), *dense(4096, "uniform", 0.5), *dense(4096, "uniform"),
        Dense(classes, start="uniform"),
    )  # fmt: skip


def alexnet_towers(_size: int, classes: int) -> Layers:
    tower = (
        *conv(48, 11, 4, 2), OVERLAPPING, *conv(128, 5, 1, 2), OVERLAPPING,
        *conv(192, 3, 1, 1), *conv(192, 3, 1, 1), *conv(128, 3, 1, 1), OVERLAPPING,
    )  # fmt: skip
    return (
        Branches((tower, tower)),
        Flatten(), Dropout(0.5), *dense(4096, dropout=0.5), *dense(4096), Dense(classes),
    )  # fmt: skip


def overfeat(_size: int, classes: int) -> Layers:
    """Return the fast network of Sermanet 2013."""
    return (
        *conv(96, 11, 4), HALVE, *conv(256, 5), HALVE,
        *conv(512, 3, 1, 1), *conv(1024, 3, 1, 1), *conv(1024, 3, 1, 1), HALVE,
        Flatten(), Dropout(0.5), *dense(3072, dropout=0.5), *dense(4096), Dense(classes),
    )  # fmt: skip


def overfeat_accurate(_size: int, classes: int) -> Layers:
    """Return the accurate network of Sermanet 2013."""
    third = Pool("max", 3, 3)
    return (
        *conv(96, 7, 2), third, *conv(256, 7), HALVE,
        *conv(512, 3, 1, 1), *conv(512, 3, 1, 1), *conv(1024, 3, 1, 1), *conv(1024, 3, 1, 1), third,
        Flatten(), Dropout(0.5), *dense(4096, dropout=0.5), *dense(4096), Dense(classes),
    )  # fmt: skip


def _vgg(*stages: int) -> Layers:
    widths = (64, 128, 256, 512, 512)
    counts = zip(widths, stages, strict=True)
    return tuple(layer for width, count in counts for layer in (*(conv(width, 3, 1, 1, "he-out") * count), HALVE))


def _vgg_head(classes: int) -> Layers:
    return (
        Flatten(), *dense(4096, "normal-0.01", 0.5), *dense(4096, "normal-0.01", 0.5),
        Dense(classes, start="normal-0.01"),
    )  # fmt: skip


def vgg11(_size: int, classes: int) -> Layers:
    """Return configuration A of Simonyan & Zisserman 2014."""
    return *_vgg(1, 1, 2, 2, 2), *_vgg_head(classes)


def vgg16(_size: int, classes: int) -> Layers:
    """Return configuration D of Simonyan & Zisserman 2014."""
    return *_vgg(2, 2, 3, 3, 3), *_vgg_head(classes)


def vgg19(_size: int, classes: int) -> Layers:
    """Return configuration E of Simonyan & Zisserman 2014."""
    return *_vgg(2, 2, 4, 4, 4), *_vgg_head(classes)


# ---------------------------------------------------------------- ResNet


def _bottleneck(width: int, stride: int, *, widens: bool) -> Layers:
    """He et al. 2015, figure 5 right, with the stride in the 3 x 3 convolution (v1.5)."""
    last = (Conv(4 * width, 1, bias=False, start="he-out"), BatchNorm())
    shortcut = (Conv(4 * width, 1, stride, bias=False, start="he-out"), BatchNorm()) if widens else ()
    return Residual((*normed(width, 1), *normed(width, 3, stride, 1), *last), shortcut), RELU


def _resnet(classes: int, *stages: int) -> Layers:
    blocks = (
        layer
        for stage, count in enumerate(stages)
        for block in range(count)
        for layer in _bottleneck(64 << stage, 2 if stage and not block else 1, widens=not block)
    )
    stem = (*normed(64, 7, 2, 3), Pool("max", 3, 2, 1))
    return *stem, *blocks, GlobalMean(), Dense(classes, start="uniform")


def resnet50(_size: int, classes: int) -> Layers:
    return _resnet(classes, 3, 4, 6, 3)


def resnet101(_size: int, classes: int) -> Layers:
    return _resnet(classes, 3, 4, 23, 3)


def resnet152(_size: int, classes: int) -> Layers:
    return _resnet(classes, 3, 8, 36, 3)


# ---------------------------------------------------------------- small images


def digits_cnn(_size: int, classes: int) -> Layers:
    pairs = (layer for width in (32, 64, 128) for layer in (*(conv(width, 3, 1, 1) * 2), HALVE))
    return *pairs, Flatten(), *dense(256), Dense(classes)


def fashion_cnn(_size: int, classes: int) -> Layers:
    """Return Domino's network: normalisation after ReLU, with Keras's constants."""
    norm = BatchNorm(epsilon=1e-3, momentum=0.99)
    same = {width: conv(width, 3, 1, 1, "glorot") for width in (32, 64, 128, 256)}
    hidden = (*dense(512, "glorot"), norm, Dropout(0.5))
    return (
        *same[32], *same[32], norm, Dropout(0.25), *same[64], *same[64], HALVE, Dropout(0.25),
        *same[128], *same[128], norm, Dropout(0.25), *same[256], *same[256], *same[256], HALVE,
        Flatten(), *hidden, *hidden, Dense(classes, start="glorot"),
    )  # fmt: skip


def mnist_mlp(_size: int, classes: int) -> Layers:
    return Flatten(), *(dense(512, "glorot", 0.2) * 2), Dense(classes, start="glorot")


def mnist_cnn(_size: int, classes: int) -> Layers:
    return (
        *conv(32, 3, start="glorot"), *conv(64, 3, start="glorot"), HALVE, Dropout(0.25),
        Flatten(), *dense(128, "glorot", 0.5), Dense(classes, start="glorot"),
    )  # fmt: skip


def cifar10_cnn(_size: int, classes: int) -> Layers:
    """Return two pairs of convolutions; the second of each pair has no padding."""
    pairs = (
        layer
        for width in (32, 64)
        for layer in (*conv(width, 3, 1, 1, "glorot"), *conv(width, 3, start="glorot"), HALVE, Dropout(0.25))
    )
    return *pairs, Flatten(), *dense(512, "glorot", 0.5), Dense(classes, start="glorot")
