"""Horovod's DistributedOptimizer, as in its pytorch_synthetic_benchmark.py."""

from __future__ import annotations

import horovod.torch as hvd  # type: ignore[import-not-found, import-untyped, unused-ignore]
import torch

from scaling.frameworks.pytorch.network import build
from tests.bench.plain import work
from tests.bench.plain.torch_step import one_step, sgd


def main() -> None:
    told = work.read()
    hvd.init()
    torch.manual_seed(1)
    model = build(work.SPEC, 1)
    optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    work.serve(told, one_step(told, model, optimizer))
    hvd.shutdown()


if __name__ == "__main__":
    main()
