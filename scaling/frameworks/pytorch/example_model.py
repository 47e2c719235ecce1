"""A model of a user's file: an encoder of short sequences.

scaling run --model scaling/frameworks/pytorch/example_model.py:Encoder --strategy torch:gloo
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH, LENGTH, WORDS = 64, 32, 1000


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=128, batch_first=True)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.layer(self.words(tokens)))
        return logits


def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return inputs and targets: (size, LENGTH) each."""
    tokens = torch.randint(WORDS, (size, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
