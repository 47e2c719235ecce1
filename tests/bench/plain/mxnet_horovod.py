"""Horovod's DistributedTrainer, as in its mxnet2_mnist.py and gluon examples."""

from __future__ import annotations

from scaling.frameworks.mx.library import mx
from tests.bench.plain import work
from tests.bench.plain.mxnet_step import SGD, mean, nd, network, one_step


def main() -> None:
    import horovod.mxnet as hvd  # type: ignore[import-not-found, import-untyped, unused-ignore]

    told = work.read()
    hvd.init()
    net = network([mx.cpu()])
    parameters = net.collect_params()
    hvd.broadcast_parameters(parameters, root_rank=0)
    trainer = hvd.DistributedTrainer(parameters, mx.optimizer.create("sgd", **SGD))
    step = one_step(told, net, lambda: trainer.step(told.batch_size))
    work.serve(told, step, wait=nd.waitall, loss=mean)
    hvd.shutdown()


if __name__ == "__main__":
    main()
