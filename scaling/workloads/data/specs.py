"""A set of data: its format, its content, where its files are searched, and how they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

from scaling import files
from scaling.errors import UsageError
from scaling.records.point import Record

Format = Literal["digits", "idx", "cifar", "folders", "tfrecord", "recordio", "acl", "text", "tokens", "made"]
# Images with a class; reviews, good or bad; one long row of tokens.
Gives = Literal["images", "reviews", "tokens"]
Split = Literal["train", "test"]
TRAIN: tuple[Split, ...] = ("train",)
# Samples of these formats are decoded for each batch, which may take longer than a step.
DECODED: tuple[Format, ...] = ("folders", "tfrecord", "recordio")
Values: TypeAlias = tuple[float, ...]


class Augment(Record, frozen=True, kw_only=True):
    """The most that an image may be changed.

    * rotate: degrees
    * shift: fraction of height and width
    * shear: radians
    * zoom: fraction of the size
    * flip: mirror half of the images
    """

    rotate: float = 0.0
    shift: float = 0.0
    shear: float = 0.0
    zoom: float = 0.0
    flip: bool = False


class DataSpec(Record, frozen=True, kw_only=True):
    """A set of data as its authors publish it. Nothing here downloads data.

    * classes, splits: the published number of classes and of samples by split; None and {} for the user's own
      data.
    * files: by split, patterns of what a folder must contain.
    * inside: usual folders below --data-dir; usual: folders that are searched without --data-dir.
    * pickles: names of the same data as Python pickles, which are refused; instead: what to use for these.
    * channels, mean, deviation: of images; mean and deviation normalise each channel, for pixels from 0 to 1.
    * augment: how images may be changed; None if unknown.
    """

    name: str
    format: Format
    gives: Gives
    text: str
    classes: int | None = None
    splits: dict[Split, int] = {}
    files: dict[Split, tuple[str, ...]] = {}
    inside: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    pickles: tuple[str, ...] = ()
    instead: str = ""
    channels: int = 3
    mean: Values = (0.485, 0.456, 0.406)
    deviation: Values = (0.229, 0.224, 0.225)
    augment: Augment | None = None
    licence: str = ""
    source: str = ""

    @property
    def augments(self) -> bool:
        return self.augment is not None

    @property
    def is_read(self) -> bool:
        return self.format not in ("digits", "made")

    @property
    def expected(self) -> str:
        """Return `train-images-idx3-ubyte, train-labels-idx1-ubyte, ...`."""
        return shown(name for names in self.files.values() for name in names)


def shown(patterns: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(one.replace("[-.]", "-").replace("ubyte*", "ubyte") for one in patterns))


# ---------------------------------------------------------------- reading


@contextmanager
def reading(path: object) -> Iterator[None]:
    """Raise a UsageError with this path for an OSError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def text_of(path: Path) -> str:
    """Return a text file. Raises UsageError if it cannot be read or is not UTF-8."""
    with reading(path):
        content = files.read(path)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text") from None
