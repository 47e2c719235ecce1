"""Networks as functions of an image size (or a length) and a number of classes (or words) to their layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from scaling.workloads.layers import (
    Activation,
    BatchNorm,
    Branches,
    Chain,
    Conv,
    Dense,
    Dropout,
    Flatten,
    GlobalMean,
    Layer,
    Pool,
    Residual,
    Start,
)
from scaling.workloads.sequences import (
    LSTM,
    Attention,
    ClassToken,
    Embedding,
    First,
    Gated,
    LayerNorm,
    OneHot,
    Patches,
    Positions,
    RMSNorm,
    Segments,
    TiedLogits,
)

Layers = tuple[Layer, ...]
RELU = Activation("relu")
# With torchvision's epsilon.
NORM = BatchNorm(1e-3)


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
    norm: BatchNorm = BatchNorm(),  # noqa: B008  it is immutable
    bias: bool = False,
) -> Layers:
    """Return a convolution, batch normalisation, and ReLU."""
    return Conv(channels, kernel, stride, pad, bias=bias, start="he-out"), norm, RELU


def dense(width: int, start: Start = "he-in", dropout: float = 0.0) -> Layers:
    """Return a matrix with bias, ReLU, and perhaps dropout."""
    layers: Layers = (Dense(width, start=start), RELU)
    return (*layers, Dropout(dropout)) if dropout else layers


# ---------------------------------------------------------------- without branches


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


def vgg(_size: int, classes: int, *, stages: Sequence[int]) -> Layers:
    """Return a network of Simonyan & Zisserman 2014, with so many convolutions before each pool."""
    widths = zip((64, 128, 256, 512, 512), stages, strict=True)
    return (
        *(layer for width, count in widths for layer in (*(conv(width, 3, 1, 1, "he-out") * count), HALVE)),
        Flatten(), *dense(4096, "normal-0.01", 0.5), *dense(4096, "normal-0.01", 0.5),
        Dense(classes, start="normal-0.01"),
    )  # fmt: skip


# ---------------------------------------------------------------- ResNet


def resnet(_size: int, classes: int, *, stages: Sequence[int]) -> Layers:
    """Return a network of He et al. 2015, with so many blocks of each width."""
    blocks = (
        layer
        for stage, count in enumerate(stages)
        for block in range(count)
        for layer in _bottleneck(64 << stage, 2 if stage and not block else 1, widens=not block)
    )
    return *normed(64, 7, 2, 3), Pool("max", 3, 2, 1), *blocks, GlobalMean(), Dense(classes, start="uniform")


def _bottleneck(width: int, stride: int, *, widens: bool) -> Layers:
    """He et al. 2015, figure 5 right, with the stride in the 3 x 3 convolution (v1.5)."""
    last = (Conv(4 * width, 1, bias=False, start="he-out"), BatchNorm())
    shortcut = (Conv(4 * width, 1, stride, bias=False, start="he-out"), BatchNorm()) if widens else ()
    return Residual((*normed(width, 1), *normed(width, 3, stride, 1), *last), shortcut), RELU


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


# ---------------------------------------------------------------- GoogLeNet and its successors


# Szegedy 2014, table 1: 1 x 1; 3 x 3 reduction, 3 x 3; 5 x 5 reduction, 5 x 5; projection after the pool. Pools
# follow the second and the seventh block.
GOOGLENET = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)
POOLED = (1, 6)
# From this size pools round down, to a last image of 7 x 7 (MXNet 0.7). Below they round up (Caffe).
FLOOR_FROM = 256
SAME = Pool("max", 3, 1, 1)


def googlenet(size: int, classes: int) -> Layers:
    """Return the main branch of Szegedy 2014, without local response normalisation and auxiliary classifiers."""
    pool = Pool("max", 3, 2, ceil=size < FLOOR_FROM)
    body = _googlenet(partial(conv, start="glorot"), 5, SAME, (pool, pool))
    return *body, GlobalMean(), Dropout(0.4), Dense(classes, start="glorot")


def googlenet_bn(_size: int, classes: int) -> Layers:
    """Return torchvision's GoogLeNet: batch normalisation, and 3 x 3 for the paper's 5 x 5."""
    pools = (Pool("max", 3, 2, ceil=True), Pool("max", 2, 2, ceil=True))
    body = _googlenet(partial(normed, norm=NORM), 3, replace(SAME, ceil=True), pools)
    return *body, GlobalMean(), Dropout(0.2), Dense(classes)


def _googlenet(unit: Callable[..., Layers], largest: int, pool: Pool, after: tuple[Pool, Pool]) -> Layers:
    """Return stem and blocks of `unit`s. The third branch has kernels of `largest`, the fourth a `pool`."""
    layers: list[Layer] = [*unit(64, 7, 2, 3), after[0], *unit(64, 1), *unit(192, 3, 1, 1), after[0]]
    for index, (one, reduced3, three, reduced5, five, pooled) in enumerate(GOOGLENET):
        layers.append(Branches((
            unit(one, 1),
            (*unit(reduced3, 1), *unit(three, 3, 1, 1)),
            (*unit(reduced5, 1), *unit(five, largest, 1, largest // 2)),
            (pool, *unit(pooled, 1)),
        )))  # fmt: skip
        layers += [after[POOLED.index(index)]] if index in POOLED else []
    return tuple(layers)


# ---------------------------------------------------------------- Inception with batch normalisation

# Blocks of constant size: kind of pool; 1 x 1; 3 x 3 reduction, 3 x 3; reduction and width of two 3 x 3;
# projection after the pool. Blocks that halve: 3 x 3 reduction, 3 x 3; reduction and width of two 3 x 3.
INCEPTION_BN: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("mean", (64, 64, 64, 64, 96, 32)),
    ("mean", (64, 64, 96, 64, 96, 64)),
    ("", (128, 160, 64, 96)),
    ("mean", (224, 64, 96, 96, 128, 128)),
    ("mean", (192, 96, 128, 96, 128, 128)),
    ("mean", (160, 128, 160, 128, 160, 128)),
    ("mean", (96, 128, 192, 160, 192, 128)),
    ("", (128, 192, 192, 256)),
    ("mean", (352, 192, 320, 160, 224, 128)),
    ("max", (352, 192, 320, 192, 224, 128)),
)


def inception_bn(_size: int, classes: int) -> Layers:
    """Return the network of MXNet's example of that name. Its convolutions have biases."""
    unit = partial(normed, norm=BatchNorm(1e-5 + 1e-10), bias=True)

    def block(kind: str, widths: tuple[int, ...]) -> Branches:
        *one, reduced3, three, reduced, wide, pooled = widths if kind else (*widths, 0)
        stride = 1 if kind else 2
        pool = Pool("mean", 3, 1, 1) if kind == "mean" else Pool("max", 3, stride, 1)
        return Branches((
            *(unit(width, 1) for width in one),
            (*unit(reduced3, 1), *unit(three, 3, stride, 1)),
            (*unit(reduced, 1), *unit(wide, 3, 1, 1), *unit(wide, 3, stride, 1)),
            (pool, *(unit(pooled, 1) if pooled else ())),
        ))  # fmt: skip

    pool = Pool("max", 3, 2)
    stem = (*unit(64, 7, 2, 3), pool, *unit(64, 1), *unit(192, 3, 1, 1), pool)
    return *stem, *(block(*each) for each in INCEPTION_BN), GlobalMean(), Dense(classes)


