"""Networks that read words or patches: LSTMs and transformers."""

from __future__ import annotations

from scaling.workloads.layers import Activation, Chain, Conv, Dense, Dropout, Layer, Residual
from scaling.workloads.networks.common import Layers
from scaling.workloads.sequences import (
    LSTM,
    Attention,
    ClassToken,
    Embedding,
    First,
    Gated,
    LayerNorm,
    OneHot,
    Patches,
    Positions,
    RMSNorm,
    Segments,
    TiedLogits,
)


def imdb_lstm(_length: int, words: int) -> Layers:
    """Return an LSTM to one number, whose sign says whether a review is good."""
    return (
        Embedding(words, 128, "uniform-0.05"),
        LSTM(64, both_ways=True),
        Dropout(0.5),
        Dense(1, start="glorot"),
    )


def nietzsche_lstm(_length: int, words: int) -> Layers:
    return OneHot(words), LSTM(128), Dense(words, start="glorot")


def _feed_forward(width: int, inside: int, kind: Activation, dropout: float) -> Layers:
    return _linear(inside), kind, _linear(width), *_dropped(dropout)


def _linear(width: int, *, bias: bool = True) -> Layer:
    return Dense(width, bias=bias, start="normal-0.02")


def _dropped(rate: float) -> Layers:
    return (Dropout(rate),) if rate else ()


def vit(size: int, classes: int, *, patch: int, width: int, depth: int, heads: int) -> Layers:
    """Return ViT (Dosovitskiy 2020): normalisation before each part of a block, no dropout."""
    norm = LayerNorm(1e-6)
    block = Chain((
        Residual((norm, Attention(heads, fused=True))),
        Residual((norm, *_feed_forward(width, 4 * width, Activation("gelu"), 0.0))),
    ))  # fmt: skip
    places = (size // patch) ** 2 + 1
    return (
        Conv(width, patch, patch, whole=True), Patches(), ClassToken(), Positions(places),
        *([block] * depth), norm, First(), _linear(classes),
    )  # fmt: skip


def bert(_length: int, words: int, *, width: int, depth: int, heads: int, places: int = 512) -> Layers:
    """Return BERT (Devlin 2018) for masked words only: normalisation after each part of a block."""
    norm, gelu = LayerNorm(1e-12), Activation("gelu")
    block = Chain((
        Residual((Attention(heads, dropout=0.1), Dropout(0.1))), norm,
        Residual(_feed_forward(width, 4 * width, gelu, 0.1)), norm,
    ))  # fmt: skip
    return (
        Embedding(words, width), Positions(places), Segments(2), norm, Dropout(0.1), *([block] * depth),
        _linear(width), gelu, norm, TiedLogits(words, bias=True),
    )  # fmt: skip


def gpt2(_length: int, words: int, *, width: int, depth: int, heads: int, places: int = 1024) -> Layers:
    """Return GPT-2 (Radford 2019): normalisation before each part of a block, GELU by its approximation."""
    norm = LayerNorm()
    attention = Attention(heads, causal=True, fused=True, dropout=0.1)
    block = Chain((
        Residual((norm, attention, Dropout(0.1))),
        Residual((norm, *_feed_forward(width, 4 * width, Activation("gelu-tanh"), 0.1))),
    ))  # fmt: skip
    return (
        Embedding(words, width), Positions(places), Dropout(0.1), *([block] * depth), norm, TiedLogits(words),
    )  # fmt: skip


def llama(
    _length: int,
    words: int,
    *,
    width: int,
    inside: int,
    depth: int,
    heads: int,
    groups: int,
    rotary: float = 1e4,
    tied: bool = False,
) -> Layers:
    """Return Llama (Touvron 2023): RMS normalisation, rotary positions, gated feed-forward, no biases."""
    norm = RMSNorm()
    attention = Attention(heads, groups, causal=True, rotary=rotary, bias=False)
    block = Chain((Residual((norm, attention)), Residual((norm, Gated(inside)))))
    logits = TiedLogits(words) if tied else _linear(words, bias=False)
    return Embedding(words, width), *([block] * depth), norm, logits
