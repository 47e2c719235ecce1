"""The loss of what a model learns."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from scaling.workloads.specs import IGNORED, Binary, MaskedTokens, NextToken, Target

Loss = Callable[[Tensor, Tensor], Tensor]


def of(target: Target) -> Loss:
    """A function of logits and labels that gives their mean loss, over what counts."""
    match target:
        case Binary():
            return _binary
        case NextToken() | MaskedTokens():
            return _tokens
        case _:
            return functional.cross_entropy


def _binary(logits: Tensor, labels: Tensor) -> Tensor:
    """Of one logit per sample; labels are 0 or 1."""
    return functional.binary_cross_entropy_with_logits(logits[:, 0].float(), labels.float())


def _tokens(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits (batch, length, words), labels (batch, length)."""
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