# ---------------------------------------------------------------- inception v3
#
# Inception v3 (Szegedy 2015) as in torchvision, without its auxiliary classifier.


MEAN = Pool("mean", 3, 1, 1)
SHRINK = Pool("max", 3, 2)
# Kernel, stride and padding of one row or column of seven.
ROW, COLUMN = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))
_unit = partial(normed, norm=NORM)


def inception_v3(_size: int, classes: int) -> Layers:
    """Return Inception v3, for images of 299 x 299."""
    return (
        *_unit(32, 3, 2), *_unit(32, 3), *_unit(64, 3, 1, 1), SHRINK, *_unit(80, 1), *_unit(192, 3), SHRINK,
        _a(32), _a(64), _a(64), _b(), _c(128), _c(160), _c(160), _c(192), _d(), _e(), _e(),
        GlobalMean(), Dropout(0.5), Dense(classes),
    )  # fmt: skip


def _a(pooled: int) -> Branches:
    return Branches((
        _unit(64, 1),
        (*_unit(48, 1), *_unit(64, 5, 1, 2)),
        (*_unit(64, 1), *_unit(96, 3, 1, 1), *_unit(96, 3, 1, 1)),
        (MEAN, *_unit(pooled, 1)),
    ))  # fmt: skip


def _b() -> Branches:
    return Branches((_unit(384, 3, 2), (*_unit(64, 1), *_unit(96, 3, 1, 1), *_unit(96, 3, 2)), (SHRINK,)))


