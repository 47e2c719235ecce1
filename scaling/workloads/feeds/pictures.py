"""Pictures in files, decoded with Pillow for each batch: a plain pipeline, the same for all frameworks."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scaling.errors import UsageError
from scaling.text import one_line
from scaling.workloads.data.folders import Tree
from scaling.workloads.data.specs import DataSpec
from scaling.workloads.feeds.batches import Batch, Indices
from scaling.workloads.specs import Images


class Encoded(Protocol):
    """Encoded pictures in files, the files at `paths`."""

    @property
    def paths(self) -> Sequence[str]:
        """Return the files."""

    def __len__(self) -> int:
        """Return how many there are."""

    def name(self, index: int) -> str:
        """Return the place of a picture, for messages."""

    def read(self, index: int) -> tuple[bytes, int]:
        """Return one picture and its class."""


class Pictures:
    """Samples of encoded pictures. Raises UsageError without Pillow.

    * classes: the number of classes of the model.
    * scale, shift: a pixel from 0 to 255 becomes pixel x scale - shift; float32 (channels, 1, 1).
    """

    def __init__(self, encoded: Encoded, spec: DataSpec, images: Images, classes: int) -> None:
        if find_spec("PIL") is None:
            raise UsageError(f"--data {spec.name}: decodes pictures with Pillow: pip install pillow")
        self.encoded, self.images, self.classes, self._name = encoded, images, classes, spec.name
        mean, deviation = np.asarray(spec.mean), np.asarray(spec.deviation)
        if images.channels == 1:
            mean, deviation = mean.mean(keepdims=True), deviation.mean(keepdims=True)
        self.scale = (1 / (255 * deviation)).astype(np.float32)[:, None, None]
        self.shift = (mean / deviation).astype(np.float32)[:, None, None]

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Return the classes (count,); None for files of records, which are read one by one."""
        return np.array(self.encoded.labels, np.int64) if isinstance(self.encoded, Tree) else None

    def take(self, indices: Indices, _seed: Sequence[int]) -> Batch:
        shown = np.empty((len(indices), *self.images.shape), np.float32)
        labels = np.empty(len(indices), np.int64)
        for place, index in enumerate(map(int, indices)):
            content, labels[place] = self.encoded.read(index)
            self.check(index, int(labels[place]))
            shown[place] = self._decoded(content, index) * self.scale - self.shift
        return shown, labels

    def check(self, index: int, label: int) -> None:
        """Raise UsageError if the model does not have this picture's class."""
        if label >= self.classes:
            where = self.encoded.name(index)
            raise UsageError(f"--data {self._name}: {where} is of class {label}, the model has {self.classes}")

    def _decoded(self, content: bytes, index: int) -> NDArray[np.uint8]:
        try:
            return decode(content, self.images)
        except OSError as error:
            raise UsageError(f"{self.encoded.name(index)}: Pillow cannot read it: {error}") from None


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
