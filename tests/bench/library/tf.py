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
    variables, optimizer = ours.trainable_variables, optimizers.make(spec.recipe)
    optimizer.build(variables)
    first = _step(ours, spec, variables, optimizer)
    if [each.shape for each in ours.weights] == [each.shape for each in theirs.weights]:
        _share(ours, theirs)
    else:
        variables, optimizer = theirs.trainable_variables, optimizers.make(spec.recipe)
        optimizer.build(variables)
    return Pair(first, _step(theirs, spec, variables, optimizer))


def _share(ours: keras.Model, theirs: keras.Model) -> None:
    """Give each layer of theirs the variables of ours."""
    own = iter(ours.weights)
    for layer in theirs.layers:
        layer._tracker.unlock()
        for name in ("_kernel", "bias"):
            if getattr(layer, name, None) is not None:
                setattr(layer, name, next(own))


def _step(
    model: keras.Model, spec: ModelSpec, variables: list[keras.Variable], optimizer: keras.optimizers.Optimizer
) -> Callable[[], object]:
    criterion = losses.of(spec.target)
    channels, height, width = spec.input.shape
    images = tf.random.normal((BATCH, height, width, channels))
    labels = tf.random.uniform((BATCH,), maxval=spec.outputs, dtype=tf.int64)

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = criterion(model(images, training=True), labels)
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    graph = tf.function(step, autograph=False)
    return lambda: float(graph())
