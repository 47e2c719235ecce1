"""The samples and batches of a feed: shuffled, held, a part of a split, of tokens, or synthetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scaling.errors import UsageError
from scaling.workloads.data.texts import Row
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

# ---------------------------------------------------------------- sampler
#
# The samples of a rank's batches: a pure function of seed, rank, world size and step.


Indices = NDArray[np.int64]


class Sampler:
    """An endless stream of one rank's shard of `count` samples, in a new order each epoch, in full batches. Shards
    (`shard`: indices) are disjoint and cover all samples, if there are no more ranks than samples."""

    def __init__(self, count: int, *, batch_size: int, seed: int, rank: int, world_size: int) -> None:
        everything = np.random.default_rng(seed).permutation(count)
        self.shard = everything[rank % count :: world_size]
        self._batch_size = batch_size
        self._order = lru_cache(maxsize=2)(
            lambda epoch: np.random.default_rng((seed, rank, epoch)).permutation(self.shard)
        )

    def __len__(self) -> int:
        return len(self.shard)

    def indices(self, step: int) -> Indices:
        positions = step * self._batch_size + np.arange(self._batch_size)
        epochs, offsets = np.divmod(positions, len(self.shard))
        return np.concatenate(
            [self._order(epoch)[offsets[epochs == epoch]] for epoch in range(epochs[0], epochs[-1] + 1)]
        )


def once(count: int, *, batch_size: int, rank: int, world_size: int) -> Iterator[Indices]:
    """Yield batches of one rank's shard of `count` samples, each once, in order. The last may be smaller."""
    shard = np.arange(rank, count, world_size)
    for first in range(0, len(shard), batch_size):
        yield shard[first : first + batch_size]


# Float images (batch, channels, height, width) or tokens (batch, length), and one label per sample or place.
Inputs: TypeAlias = NDArray[np.float32] | NDArray[np.int64]
Batch: TypeAlias = tuple[Inputs, NDArray[np.int64]]


class Samples(Protocol):
    """All samples of a split."""

    def __len__(self) -> int:
        """Return how many there are."""

    def take(self, indices: Indices, seed: Sequence[int]) -> Batch:
        """Return the samples at these indices, and their labels. The seed is for random choices."""


class Shuffled:
    """The feed of one rank: its shard of the samples, in a new order each epoch."""

    fixed = False

    def __init__(self, samples: Samples, *, batch_size: int, seed: int, rank: int, world_size: int) -> None:
        self._samples = samples
        self._sampler = Sampler(len(samples), batch_size=batch_size, seed=seed, rank=rank, world_size=world_size)
        self._seed = (seed, rank)

    def indices(self, step: int) -> Indices:
        return self._sampler.indices(step)

    def batch(self, step: int) -> Batch:
        return self._samples.take(self.indices(step), (*self._seed, step))


class Fixed:
    """One batch in every step, so that no step waits for a batch."""

    fixed = True

    def __init__(self, batch: tuple[Any, Any]) -> None:
        self._batch = batch

    def batch(self, _step: int) -> tuple[Any, Any]:
        return self._batch


# ---------------------------------------------------------------- parts


# Fixed: all seeds of a training share the part, as they share the held-out data.
DRAWN_BY = 0


class Part:
    """A fixed part of the samples, in their order."""

    def __init__(self, samples: Samples, count: int) -> None:
        labels = getattr(samples, "labels", None)  # their classes (count,), if known without reading them
        self._samples, self._chosen = samples, chosen(len(samples), count, labels)

    def __len__(self) -> int:
        return len(self._chosen)

    def take(self, indices: Indices, seed: Sequence[int]) -> Batch:
        return self._samples.take(self._chosen[indices], seed)


def chosen(samples: int, count: int, labels: NDArray[np.int64] | None) -> Indices:
    """Choose `count` samples at random and return their indices, ascending. A larger choice contains a smaller
    one. With known `labels` (samples,) classes take turns: counts differ by at most one until a class is used up.
    """
    drawn = np.random.default_rng(DRAWN_BY).permutation(samples)
    if labels is not None:
        order = np.argsort(labels[drawn], kind="stable")
        sizes = np.bincount(labels[drawn])
        turn = np.empty(samples, np.int64)
        turn[order] = np.concatenate([np.arange(size) for size in sizes])
        drawn = drawn[np.argsort(turn, kind="stable")]
    return np.sort(drawn[:count])


# ---------------------------------------------------------------- sequences
#
# Tokens for models of language, characters or reviews.

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
