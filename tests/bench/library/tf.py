"""The networks of keras.applications."""

from __future__ import annotations

import os
from collections.abc import Callable
from unittest import mock

import keras
import tensorflow as tf

from scaling.frameworks.tf import loop, network
from scaling.workloads.specs import ModelSpec
from tests.bench.library import BATCH, Pair

LIBRARY = "keras.applications"
THEIRS: dict[str, Callable[..., keras.Model]] = {
    "vgg16": keras.applications.VGG16,
    "vgg19": keras.applications.VGG19,
    "inception_v3": keras.applications.InceptionV3,
}
NAMES = ("vgg16", "inception_v3")


def pair(spec: ModelSpec) -> Pair:
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    ours = network.build(spec, 1)
    theirs = _library(spec)
    variables, optimizer = ours.trainable_variables, loop.optimizer_of(spec.recipe)
    optimizer.build(variables)
    _share(ours, theirs)
    return Pair(_step(ours, spec, variables, optimizer), _step(theirs, spec, variables, optimizer))


def _library(spec: ModelSpec) -> keras.Model:
    """Theirs; Inception's batch norms, which have no gamma, get the one that was published."""
    norm = keras.layers.BatchNormalization
    with mock.patch.object(
        keras.src.layers, "BatchNormalization", lambda **given: norm(**{**given, "scale": True})
    ):
        return THEIRS[spec.name](weights=None, classes=spec.outputs, classifier_activation=None)


def _share(ours: keras.Model, theirs: keras.Model) -> None:
    """Give each layer of theirs the variables of ours, which stand in the same order."""
    own = iter(ours.weights)
    for layer in theirs.layers:
        layer._tracker.unlock()
        for name in ("_kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance"):
            if (variable := getattr(layer, name, None)) is not None:
                shared = next(own)
                assert shared.shape == variable.shape, shared.path
                setattr(layer, name, shared)


def _step(
    model: keras.Model, spec: ModelSpec, variables: list[keras.Variable], optimizer: keras.optimizers.Optimizer
) -> Callable[[], object]:
    criterion = loop.loss_of(spec.target)
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
