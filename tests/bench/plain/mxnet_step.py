"""Gluon's training step on one context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scaling.frameworks.mx.library import mx
from scaling.frameworks.mx.network import build
from tests.bench.plain import work

autograd, gluon, nd = mx.autograd, mx.gluon, mx.nd
SGD = {"learning_rate": work.SPEC.recipe.rate, "momentum": 0.9}


def network(contexts: list[Any]) -> Any:
    """The model on all contexts, hybridized."""
    mx.random.seed(1)
    net = build(work.SPEC, 1, contexts)
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
    return float(losses.mean().asscalar())
