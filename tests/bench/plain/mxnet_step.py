"""MXNet beside a NumPy that has lost a name it needs, and Gluon's training step on one context."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy

from scaling.frameworks.mx.vision import build, initialize
from tests.bench.plain import work

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    numpy.bool = bool  # type: ignore[attr-defined, unused-ignore]
    import mxnet  # type: ignore[import-untyped, unused-ignore]

mx: Any = mxnet
autograd: Any = mxnet.autograd
gluon: Any = mxnet.gluon
nd: Any = mxnet.nd
SGD = {"learning_rate": work.SPEC.learning_rate, "momentum": 0.9}


def network(contexts: list[Any]) -> Any:
    """The model on all contexts, hybridized."""
    mxnet.random.seed(1)
    net = build(work.SPEC)
    initialize(net, work.SPEC, contexts)
    net.hybridize(static_alloc=True, static_shape=True)
    return net


def one_step(told: work.Work, net: Any, update: Callable[[], Any]) -> Callable[[int], Any]:
    """Forward, backward and `update`, which MXNet's engine does when it comes to it."""
    feed, criterion = work.digits(told), gluon.loss.SoftmaxCrossEntropyLoss()

    def step(number: int) -> Any:
        images, labels = map(nd.array, feed.batch(number))
        with autograd.record():
            loss = criterion(net(images), labels)
        loss.backward()
        update()
        return loss

    return step


def mean(losses: Any) -> float:
    """Of a batch."""
    return float(losses.mean().asscalar())
