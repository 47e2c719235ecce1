"""Modules that torch does not have, for networks that read words."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling.workloads import sequences
from scaling.workloads.layers import Shape


class OneHot(nn.Module):
    """A vector of zeros and a one for each word."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self._words = words

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) to float (batch, length, words)."""
        return functional.one_hot(tokens, self._words).float()


class Positions(nn.Module):
    """Adds a vector for each place."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width)."""
        return x + self.weight[: x.shape[1]]


class Segments(nn.Module):
    """Adds the vector of the first kind of sentence."""

    def __init__(self, kinds: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(kinds, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width)."""
        return x + self.weight[0]


class Patches(nn.Module):
    """An image's places as a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, places, channels)."""
        return x.flatten(2).transpose(1, 2)


class ClassToken(nn.Module):
    """Puts a vector before a sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to one longer."""
        return torch.cat([self.weight.expand(len(x), 1, -1).to(x.dtype), x], 1)


class First(nn.Module):
    """The first vector of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to (batch, width)."""
        return x[:, 0]


class LastState(nn.LSTM):
    """The last states of an LSTM, the backward direction's at the first place.

    torch has two biases; the second is frozen at zero, so that parameters and gradients are as described.
    """

    def __init__(self, inputs: int, width: int, *, both_ways: bool) -> None:
        super().__init__(inputs, width, batch_first=True, bidirectional=both_ways)
        for each in self._frozen():
            each.requires_grad_(False)

    def _frozen(self) -> list[nn.Parameter]:
        return [each for name, each in self.named_parameters() if name.startswith("bias_hh")]

    def reset_frozen(self) -> None:
        """Set what is not trained to zero."""
        for each in self._frozen():
            nn.init.zeros_(each)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """(batch, length, inputs) to (batch, width), or twice the width."""
        states: Tensor = super().forward(x)[1][0]
        return states.transpose(0, 1).flatten(1)


class Gated(nn.Module):
    """down(silu(gate(x)) x up(x))."""

    def __init__(self, width: int, inside: int) -> None:
        super().__init__()
        self.gate_weight = nn.Parameter(torch.empty(inside, width))
        self.up_weight = nn.Parameter(torch.empty(inside, width))
        self.down_weight = nn.Parameter(torch.empty(width, inside))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width)."""
        gate = functional.silu(functional.linear(x, self.gate_weight))
        return functional.linear(gate * functional.linear(x, self.up_weight), self.down_weight)


class TiedLogits(nn.Module):
    """Products with the vectors of an embedding, whose parameter this shares."""

    def __init__(self, words: nn.Embedding, *, bias: bool) -> None:
        super().__init__()
        # In a tuple it is no child.
        self._words = (words,)
        self.tie()
        self.bias = nn.Parameter(torch.empty(words.num_embeddings)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to (batch, length, words)."""
        return functional.linear(x, self.weight, self.bias)

    def tie(self) -> None:
        """Share the parameter again: `to_empty` makes each module one of its own."""
        self.weight = self._words[0].weight


class Attention(nn.Module):
    """Scaled dot-product attention, its parameters named and ordered as described."""

    def __init__(self, layer: sequences.Attention, shape: Shape) -> None:
        super().__init__()
        self._layer, self._size = layer, shape[1] // layer.heads
        self._widths = layer.widths(shape[1])
        for each in layer.parameters(shape):
            self.register_parameter(each.name, nn.Parameter(torch.empty(each.shape)))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width)."""
        layer = self._layer
        queries, keys, values = map(self._by_head, self._projected(x))
        if layer.rotary:
            angles = _angles(x.shape[1], self._size, layer.rotary, x.device)
            queries, keys = _turned(queries, *angles), _turned(keys, *angles)
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values,
            dropout_p=layer.dropout if self.training else 0.0,
            is_causal=layer.causal,
            enable_gqa=layer.key_heads != layer.heads,
        )  # fmt: skip
        return self._linear("output", mixed.transpose(1, 2).flatten(2))

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        if self._layer.fused:
            width, keys = self._widths
            queries, keys_, values = torch.split(self._linear("qkv", x), [width, keys, keys], -1)
            return queries, keys_, values
        return tuple(self._linear(name, x) for name in ("query", "key", "value"))

    def _linear(self, name: str, x: Tensor) -> Tensor:
        weight = self._parameters[f"{name}_weight"]
        assert weight is not None
        return functional.linear(x, weight, self._parameters.get(f"{name}_bias"))

    def _by_head(self, x: Tensor) -> Tensor:
        """(batch, length, heads x size) to (batch, heads, length, size)."""
        return x.view(*x.shape[:2], -1, self._size).transpose(1, 2)


def _angles(length: int, size: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each place's angles (length, size / 2), in float32 (Su 2021, section 3.2.2)."""
    powers = torch.arange(0, size, 2, device=device, dtype=torch.float32) / size
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), base**-powers)
    return angles.cos(), angles.sin()


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Each value of a head's first half turned with its fellow of the second: in Hugging Face's order."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1).to(x.dtype)
