"""The loss of what a model learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from scaling.workloads.specs import Binary, MaskedTokens, Target

Loss: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def of(target: Target) -> Loss:
    """A function of float32 logits and labels that gives their mean loss, over what counts."""
    match target:
        case Binary():
            return _binary
        case MaskedTokens():
            return _masked
        case _:
            return _classes


def _classes(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Of one of the classes, or of one at each place."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def _binary(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Of one logit per sample; labels are 0 or 1."""
    wanted = tf.cast(labels, tf.float32)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(wanted, logits[:, 0]))


def _masked(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """At the places whose label is not IGNORED, which is negative."""
    counts = tf.cast(labels >= 0, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
    return tf.reduce_sum(losses * counts) / tf.reduce_sum(counts)
