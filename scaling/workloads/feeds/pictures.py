"""Images of a feed: bytes in memory, digits, and pictures in files, which Pillow decodes for each batch.

This is a plain pipeline, the same for all frameworks.
"""

from __future__ import annotations

import gzip
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scaling.errors import UsageError
from scaling.text import one_line
from scaling.workloads.data import Augment, DataSpec, Split
from scaling.workloads.data.images import Tree
from scaling.workloads.data.records import Records
from scaling.workloads.feeds.batches import Batch, Indices
from scaling.workloads.specs import Images

if TYPE_CHECKING:
    from scaling.workloads.feeds import Feed

Floats: TypeAlias = NDArray[np.float32]
Labels: TypeAlias = NDArray[np.int64]


def normal(spec: DataSpec, channels: int) -> tuple[Floats, Floats]:
    """Return scale and shift: a pixel from 0 to 255 becomes pixel x scale - shift; (channels, 1, 1)."""
    mean, deviation = np.asarray(spec.mean), np.asarray(spec.deviation)
    if channels == 1:
        mean, deviation = mean.mean(keepdims=True), deviation.mean(keepdims=True)
    scale, shift = (each.astype(np.float32)[:, None, None] for each in (1 / (255 * deviation), mean / deviation))
    return scale, shift


# ---------------------------------------------------------------- pixels


class Pixels:
    """Samples of bytes (count, channels, height, width) with labels (count,), normalised and resized for a model
    of `images`. Grey images are repeated for a model with colours."""

    def __init__(self, pixels: NDArray[np.uint8], labels: Labels, spec: DataSpec, images: Images) -> None:
        self._pixels, self.labels, self._channels = pixels, labels, images.channels
        self._scale, self._shift = normal(spec, images.channels)
        height, width = pixels.shape[2:]
        same = (height, width) == (images.height, images.width)
        self._resize = None if same else (bilinear(images.height, height), bilinear(images.width, width).T)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices, _seed: Sequence[int]) -> Batch:
        images = self._pixels[indices] * self._scale - self._shift
        if self._resize is not None:
            rows, columns = self._resize
            images = rows @ (images @ columns)
        return in_channels(images, self._channels), self.labels[indices]


def in_channels(images: Floats, channels: int) -> Floats:
    """Return the images, with a single channel repeated if more are needed."""
    return images if images.shape[1] == channels else np.repeat(images, channels, axis=1)


def bilinear(size: int, side: int) -> Floats:
    """Return the (size, side) matrix that resizes one axis. It is linear between pixel centres and repeats the
    edge outside, as torch's `interpolate(align_corners=False)` does when enlarging."""
    positions = (np.arange(size) + 0.5) * side / size - 0.5
    columns = [np.interp(positions, np.arange(side), pixel) for pixel in np.eye(side)]
    return np.stack(columns, axis=1).astype(np.float32)


# ---------------------------------------------------------------- digits
#
# 1,797 real handwritten digits of 8 x 8 pixels, resized to the model's input.
#
# Source: UCI, "Optical Recognition of Handwritten Digits", test set. The file in scikit-learn is read directly in
# 5 ms: importing its `load_digits` takes 1.1 s in every worker.


SIDE = 8
# One fifth is held out, at random because the file is sorted by writer.
HELD_OUT, SHUFFLE = 360, 0


