"""MultiWorkerMirroredStrategy over gRPC rings, as in TensorFlow's tutorial "Custom training loop with Keras and
MultiWorkerMirroredStrategy"."""

from __future__ import annotations

from typing import Any

import keras  # type: ignore[import-untyped, unused-ignore]
import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from scaling.frameworks.tf.network import build
from tests.bench.plain import work


def main() -> None:
    told = work.read()
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    feed = work.digits(told)
    with strategy.scope():
        model = build(work.SPEC, 1)
        optimizer = keras.optimizers.SGD(work.SPEC.recipe.rate, momentum=0.9)
        criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = criterion(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=told.batch_size * told.world_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss * told.world_size

    train_step = tf.function(lambda images, labels: strategy.run(replica_step, args=(images, labels)))

    def step(number: int) -> Any:
        images, labels = feed.batch(number)
        return train_step(tf.constant(images.transpose(0, 2, 3, 1)), tf.constant(labels))

    work.serve(told, step)


if __name__ == "__main__":
    main()
