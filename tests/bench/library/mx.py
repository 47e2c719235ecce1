"""The networks of Gluon's model_zoo."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scaling.frameworks.mx import loop, network, optimizers
from scaling.frameworks.mx.library import mx
from scaling.workloads.specs import ModelSpec
from tests.bench.library import BATCH, Pair

LIBRARY = "gluon.model_zoo"
NAMES = ("alexnet", "vgg16")


def pair(spec: ModelSpec) -> Pair:
    ours = network.build(spec, 1, [mx.cpu()])
    theirs = mx.gluon.model_zoo.vision.get_model(spec.name, classes=spec.outputs)
    theirs.initialize(mx.initializer.Zero())
    theirs(mx.nd.zeros((1, *spec.input.shape)))  # which tells it its shapes
    for own, other in zip(network.parameters(ours).values(), theirs.collect_params().values(), strict=True):
        other._data, other._grad = own._data, own._grad
    optimizer = optimizers.make_optimizer(spec.recipe, {"rescale_grad": 1 / BATCH})
    trainer = mx.gluon.Trainer(ours.collect_params(), optimizer, kvstore=None)
    return Pair(_step(ours, spec, trainer), _step(theirs, spec, trainer))


def _step(net: mx.gluon.HybridBlock, spec: ModelSpec, trainer: mx.gluon.Trainer) -> Callable[[], object]:
    criterion = loop.loss_of(spec.target)
    for block in (net, criterion):
        block.hybridize(static_alloc=True, static_shape=True)
    random = np.random.default_rng(1)
    images = mx.nd.array(random.standard_normal((BATCH, *spec.input.shape), np.float32))
    labels = mx.nd.array(random.integers(spec.outputs, size=BATCH))

    def step() -> None:
        with mx.autograd.record():
            loss = criterion(net(images), labels)
        loss.backward()
        trainer.step(1)
        mx.nd.waitall()

    return step