def _c(width: int) -> Branches:
    return Branches((
        _unit(192, 1),
        (*_unit(width, 1), *_unit(width, *ROW), *_unit(192, *COLUMN)),
        (*_unit(width, 1), *_unit(width, *COLUMN), *_unit(width, *ROW), *_unit(width, *COLUMN), *_unit(192, *ROW)),
        (MEAN, *_unit(192, 1)),
    ))  # fmt: skip


def _d() -> Branches:
    return Branches((
        (*_unit(192, 1), *_unit(320, 3, 2)),
        (*_unit(192, 1), *_unit(192, *ROW), *_unit(192, *COLUMN), *_unit(192, 3, 2)),
        (SHRINK,),
    ))  # fmt: skip


def _e() -> Branches:
    split = Branches((_unit(384, (1, 3), 1, (0, 1)), _unit(384, (3, 1), 1, (1, 0))))
    return Branches((
        _unit(320, 1),
        (*_unit(384, 1), split),
        (*_unit(448, 1), *_unit(384, 3, 1, 1), split),
        (MEAN, *_unit(192, 1)),
    ))  # fmt: skip


# ---------------------------------------------------------------- words and patches: LSTMs, transformers


def imdb_lstm(_length: int, words: int) -> Layers:
    """Return an LSTM to one number, whose sign says whether a review is good."""
    embedded = Embedding(words, 128, "uniform-0.05")
    return embedded, LSTM(64, both_ways=True), Dropout(0.5), Dense(1, start="glorot")


def nietzsche_lstm(_length: int, words: int) -> Layers:
    return OneHot(words), LSTM(128), Dense(words, start="glorot")


_linear = partial(Dense, start="normal-0.02")


def _feed_forward(width: int, kind: Literal["gelu", "gelu-tanh"]) -> Layers:
    return _linear(4 * width), Activation(kind), _linear(width)


def vit(size: int, classes: int, *, patch: int, width: int, depth: int, heads: int) -> Layers:
    """Return ViT (Dosovitskiy 2020): normalisation before each part of a block, no dropout."""
    norm = LayerNorm(1e-6)
    block = Chain((
        Residual((norm, Attention(heads, fused=True))),
        Residual((norm, *_feed_forward(width, "gelu"))),
    ))  # fmt: skip
    places = (size // patch) ** 2 + 1
    return (
        Conv(width, patch, patch, whole=True), Patches(), ClassToken(), Positions(places),
        *([block] * depth), norm, First(), _linear(classes),
    )  # fmt: skip


def bert(_length: int, words: int, *, width: int, depth: int, heads: int, places: int = 512) -> Layers:
    """Return BERT (Devlin 2018) for masked words only: normalisation after each part of a block."""
    norm = LayerNorm(1e-12)
    block = Chain((
        Residual((Attention(heads, dropout=0.1), Dropout(0.1))), norm,
        Residual((*_feed_forward(width, "gelu"), Dropout(0.1))), norm,
    ))  # fmt: skip
    return (
        Embedding(words, width), Positions(places), Segments(2), norm, Dropout(0.1), *([block] * depth),
        _linear(width), Activation("gelu"), norm, TiedLogits(words, bias=True),
    )  # fmt: skip


def gpt2(_length: int, words: int, *, width: int, depth: int, heads: int, places: int = 1024) -> Layers:
    """Return GPT-2 (Radford 2019): normalisation before each part of a block, GELU by its approximation."""
    norm = LayerNorm()
    attention = Attention(heads, causal=True, fused=True, dropout=0.1)
    block = Chain((
        Residual((norm, attention, Dropout(0.1))),
        Residual((norm, *_feed_forward(width, "gelu-tanh"), Dropout(0.1))),
    ))  # fmt: skip
    return (
        Embedding(words, width), Positions(places), Dropout(0.1), *([block] * depth), norm, TiedLogits(words),
    )  # fmt: skip


def llama(
    _length: int,
    words: int,
    *,
    width: int,
    inside: int,
    depth: int,
    heads: int,
    groups: int,
    rotary: float = 1e4,
    tied: bool = False,
) -> Layers:
    """Return Llama (Touvron 2023): RMS normalisation, rotary positions, gated feed-forward, no biases."""
    norm = RMSNorm()
    attention = Attention(heads, groups, causal=True, rotary=rotary, bias=False)
    block = Chain((Residual((norm, attention)), Residual((norm, Gated(inside)))))
    logits = TiedLogits(words) if tied else _linear(words, bias=False)
    return Embedding(words, width), *([block] * depth), norm, logits
