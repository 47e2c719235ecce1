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
