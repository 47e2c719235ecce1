"""Gluon's Trainer with a distributed kvstore, as in MXNet's tutorial "Distributed training using Gluon". MODE is
the kvstore; with DMLC_ROLE of a server or scheduler the import serves, and ends with the workers."""

from __future__ import annotations

from scaling.frameworks.mx.library import mx
from tests.bench.plain import work
from tests.bench.plain.mxnet_step import SGD, gluon, mean, nd, network, one_step


def main() -> None:
    told = work.read()
    asynchronous = told.mode == "dist_async"
    store = mx.kv.create(told.mode)
    net = network([mx.cpu()])
    trainer = gluon.Trainer(net.collect_params(), "sgd", SGD, kvstore=store)
    images = told.batch_size * (1 if asynchronous else store.num_workers)
    step = one_step(told, net, lambda: trainer.step(images))
    store._barrier()
    work.serve(told, step, wait=nd.waitall, loss=mean, linger=asynchronous)


if __name__ == "__main__":
    main()
