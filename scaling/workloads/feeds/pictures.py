"""Pictures in files, decoded with Pillow as batches need them: a plain pipeline, the same in every framework."""

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
from scaling.workloads.feeds.batches import Batch
from scaling.workloads.feeds.sampler import Indices
from scaling.workloads.specs import Images


class Encoded(Protocol):
    """Pictures as files hold them: those at `paths`."""

    @property
    def paths(self) -> Sequence[str]:
        """The files."""

    def __len__(self) -> int:
        """How many there are."""

    def name(self, index: int) -> str:
        """Where one stands, for people."""

    def read(self, index: int) -> tuple[bytes, int]:
        """One of them, and its class."""


class Pictures:
    """Samples of encoded pictures of at most so many classes. Pixels from 0 to 255 are multiplied by `scale`, and
    `shift` is taken away: float32 (channels, 1, 1). Raises UsageError without Pillow."""

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
        """The class of each (count,); None where files of records have them, which are read one by one."""
        return np.array(self.encoded.labels, np.int64) if isinstance(self.encoded, Tree) else None

    def take(self, indices: Indices, _seed: Sequence[int]) -> Batch:
        """Images (batch, channels, height, width) and labels (batch,)."""
        shown = np.empty((len(indices), *self.images.shape), np.float32)
        labels = np.empty(len(indices), np.int64)
        for place, index in enumerate(map(int, indices)):
            content, labels[place] = self.encoded.read(index)
            self.check(index, int(labels[place]))
            shown[place] = self._decoded(content, index) * self.scale - self.shift
        return shown, labels

    def check(self, index: int, label: int) -> None:
        """Raises UsageError where a picture is of a class that the model does not have."""
        if label >= self.classes:
            where = self.encoded.name(index)
            raise UsageError(f"--data {self._name}: {where} is of class {label}, the model has {self.classes}")

    def _decoded(self, content: bytes, index: int) -> NDArray[np.uint8]:
        try:
            return decode(content, self.images)
        except OSError as error:
            raise UsageError(f"{self.encoded.name(index)}: Pillow cannot read it: {error}") from None


def decode(content: bytes, images: Images) -> NDArray[np.uint8]:
    """A picture in the model's size (channels, height, width): its middle in the model's proportions, resized
    linearly. Raises OSError where it is none."""
    from PIL import Image, ImageOps

    size = (images.width, images.height)
    mode = "RGB" if images.channels == 3 else "L"
    with damages(), Image.open(io.BytesIO(content)) as opened:
        # A JPEG is decoded at a half, quarter or eighth of its size where that is still large enough.
        opened.draft(mode, size)
        fitted = ImageOps.fit(opened.convert(mode), size, Image.Resampling.BILINEAR)
    pixels = np.asarray(fitted)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


@contextmanager
def damages() -> Iterator[None]:
    """Has whatever Pillow says of a picture that it cannot decode said as an OSError; its readers of formats raise
    many others, and its own says where in memory the bytes were."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ImportError | MemoryError):
            raise
        raise OSError(one_line(str(error)).partition(" <_io")[0] or type(error).__name__) from None