def read_digits() -> tuple[NDArray[np.uint8], Labels]:
    """Return pixels 0..16 (1797, 8, 8) and labels (1797,). Raises ModuleNotFoundError without scikit-learn."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the digits come with scikit-learn: pip install scikit-learn")
    with gzip.open(Path(package.origin).parent / "datasets/data/digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return table[:, :-1].reshape(-1, SIDE, SIDE), table[:, -1].astype(np.int64)


@lru_cache(maxsize=1)
def digits(height: int, width: int) -> tuple[Floats, Labels]:
    """Return float32 digits (1797, 1, height, width) with mean 0 and deviation 1, and labels (1797,). All feeds of
    a process share these arrays, which are read-only."""
    pixels, labels = read_digits()
    resized = bilinear(height, SIDE) @ pixels.astype(np.float32) @ bilinear(width, SIDE).T
    # By reshape: the strides of a None axis would make torch take one channel for channels_last.
    images = ((resized - resized.mean()) / resized.std()).reshape(-1, 1, height, width)
    images.flags.writeable = labels.flags.writeable = False
    return images, labels


class Digits:
    """The digits of a split: 1,437 to train on, 360 held out."""

    def __init__(self, images: Images, split: Split) -> None:
        self._channels = images.channels
        self._images, labels = digits(images.height, images.width)
        order = np.random.default_rng(SHUFFLE).permutation(len(labels))
        self._chosen = np.sort(order[:HELD_OUT] if split == "test" else order[HELD_OUT:])
        self.labels: Labels = labels[self._chosen]

    def __len__(self) -> int:
        return len(self._chosen)

    def take(self, indices: Indices, _seed: Sequence[int] = ()) -> Batch:
        return in_channels(self._images[self._chosen[indices]], self._channels), self.labels[indices]


# ---------------------------------------------------------------- pictures


class Pictures:
    """Samples of encoded pictures. Raises UsageError without Pillow.

    * classes: the number of classes of the model.
    * scale, shift: as `normal` returns them.
    """

    def __init__(self, encoded: Tree | Records, spec: DataSpec, images: Images, classes: int) -> None:
        if find_spec("PIL") is None:
            raise UsageError(f"--data {spec.name}: decodes pictures with Pillow: pip install pillow")
        self.encoded, self.images, self.classes, self._name = encoded, images, classes, spec.name
        self.scale, self.shift = normal(spec, images.channels)

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def labels(self) -> Labels | None:
        """Return the classes (count,); None for files of records, which are read one by one."""
        return np.array(self.encoded.labels, np.int64) if isinstance(self.encoded, Tree) else None

    def take(self, indices: Indices, _seed: Sequence[int]) -> Batch:
        shown = np.empty((len(indices), *self.images.shape), np.float32)
        labels = np.empty(len(indices), np.int64)
        for place, index in enumerate(map(int, indices)):
            content, label = self.encoded.read(index)
            self.check(index, label)
            try:
                shown[place] = decode(content, self.images) * self.scale - self.shift
            except OSError as error:
                raise UsageError(f"{self.encoded.name(index)}: Pillow cannot read it: {error}") from None
            labels[place] = label
        return shown, labels

    def check(self, index: int, label: int) -> None:
        """Raise UsageError if the model does not have this picture's class."""
        if label >= self.classes:
            where = self.encoded.name(index)
            raise UsageError(f"--data {self._name}: {where} is of class {label}, the model has {self.classes}")


def decode(content: bytes, images: Images) -> NDArray[np.uint8]:
    """Decode a picture to the model's size (channels, height, width): its centre in the model's proportions,
    resized linearly. Raises OSError if it cannot be read."""
    from PIL import Image, ImageOps

    size = (images.width, images.height)
    mode = "RGB" if images.channels == 3 else "L"
    with damages(), Image.open(io.BytesIO(content)) as opened:
        # Pillow decodes a JPEG at 1/2, 1/4 or 1/8 of its size if that is still large enough.
        opened.draft(mode, size)
        fitted = ImageOps.fit(opened.convert(mode), size, Image.Resampling.BILINEAR)
    pixels = np.asarray(fitted)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


@contextmanager
def damages() -> Iterator[None]:
    """Raise Pillow's many errors about a broken picture as OSError, without memory addresses."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ImportError | MemoryError):
            raise
        raise OSError(one_line(str(error)).partition(" <_io")[0] or type(error).__name__) from None


# ---------------------------------------------------------------- changed at random


class Augmented:
    """A feed whose images are changed from `first_step` on: also a pure function of seed, rank and step."""

    fixed = False

    def __init__(self, feed: Feed, augment: Augment, *, first_step: int, seed: int, rank: int) -> None:
        # Slow: no step waits for it.
        import scipy.ndimage  # type: ignore[import-untyped]  # noqa: F401

        self._feed, self._augment, self._first_step, self._seed = feed, augment, first_step, (seed, rank)

    def batch(self, step: int) -> Batch:
        images, labels = self._feed.batch(step)
        if step < self._first_step:
            return images, labels
        # Different from the numbers that the feed uses.
        random = np.random.default_rng((*self._seed, step, 1))
        return np.stack([changed(image, self._augment, random) for image in images]), labels


def changed(image: Floats | Labels, augment: Augment, random: np.random.Generator) -> Floats:
    """Rotate, shift, shear, zoom and mirror an image (channels, height, width) at random. Values between pixels
    are interpolated linearly. The edge is repeated outside, as in Keras's ImageDataGenerator."""
    from scipy import ndimage

    height, width = image.shape[1:]
    angle, shear = math.radians(augment.rotate) * random.uniform(-1, 1), augment.shear * random.uniform(-1, 1)
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    sheared = np.array([[1, -math.sin(shear)], [0, math.cos(shear)]])
    # Of rows and columns. It maps a pixel of the new image to the old one.
    matrix = rotation @ sheared @ np.diag(1 + augment.zoom * random.uniform(-1, 1, 2))
    shift = augment.shift * random.uniform(-1, 1, 2) * (height, width)
    middle = np.array([height - 1, width - 1]) / 2
    offset = middle + shift - matrix @ middle
    mirrored = augment.flip and random.random() < 0.5
    shown = np.stack(
        [ndimage.affine_transform(channel, matrix, offset, order=1, mode="nearest") for channel in image]
    )
    return np.ascontiguousarray(shown[..., ::-1] if mirrored else shown, np.float32)
