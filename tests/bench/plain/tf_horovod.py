"""Horovod's DistributedGradientTape in a tf.function, as in its tensorflow2_synthetic_benchmark.py; Keras 3's
variables are handed to Horovod by their `value`."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd  # type: ignore[import-not-found, import-untyped, unused-ignore]
import keras  # type: ignore[import-untyped, unused-ignore]
import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from scaling.frameworks.tf.network import build
from tests.bench.plain import work


def main() -> None:
    told = work.read()
    hvd.init()
    feed = work.digits(told)
    model = build(work.SPEC, 1)
    optimizer = keras.optimizers.SGD(work.SPEC.recipe.rate, momentum=0.9)
    optimizer.build(model.trainable_variables)
    criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    hvd.broadcast_variables([each.value for each in (*model.variables, *optimizer.variables)], root_rank=0)

    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = criterion(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, [each.value for each in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    graph = tf.function(train_step)

    def step(number: int) -> Any:
        images, labels = feed.batch(number)
        return graph(tf.constant(images.transpose(0, 2, 3, 1)), tf.constant(labels))

    work.serve(told, step)
    hvd.shutdown()


if __name__ == "__main__":
    main()
