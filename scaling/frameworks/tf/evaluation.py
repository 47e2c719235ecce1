"""What a trained model predicts, its weights, and batch norm's statistics over ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from scaling.frameworks.evaluating import Learnt
from scaling.frameworks.tf import network
from scaling.records.point import Point
from scaling.records.task import Task
from scaling.workloads import models
from scaling.workloads.specs import Binary

Distribute = Callable[[Callable[..., tf.Tensor]], Callable[..., tf.Tensor]]


class Judging:
    """Base of trainers that can be evaluated between steps."""

    model: keras.Model
    task: Task
    device: str

    if TYPE_CHECKING:

        def distribute(self, function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]: ...

        def weights(self) -> dict[str, NDArray[Any]]: ...

    def average_statistics(self) -> None:
        """Do nothing: models with batch norm are refused, unless the strategy has a collective."""

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        """Return each sample's class, in a separate graph that is traced on first use."""
        return self._classes(inputs)

    def learnt(self) -> Learnt:
        return Learnt(dict(network.as_described(self.model, self.weights().values())), statistics(self.model))

    @cached_property
    def _classes(self) -> Classes:
        return Classes(self.model, self.task.point, self.device, self.distribute)


class Classes:
    """Predicts each sample's class, in one graph of whole batches. A smaller batch is padded."""

    def __init__(self, model: keras.Model, point: Point, device: str, distribute: Distribute) -> None:
        self._model, self._device, self._size = model, device, point.workload.batch_size
        self._is_binary = isinstance(models.of(point.workload).target, Binary)
        self._graph = tf.function(distribute(self._told), autograph=False)

    def __call__(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        whole = np.concatenate([inputs, np.repeat(inputs[:1], self._size - len(inputs), axis=0)])
        with tf.device(self._device):
            shown = tf.constant(whole.transpose(0, 2, 3, 1) if whole.ndim == 4 else whole)
            found: NDArray[np.int64] = self._graph(shown).numpy()[: len(inputs)]
        return found

    def _told(self, shown: tf.Tensor) -> tf.Tensor:
        logits = self._model(shown, training=False)
        return tf.cast(logits[:, 0] > 0 if self._is_binary else tf.argmax(logits, 1), tf.int64)


def average_statistics(model: keras.Model, mean: Callable[[tf.Tensor, str], tf.Tensor]) -> None:
    """Set each moving mean and variance to `mean` of its value and its name."""
    for norm in network.norms(model):
        for variable in (norm.moving_mean, norm.moving_variance):
            variable.assign(mean(variable.value, variable.path))


def statistics(model: keras.Model) -> tuple[tuple[NDArray[Any], NDArray[Any]], ...]:
    both = ((norm.moving_mean, norm.moving_variance) for norm in network.norms(model))
    return tuple((_array(mean), _array(variance)) for mean, variance in both)


def _array(of: keras.Variable) -> NDArray[Any]:
    found: NDArray[Any] = tf.convert_to_tensor(of.value).numpy().copy()
    return found
