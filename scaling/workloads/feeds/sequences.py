"""Sequences of tokens for models of language, characters or reviews, and synthetic batches of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.errors import UsageError
from scaling.workloads.data.texts import Row
from scaling.workloads.feeds.batches import Batch, Indices, Inputs
from scaling.workloads.specs import (
    IGNORED,
    Binary,
    Classes,
    Images,
    MaskedTokens,
    ModelSpec,
    NextToken,
    Target,
    Tokens,
)

Numbers = NDArray[np.int64]
# Of the positions to learn, the fractions shown as a mask and as a random word (Devlin 2018, 3.1).
MASKED, REPLACED = 0.8, 0.1
# [MASK] in BERT's vocabulary of 30,522 words. Otherwise 0, a byte that no text has.
MASKS = {30_522: 103}
# The distance of windows in the Keras example for characters.
STRIDE = 3
# Tokens of a long row that are checked before a run.
LOOKED_AT = 1 << 26


class Labelled:
    """Sequences (count, length) with one label each."""

    def __init__(self, sequences: Numbers, labels: Numbers) -> None:
        self._sequences, self.labels = sequences, labels

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices, _seed: Sequence[int]) -> Batch:
        return self._sequences[indices], self.labels[indices]


class Windows:
    """Windows of a long row of tokens, as a model of `target` learns them. Raises UsageError if the row is too
    short for one window, or has tokens beyond the model's words.

    * NextToken: the labels are the next token at each position
    * Classes: the label is the one token that follows
    * MaskedTokens: the labels are the hidden tokens, drawn anew for every step
    """

    def __init__(self, row: Row, tokens: Tokens, target: Target) -> None:
        self._row, self._words, self._length, self._target = row, tokens.words, tokens.length, target
        self._stride = STRIDE if isinstance(target, Classes) else tokens.length
        self._count = 1 + (len(row) - tokens.length - 1) // self._stride
        if self._count < 1:
            raise UsageError(f"--data-dir: {len(row):,} tokens, at least {tokens.length + 1:,} are needed")
        self._check(np.asarray(row[:LOOKED_AT]))

    def __len__(self) -> int:
        return self._count

    def _check(self, tokens: NDArray[Any]) -> None:
        if (most := int(tokens.max())) >= self._words:
            raise UsageError(f"--data-dir: has token {most}, the model has {self._words} words, numbered from 0")

    def take(self, indices: Indices, seed: Sequence[int]) -> Batch:
        starts = indices[:, None] * self._stride
        pieces = self._row[starts + np.arange(self._length + 1)].astype(np.int64)
        self._check(pieces)
        tokens = pieces[:, :-1]
        if isinstance(self._target, MaskedTokens):
            return hide(tokens, self._words, self._target.share, np.random.default_rng(tuple(seed)))
        return tokens, pieces[:, -1] if isinstance(self._target, Classes) else pieces[:, 1:]


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


# ---------------------------------------------------------------- synthetic
#
# Random images and tokens, as in throughput benchmarks: without disk and decoding.


def synthetic(spec: ModelSpec, *, batch_size: int, seed: int, rank: int) -> Batch:
    """Return standard normal pixels or random tokens, with random labels, different for each seed and rank."""
    random = np.random.default_rng((seed, rank))
    shape = (batch_size, *spec.input.shape)
    if isinstance(spec.input, Images):
        inputs: Inputs = random.standard_normal(shape, dtype=np.float32)
    else:
        inputs = tokens = random.integers(spec.input.words, size=shape, dtype=np.int64)
        if isinstance(spec.target, MaskedTokens):
            return hide(tokens, spec.input.words, spec.target.share, random)
    kinds = 2 if isinstance(spec.target, Binary) else spec.outputs
    return inputs, random.integers(
        kinds, size=shape if isinstance(spec.target, NextToken) else batch_size, dtype=np.int64
    )
