"""What the description of a set of data says: its format, what it holds, where its files are looked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from scaling.records.point import Record

Format = Literal["digits", "idx", "cifar", "folders", "tfrecord", "recordio", "acl", "text", "tokens", "made"]
# Images with a class; reviews, good or bad; one long row of tokens.
Gives = Literal["images", "reviews", "tokens"]
Split = Literal["train", "test"]
TRAIN: tuple[Split, ...] = ("train",)
# Whose samples are decoded anew for each batch, which may take longer than a step.
DECODED: tuple[Format, ...] = ("folders", "tfrecord", "recordio")
Values: TypeAlias = tuple[float, ...]


class Augment(Record, frozen=True, kw_only=True):
    """How an image may be changed: by up to so many degrees, parts of its height and width, radians of shear and
    parts of its size; and mirrored, half of them."""

    rotate: float = 0.0
    shift: float = 0.0
    shear: float = 0.0
    zoom: float = 0.0
    flip: bool = False


class DataSpec(Record, frozen=True, kw_only=True):
    """A set of data as its authors publish it; nothing here fetches any.

    `classes` and `splits` (samples by split) are the published ones, None and {} where they are the user's own.
    `files` are patterns of what must lie in a folder, by split, of which `inside` names the usual ones below
    --data-dir and `usual` those that are looked at without it. `pickles` are what the same data is called as
    Python pickles, which are refused, and `instead` what to take. Of images: `channels`, and the `mean` and
    `deviation` by channel that all are normalised with, of pixels from 0 to 1; `augment`, how
    they may be changed, None where nobody says.
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
        """Whether anybody says how its samples may be changed."""
        return self.augment is not None

    @property
    def is_read(self) -> bool:
        """Whether it lies in files of the user's."""
        return self.format not in ("digits", "made")

    @property
    def expected(self) -> str:
        """`train-images-idx3-ubyte, train-labels-idx1-ubyte, ...`."""
        return shown(name for names in self.files.values() for name in names)


def shown(patterns: Iterable[str]) -> str:
    """Patterns of files, each once, as names for people."""
    return ", ".join(dict.fromkeys(one.replace("[-.]", "-").replace("ubyte*", "ubyte") for one in patterns))
