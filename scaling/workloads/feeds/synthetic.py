"""Random images and tokens, as in throughput benchmarks: without disk and decoding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scaling.workloads.feeds.batches import Batch
from scaling.workloads.feeds.sequences import hide
from scaling.workloads.specs import Binary, Classes, Images, MaskedTokens, ModelSpec, Tokens


def batch(spec: ModelSpec, *, batch_size: int, seed: int, rank: int) -> Batch:
    """Return standard normal pixels or random tokens, with random labels, different for each seed and rank."""
    make = _images if isinstance(spec.input, Images) else _tokens
    return make(spec, batch_size, np.random.default_rng((seed, rank)))


def _images(spec: ModelSpec, batch_size: int, random: np.random.Generator) -> Batch:
    images = random.standard_normal((batch_size, *spec.input.shape), dtype=np.float32)
    return images, _classes(spec, batch_size, random)


def _tokens(spec: ModelSpec, batch_size: int, random: np.random.Generator) -> Batch:
    shape = (batch_size, spec.input.size)
    tokens = random.integers(_words(spec), size=shape, dtype=np.int64)
    if isinstance(spec.target, MaskedTokens):
        return hide(tokens, _words(spec), spec.target.share, random)
    if isinstance(spec.target, Classes | Binary):
        return tokens, _classes(spec, batch_size, random)
    return tokens, random.integers(_words(spec), size=shape, dtype=np.int64)


def _classes(spec: ModelSpec, batch_size: int, random: np.random.Generator) -> NDArray[np.int64]:
    count = spec.target.count if isinstance(spec.target, Classes) else 2
    return random.integers(count, size=batch_size, dtype=np.int64)


def _words(spec: ModelSpec) -> int:
    assert isinstance(spec.input, Tokens)
    return spec.input.words
