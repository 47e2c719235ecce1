"""The networks of keras.applications."""

from __future__ import annotations

import os
from collections.abc import Callable

import keras
import tensorflow as tf

from scaling.frameworks.tf import losses, network, optimizers
from scaling.workloads.specs import ModelSpec
from tests.bench.library import BATCH, Pair

LIBRARY = "keras.applications"
THEIRS: dict[str, Callable[..., keras.Model]] = {
    "vgg16": keras.applications.VGG16,
    "vgg19": keras.applications.VGG19,
    # Theirs has no gamma in its batch norms.
    "inception_v3": keras.applications.InceptionV3,
}
NAMES = ("vgg16", "inception_v3")


def pair(spec: ModelSpec) -> Pair:
    """Of one description."""
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    ours = network.build(spec, 1)
    theirs = THEIRS[spec.name](weights=None, classes=spec.outputs, classifier_activation=None)
    if [each.shape for each in ours.weights] == [each.shape for each in theirs.weights]:
        theirs.set_weights(ours.get_weights())
    return Pair(_step(ours, spec), _step(theirs, spec))


def _step(model: keras.Model, spec: ModelSpec) -> Callable[[], object]:
    criterion, optimizer = losses.of(spec.target), optimizers.make(spec.recipe)
    optimizer.build(model.trainable_variables)
    channels, height, width = spec.input.shape
    images = tf.random.normal((BATCH, height, width, channels))
    labels = tf.random.uniform((BATCH,), maxval=spec.outputs, dtype=tf.int64)

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = criterion(model(images, training=True), labels)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    graph = tf.function(step, autograph=False)
    return lambda: float(graph())
