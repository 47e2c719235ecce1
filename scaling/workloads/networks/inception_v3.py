"""Inception v3 (Szegedy 2015) as in torchvision, without its auxiliary classifier."""

from __future__ import annotations

from scaling.workloads.layers import BatchNorm, Branches, Dense, Dropout, GlobalMean, Pool
from scaling.workloads.networks.common import TORCHVISION_EPSILON, Layers, normed

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
