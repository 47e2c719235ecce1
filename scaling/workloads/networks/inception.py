"""Networks whose blocks have branches: GoogLeNet and its successors."""

from __future__ import annotations

from scaling.workloads.layers import BatchNorm, Branches, Dense, Dropout, GlobalMean, Layer, Pool
from scaling.workloads.networks.common import TORCHVISION_EPSILON, Layers, conv, normed

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
    layers: list[Layer] = [*conv(64, 7, 2, 3, "glorot"), pool, *conv(64, 1, start="glorot")]
    layers += [*conv(192, 3, 1, 1, "glorot"), pool]
    for index, widths in enumerate(GOOGLENET):
        layers.append(_googlenet_block(*widths))
        layers += [pool] if index in POOLED else []
    return *layers, GlobalMean(), Dropout(0.4), Dense(classes, start="glorot")


def _googlenet_block(one: int, reduced3: int, three: int, reduced5: int, five: int, pooled: int) -> Branches:
    return Branches((
        conv(one, 1, start="glorot"),
        (*conv(reduced3, 1, start="glorot"), *conv(three, 3, 1, 1, "glorot")),
        (*conv(reduced5, 1, start="glorot"), *conv(five, 5, 1, 2, "glorot")),
        (SAME, *conv(pooled, 1, start="glorot")),
    ))  # fmt: skip


def googlenet_bn(_size: int, classes: int) -> Layers:
    """Return torchvision's GoogLeNet: batch normalisation, and 3 x 3 for the paper's 5 x 5."""
    norm = BatchNorm(TORCHVISION_EPSILON)

    def block(one: int, reduced3: int, three: int, reduced5: int, five: int, pooled: int) -> Branches:
        return Branches((
            normed(one, 1, norm=norm),
            (*normed(reduced3, 1, norm=norm), *normed(three, 3, 1, 1, norm=norm)),
            (*normed(reduced5, 1, norm=norm), *normed(five, 3, 1, 1, norm=norm)),
            (Pool("max", 3, 1, 1, ceil=True), *normed(pooled, 1, norm=norm)),
        ))  # fmt: skip

    pools = (Pool("max", 3, 2, ceil=True), Pool("max", 2, 2, ceil=True))
    layers: list[Layer] = [*normed(64, 7, 2, 3, norm=norm), pools[0], *normed(64, 1, norm=norm)]
    layers += [*normed(192, 3, 1, 1, norm=norm), pools[0]]
    for index, widths in enumerate(GOOGLENET):
        layers.append(block(*widths))
        layers += [pools[POOLED.index(index)]] if index in POOLED else []
    return *layers, GlobalMean(), Dropout(0.2), Dense(classes)


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

    def unit(channels: int, kernel: int, stride: int = 1, pad: int = 0) -> Layers:
        return normed(channels, kernel, stride, pad, norm=BatchNorm(1e-5 + 1e-10), bias=True)

    def block(kind: str, widths: tuple[int, ...]) -> Branches:
        if not kind:
            reduced3, three, reduced, wide = widths
            return Branches((
                (*unit(reduced3, 1), *unit(three, 3, 2, 1)),
                (*unit(reduced, 1), *unit(wide, 3, 1, 1), *unit(wide, 3, 2, 1)),
                (Pool("max", 3, 2, 1),),
            ))  # fmt: skip
        one, reduced3, three, reduced, wide, pooled = widths
        return Branches((
            unit(one, 1),
            (*unit(reduced3, 1), *unit(three, 3, 1, 1)),
            (*unit(reduced, 1), *unit(wide, 3, 1, 1), *unit(wide, 3, 1, 1)),
            (SAME if kind == "max" else Pool("mean", 3, 1, 1), *unit(pooled, 1)),
        ))  # fmt: skip

    pool = Pool("max", 3, 2)
    stem = (*unit(64, 7, 2, 3), pool, *unit(64, 1), *unit(192, 3, 1, 1), pool)
    return *stem, *(block(*each) for each in INCEPTION_BN), GlobalMean(), Dense(classes)


# ---------------------------------------------------------------- inception v3
#
# Inception v3 (Szegedy 2015) as in torchvision, without its auxiliary classifier.


NORM = BatchNorm(TORCHVISION_EPSILON)
MEAN = Pool("mean", 3, 1, 1)
SHRINK = Pool("max", 3, 2)
ROW, COLUMN = ((1, 7), (0, 3)), ((7, 1), (3, 0))


def inception_v3(_size: int, classes: int) -> Layers:
    """Return Inception v3, for images of 299 x 299."""
    return (
        *_unit(32, 3, 2), *_unit(32, 3), *_unit(64, 3, 1, 1), SHRINK, *_unit(80, 1), *_unit(192, 3), SHRINK,
        _a(32), _a(64), _a(64), _b(), _c(128), _c(160), _c(160), _c(192), _d(), _e(), _e(),
        GlobalMean(), Dropout(0.5), Dense(classes),
    )  # fmt: skip


def _unit(channels: int, kernel: int | tuple[int, int], stride: int = 1, pad: int | tuple[int, int] = 0) -> Layers:
    return normed(channels, kernel, stride, pad, norm=NORM)


def _a(pooled: int) -> Branches:
    return Branches((
        _unit(64, 1),
        (*_unit(48, 1), *_unit(64, 5, 1, 2)),
        (*_unit(64, 1), *_unit(96, 3, 1, 1), *_unit(96, 3, 1, 1)),
        (MEAN, *_unit(pooled, 1)),
    ))  # fmt: skip


def _b() -> Branches:
    return Branches((_unit(384, 3, 2), (*_unit(64, 1), *_unit(96, 3, 1, 1), *_unit(96, 3, 2)), (SHRINK,)))


def _line(channels: int, shape: tuple[tuple[int, int], tuple[int, int]]) -> Layers:
    kernel, pad = shape
    return _unit(channels, kernel, 1, pad)


def _c(width: int) -> Branches:
    return Branches((
        _unit(192, 1),
        (*_unit(width, 1), *_line(width, ROW), *_line(192, COLUMN)),
        (*_unit(width, 1), *_line(width, COLUMN), *_line(width, ROW), *_line(width, COLUMN), *_line(192, ROW)),
        (MEAN, *_unit(192, 1)),
    ))  # fmt: skip


def _d() -> Branches:
    return Branches((
        (*_unit(192, 1), *_unit(320, 3, 2)),
        (*_unit(192, 1), *_line(192, ROW), *_line(192, COLUMN), *_unit(192, 3, 2)),
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
