"""Texts: long rows of tokens (files of 16-bit numbers, the bytes of a text, or its characters), and film reviews.

A `.bin` of nanoGPT has only little-endian uint16. One of llm.c (its write_datafile) begins with a header of 256
32-bit numbers: a magic number, a version, the count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scaling import files
from scaling.errors import UsageError
from scaling.workloads.data import DataSpec, Split, reading, text_of
from scaling.workloads.data.images import check_count

Numbers = NDArray[Any]
HEADER_BYTES = 1024
# Magic number and version of llm.c's headers, with the type of the numbers after them.
HEADERS = {(20240520, 1): np.uint16, (20240801, 7): np.uint32}
MAGICS = {magic for magic, _ in HEADERS}
# One tenth of a text in one piece is held out, as in nanoGPT.
HELD_OUT = 10
BYTES = 256


class Joined:
    """Consecutive rows as one. Only the requested parts of their files are read."""

    def __init__(self, rows: Sequence[Numbers]) -> None:
        self._rows, self._ends = rows, np.cumsum([len(row) for row in rows])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, places: slice | NDArray[np.int64]) -> Numbers:
        """Return the tokens at these places: a slice without step, or an array of any shape."""
        begins = self._ends - [len(row) for row in self._rows]
        if isinstance(places, slice):
            first, last, _ = places.indices(len(self))
            spans = (
                np.clip((first, last), begin, end) - begin for begin, end in zip(begins, self._ends, strict=True)
            )
            return np.concatenate([row[slice(*span)] for row, span in zip(self._rows, spans, strict=True)])
        found = np.empty(places.shape, np.int64)
        which = np.searchsorted(self._ends, places, side="right")
        for number in np.unique(which):
            found[which == number] = self._rows[number][places[which == number] - begins[number]]
        return found


Row: TypeAlias = Numbers | Joined


def read_tokens(place: Path, spec: DataSpec, split: Split) -> tuple[Row, int]:
    """Return the tokens of a split, and the number of kinds; 0 for a `.bin`, which does not say. Only requested
    parts of a `.bin` are read. Raises UsageError for a file of another format."""
    if spec.format == "text":
        return _characters(place / spec.files["train"][0] if place.is_dir() else place, split)
    if place.is_file() and place.suffix != ".bin":
        with reading(place):
            return _part(np.frombuffer(files.read(place), np.uint8), split), BYTES
    if place.is_file():
        return _part(_binary(place), split), 0
    pattern = spec.files[split][0]
    rows = [_binary(path) for path in sorted(place.glob(pattern))]
    if not rows:
        raise UsageError(f"{place}: no {pattern}")
    return rows[0] if len(rows) == 1 else Joined(rows), 0


def _characters(path: Path, split: Split) -> tuple[Numbers, int]:
    """Return a text in lower case as numbers of its sorted characters, as in the Keras example."""
    points = np.frombuffer(text_of(path).lower().encode("utf-32-le"), np.uint32)
    kinds, numbers = np.unique(points, return_inverse=True)
    return _part(numbers.astype(np.int64), split), len(kinds)


def _part(row: Numbers, split: Split) -> Numbers:
    cut = len(row) - len(row) // HELD_OUT
    return row[:cut] if split == "train" else row[cut:]


def _binary(path: Path) -> Numbers:
    with reading(path):
        size = path.stat().st_size
        head = np.fromfile(path, "<i4", count=3)
    if size == 0 or size % 2:
        raise UsageError(f"{path}: {size:,} bytes, expected 16-bit numbers (.bin of nanoGPT or llm.c)")
    if len(head) < 3 or head[0] not in MAGICS:
        return np.memmap(path, "<u2", "r")
    magic, version, count = map(int, head)
    kind = HEADERS.get((magic, version))
    if kind is None:
        raise UsageError(f"{path}: version {version} of magic {magic}, expected one of llm.c's: {sorted(HEADERS)}")
    expected = HEADER_BYTES + count * np.dtype(kind).itemsize
    if count < 0 or size != expected:
        raise UsageError(f"{path}: {size:,} bytes, expected {expected:,} for the {count:,} tokens of its header")
    return np.memmap(path, kind, "r", offset=HEADER_BYTES)


# ---------------------------------------------------------------- reviews
#
# The film reviews of Maas (2011) in the folder aclImdb: a text file each, and imdb.vocab.
#
# Words are numbered by frequency from 4, as in the Keras example (keras.io/api/datasets/imdb). 0 pads in front, 1
# starts a review, 2 is any word beyond the model's. Keras's own file splits words differently.


START, UNKNOWN, FIRST = 1, 2, 4
BREAK = re.compile(r"<br\s*/?>")
# imdb.vocab has words with apostrophes, and two punctuation marks.
WORD = re.compile(r"[\w']+|[!?]")


def read_reviews(
    place: Path, spec: DataSpec, split: Split, *, length: int, words: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ends of reviews (count, length), bad ones first, and labels (count,): 1 if good, else 0. Raises
    UsageError if one cannot be read, or if the number differs from the published one."""
    numbers = vocabulary(place / "imdb.vocab", words)
    texts: list[str] = []
    labels: list[int] = []
    for label, folder in enumerate(("neg", "pos")):
        texts += map(text_of, sorted((place / split / folder).glob("*.txt")))
        labels += [label] * (len(texts) - len(labels))
    check_count(place / split, len(texts), spec, split)
    reviews = np.zeros((len(texts), length), np.int64)
    for row, text in zip(reviews, texts, strict=True):
        found = WORD.findall(BREAK.sub(" ", text.lower()))
        known = [START, *(numbers.get(word, UNKNOWN) for word in found)][-length:]
        row[length - len(known) :] = known
    return reviews, np.asarray(labels, np.int64)


def vocabulary(path: Path, words: int) -> dict[str, int]:
    """Return the numbers of the most frequent words, all below `words`."""
    lines = text_of(path).split("\n")[: max(0, words - FIRST)]
    return {word: number for number, word in enumerate(lines, FIRST) if word}
