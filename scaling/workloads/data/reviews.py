"""The film reviews of Maas (2011) in the folder aclImdb: a text file each, and imdb.vocab.

Words are numbered by frequency from 4, as in the Keras example (keras.io/api/datasets/imdb). 0 pads in front, 1
starts a review, 2 is any word beyond the model's. Keras's own file splits words differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scaling import files
from scaling.errors import UsageError
from scaling.workloads.data.idx import check_count
from scaling.workloads.data.specs import DataSpec, Split

START, UNKNOWN, FIRST = 1, 2, 4
BREAK = re.compile(r"<br\s*/?>")
# imdb.vocab has words with apostrophes, and two punctuation marks.
WORD = re.compile(r"[\w']+|[!?]")


def read(
    place: Path, spec: DataSpec, split: Split, *, length: int, words: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ends of reviews (count, length), bad ones first, and labels (count,): 1 if good, else 0. Raises
    UsageError if one cannot be read, or if the number differs from the published one."""
    numbers = vocabulary(place / "imdb.vocab", words)
    texts, labels = [], []
    for label, folder in enumerate(("neg", "pos")):
        found = list(_reviews(place / split / folder))
        texts += found
        labels += [label] * len(found)
    check_count(place / split, len(texts), spec, split)
    reviews = np.zeros((len(texts), length), np.int64)
    for row, text in zip(reviews, texts, strict=True):
        known = encode(text, numbers)[-length:]
        row[length - len(known) :] = known
    return reviews, np.asarray(labels, np.int64)


def vocabulary(path: Path, words: int) -> dict[str, int]:
    """Return the numbers of the most frequent words, all below `words`."""
    lines = _text(path).split("\n")[: max(0, words - FIRST)]
    return {word: number for number, word in enumerate(lines, FIRST) if word}


def encode(text: str, numbers: dict[str, int]) -> list[int]:
    """Return a review as numbers, with its start."""
    found = WORD.findall(BREAK.sub(" ", text.lower()))
    return [START, *(numbers.get(word, UNKNOWN) for word in found)]


def _reviews(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.txt")):
        yield _text(path)


def _text(path: Path) -> str:
    try:
        return files.read(path).decode()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text") from None
