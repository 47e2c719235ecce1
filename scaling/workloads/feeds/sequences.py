"""Sequences of tokens for models of language, characters or reviews."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.errors import UsageError
from scaling.workloads.data.texts import Row
from scaling.workloads.feeds.batches import Batch, Indices
from scaling.workloads.specs import IGNORED, Tokens

Numbers = NDArray[np.int64]
# Of the positions to learn, the fractions shown as a mask and as a random word (Devlin 2018, 3.1).
MASKED, REPLACED = 0.8, 0.1
# [MASK] in BERT's vocabulary of 30,522 words. Otherwise 0, a byte that no text has.
MASKS = {30_522: 103}
# The distance of windows in the Keras example for characters.
STRIDE = 3
# Tokens of a long row that are checked before a run.
LOOKED_AT = 1 << 26


def check_kinds(kinds: int, name: str, tokens: Tokens) -> None:
    """Refuse a text with more kinds of tokens than the model has words. Raises UsageError."""
    if kinds > tokens.words:
        raise UsageError(f"--data {name}: has {kinds} kinds of tokens, the model has {tokens.words} words")


class Labelled:
    """Sequences (count, length) with one label each."""

    def __init__(self, sequences: Numbers, labels: Numbers) -> None:
        self._sequences, self._labels = sequences, labels

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def labels(self) -> Numbers:
        return self._labels

    def take(self, indices: Indices, _seed: Sequence[int]) -> Batch:
        return self._sequences[indices], self._labels[indices]


class Windows:
    """Windows of a long row of tokens, `stride` apart. A subclass makes the labels. Raises UsageError if the row
    is too short for one window, or has tokens beyond the model's words."""

    def __init__(self, row: Row, tokens: Tokens, *, stride: int | None = None) -> None:
        self._row, self._words, self._length = row, tokens.words, tokens.length
        self._stride = stride or tokens.length
        self._count = 1 + (len(row) - tokens.length - 1) // self._stride
        if self._count < 1:
            raise UsageError(f"--data-dir: {len(row):,} tokens, at least {tokens.length + 1:,} are needed")
        self._check(np.asarray(row[:LOOKED_AT]))

    def __len__(self) -> int:
        return self._count

    def _check(self, tokens: NDArray[Any]) -> None:
        if (most := int(tokens.max())) >= self._words:
            raise UsageError(f"--data-dir: has token {most}, the model has {self._words} words, numbered from 0")

    def _pieces(self, indices: Indices) -> Numbers:
        starts = indices[:, None] * self._stride
        pieces = self._row[starts + np.arange(self._length + 1)].astype(np.int64)
        self._check(pieces)
        return pieces


class NextTokens(Windows):
    """Windows whose labels are the next token at each position."""

    def take(self, indices: Indices, _seed: Sequence[int]) -> Batch:
        pieces = self._pieces(indices)
        return pieces[:, :-1], pieces[:, 1:]


class NextToken(Windows):
    """Windows whose label is the one token that follows."""

    def take(self, indices: Indices, _seed: Sequence[int]) -> Batch:
        pieces = self._pieces(indices)
        return pieces[:, :-1], pieces[:, -1]


class Masked(Windows):
    """Windows with a `share` of the tokens hidden, drawn anew for every step. The labels are the hidden tokens."""

    def __init__(self, row: Row, tokens: Tokens, share: float) -> None:
        super().__init__(row, tokens)
        self._share = share

    def take(self, indices: Indices, seed: Sequence[int]) -> Batch:
        return hide(self._pieces(indices)[:, :-1], self._words, self._share, np.random.default_rng(tuple(seed)))


def hide(tokens: Numbers, words: int, share: float, random: np.random.Generator) -> Batch:
    """Hide some tokens. These are the labels; other positions have the label IGNORED. Each sequence has equally
    many, at least one, as in google-research/bert: micro-batches weigh the same in a mean."""
    count = max(1, round(share * tokens.shape[-1]))
    chosen = random.random(tokens.shape).argsort(axis=-1).argsort(axis=-1) < count
    way = random.random(tokens.shape)
    labels = np.where(chosen, tokens, IGNORED)
    others = random.integers(words, size=tokens.shape, dtype=np.int64)
    shown = np.where(chosen & (way < MASKED), MASKS.get(words, 0), tokens)
    return np.where(chosen & (way >= 1 - REPLACED), others, shown), labels
