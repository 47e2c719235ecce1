"""What a model is taken to have learnt: the classes that it tells, and batch norm's statistics over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from scaling.frameworks.tf import network
from scaling.records.point import Point
from scaling.workloads import models
from scaling.workloads.specs import Binary

Distribute = Callable[[Callable[..., tf.Tensor]], Callable[..., tf.Tensor]]


class Classes:
    """The class that each sample is taken for, in one graph of whole batches: a smaller one is filled up."""

    def __init__(self, model: keras.Model, point: Point, device: str, distribute: Distribute) -> None:
        self._model, self._device, self._size = model, device, point.workload.batch_size
        self._is_binary = isinstance(models.of(point.workload).target, Binary)
        self._graph = tf.function(distribute(self._told), autograph=False)

    def __call__(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        """Of images (batch, channels, height, width) or tokens (batch, length)."""
        whole = np.concatenate([inputs, np.repeat(inputs[:1], self._size - len(inputs), axis=0)])
        with tf.device(self._device):
            shown = tf.constant(whole.transpose(0, 2, 3, 1) if whole.ndim == 4 else whole)
            found: NDArray[np.int64] = self._graph(shown).numpy()[: len(inputs)]
        return found

    def _told(self, shown: tf.Tensor) -> tf.Tensor:
        logits = self._model(shown, training=False)
        return tf.cast(logits[:, 0] > 0 if self._is_binary else tf.argmax(logits, 1), tf.int64)


def average_statistics(model: keras.Model, mean: Callable[[tf.Tensor, str], tf.Tensor]) -> None:
    """Set each moving mean and variance to what `mean` makes of it, by its name."""
    for norm in network.norms(model):
        for variable in (norm.moving_mean, norm.moving_variance):
            variable.assign(mean(variable.value, variable.path))
