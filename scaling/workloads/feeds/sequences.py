"""Sequences of tokens as a language model, a model of characters or of reviews learns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.errors import UsageError
from scaling.workloads.data.tokens import Row
from scaling.workloads.feeds.batches import Batch
from scaling.workloads.feeds.sampler import Indices
from scaling.workloads.specs import IGNORED, Tokens

Numbers = NDArray[np.int64]
# Of the places that are to be learnt: shown as a mask, or as any word; the others as they are (Devlin 2018, 3.1).
MASKED, REPLACED = 0.8, 0.1
# [MASK] of BERT's vocabulary of 30,522 words; for others 0, which no text has as a byte.
MASKS = {30_522: 103}
# How far the windows of the Keras example for characters lie apart.
STRIDE = 3
# Of a long row: how many are looked at before a run.
LOOKED_AT = 1 << 26


def check_kinds(kinds: int, name: str, tokens: Tokens) -> None:
    """Refuse a text of more kinds of tokens than the model has words for; raises UsageError."""
    if kinds > tokens.words:
        raise UsageError(f"--data {name}: has {kinds} kinds of tokens, the model has {tokens.words} words")


class Labelled:
    """Sequences (count, length) that have one label each."""

    def __init__(self, sequences: Numbers, labels: Numbers) -> None:
        self._sequences, self._labels = sequences, labels

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def labels(self) -> Numbers:
        """The class of each (count,)."""
        return self._labels

    def take(self, indices: Indices, _seed: Sequence[int]) -> Batch:
        """Sequences (batch, length) and labels (batch,)."""
        return self._sequences[indices], self._labels[indices]


class Windows:
    """Pieces of a long row of tokens, `stride` apart; what each model learns of them, its own class says.

    Raises UsageError where the row is too short for one, or has tokens that the model has no words for.
    """

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
        """(batch, length + 1)."""
        starts = indices[:, None] * self._stride
        pieces = self._row[starts + np.arange(self._length + 1)].astype(np.int64)
        self._check(pieces)
        return pieces


class NextTokens(Windows):
    """At each place the token that follows."""

    def take(self, indices: Indices, _seed: Sequence[int]) -> Batch:
        """Tokens and labels, both (batch, length)."""
        pieces = self._pieces(indices)
        return pieces[:, :-1], pieces[:, 1:]


class NextToken(Windows):
    """The one token that follows the window."""

    def take(self, indices: Indices, _seed: Sequence[int]) -> Batch:
        """Tokens (batch, length) and labels (batch,)."""
        pieces = self._pieces(indices)
        return pieces[:, :-1], pieces[:, -1]


class Masked(Windows):
    """The tokens that were hidden, a `share` of all, drawn anew for every step."""

    def __init__(self, row: Row, tokens: Tokens, share: float) -> None:
        super().__init__(row, tokens)
        self._share = share

    def take(self, indices: Indices, seed: Sequence[int]) -> Batch:
        """Tokens and labels, both (batch, length)."""
        return hide(self._pieces(indices)[:, :-1], self._words, self._share, np.random.default_rng(tuple(seed)))


def hide(tokens: Numbers, words: int, share: float, random: np.random.Generator) -> Batch:
    """The tokens with some of them hidden, and these as labels; all others have the label IGNORED.

    As many of each sequence, at least one, as google-research/bert prepares its data: the mean over a batch is
    then that over its micro-batches, and over ranks, and none of them is of nothing.
    """
    count = max(1, round(share * tokens.shape[-1]))
    chosen = random.random(tokens.shape).argsort(axis=-1).argsort(axis=-1) < count
    way = random.random(tokens.shape)
    labels = np.where(chosen, tokens, IGNORED)
    others = random.integers(words, size=tokens.shape, dtype=np.int64)
    shown = np.where(chosen & (way < MASKED), MASKS.get(words, 0), tokens)
    return np.where(chosen & (way >= 1 - REPLACED), others, shown), labels
