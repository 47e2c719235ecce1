"""Gluon's Trainer with several contexts in one process, as in MXNet's tutorial "Multi-GPU training with Gluon":
the batch is split over the contexts. MODE is the kvstore."""

from __future__ import annotations

from typing import Any

import numpy

from scaling.frameworks.mx.library import mx
from tests.bench.plain import work
from tests.bench.plain.mxnet_step import SGD, autograd, gluon, mean, nd, network


def main() -> None:
    told = work.read()
    contexts = [mx.cpu(index) for index in range(told.world_size)]
    net = network(contexts)
    trainer = gluon.Trainer(net.collect_params(), "sgd", SGD, kvstore=told.mode)
    criterion = gluon.loss.SoftmaxCrossEntropyLoss()
    feeds = [work.digits(told, rank) for rank in range(told.world_size)]

    def step(number: int) -> Any:
        images, labels = map(numpy.concatenate, zip(*(feed.batch(number) for feed in feeds), strict=True))
        batches = zip(_split(images, contexts), _split(labels, contexts), strict=True)
        with autograd.record():
            losses = [criterion(net(some), of) for some, of in batches]
        for loss in losses:
            loss.backward()
        trainer.step(len(labels))
        return losses[-1]

    work.serve(told, step, wait=nd.waitall, loss=mean)


def _split(array: Any, contexts: list[Any]) -> Any:
    return gluon.utils.split_and_load(array, contexts)


if __name__ == "__main__":
    main()
