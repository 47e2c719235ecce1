"""ParameterServerStrategy with its coordinator, as in TensorFlow's tutorial "Parameter server training with
ParameterServerStrategy": steps are scheduled to whichever worker is free, and joined at the end.

RANK 0 is the coordinator; the others, `tf.distribute.Server`s of TF_CONFIG's task, never end by themselves.
"""

from __future__ import annotations

from typing import Any

import keras  # type: ignore[import-untyped, unused-ignore]
import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from scaling.frameworks.tf.network import build
from scaling.workloads.feeds.pictures import digits
from tests.bench.plain import work


def main() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        cluster, config = resolver.cluster_spec(), tf.compat.v1.ConfigProto()
        # With fewer than this a worker waits for itself, the tutorial says.
        config.inter_op_parallelism_threads = len(cluster.job_tasks("worker")) + 1
        tf.distribute.Server(cluster, resolver.task_type, resolver.task_id, protocol="grpc", config=config).join()
    coordinate(work.read(), resolver)


def coordinate(told: work.Work, resolver: Any) -> None:
    """Train on all workers: a step of the work is one scheduled step for each of them."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = build(work.SPEC, 1)
        optimizer = keras.optimizers.SGD(work.SPEC.recipe.rate, momentum=0.9)
        optimizer.build(model.trainable_variables)
        criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def replica_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = criterion(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    train_step = tf.function(lambda iterator: strategy.run(replica_step, args=next(iterator)))

    def dataset(_context: Any) -> Any:
        images, labels = digits(*work.SPEC.input.shape[1:])
        shown = tf.data.Dataset.from_tensor_slices((images.transpose(0, 2, 3, 1), labels))
        return shown.shuffle(len(labels)).repeat().batch(told.batch_size).prefetch(2)

    datasets = tf.function(lambda: strategy.distribute_datasets_from_function(dataset))
    iterator = iter(coordinator.create_per_worker_dataset(datasets))

    def step(_number: int) -> Any:
        return [coordinator.schedule(train_step, args=(iterator,)) for _ in range(told.world_size)][-1]

    work.serve(told, step, wait=coordinator.join, loss=lambda remote: float(remote.fetch()))


if __name__ == "__main__":
    main()
