"""The loss of what a model learns."""

from __future__ import annotations

from types import ModuleType
from typing import TypeAlias

from scaling.frameworks.mx.library import mx
from scaling.workloads.specs import Binary, MaskedTokens, Target

Value: TypeAlias = "mx.nd.NDArray | mx.sym.Symbol"


def of(target: Target) -> mx.gluon.HybridBlock:
    """A block of float32 logits and labels that gives a loss per sample: their mean is that over what counts."""
    match target:
        case Binary():
            return mx.gluon.loss.SigmoidBinaryCrossEntropyLoss()
        case MaskedTokens():
            return Masked()
        case _:
            return mx.gluon.loss.SoftmaxCrossEntropyLoss()


class Masked(mx.gluon.HybridBlock):  # type: ignore[misc]
    """Cross-entropy at the places whose label is not IGNORED, which is negative."""

    def hybrid_forward(self, F: ModuleType, logits: Value, labels: Value) -> Value:
        """(batch, length, words) and (batch, length) to (batch,)."""
        counts = labels >= 0
        losses = -F.pick(F.log_softmax(logits), F.relu(labels)) * counts
        # Of the whole batch, so that samples weigh by what they have.
        share = F.broadcast_div(F.sum(losses, axis=1), F.sum(counts))
        return F.broadcast_mul(share, F.sum(F.ones_like(F.slice_axis(labels, axis=1, begin=0, end=1))))
