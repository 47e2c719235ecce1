"""DistributedDataParallel over gloo, as its tutorial has it."""

from __future__ import annotations

import os

import torch
from torch.nn.parallel import DistributedDataParallel

from scaling.frameworks.pytorch.network import build
from tests.bench.plain import work
from tests.bench.plain.torch_step import one_step, sgd


def main() -> None:
    told = work.read()
    torch.manual_seed(1)
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(build(work.SPEC, 1))
    work.serve(told, one_step(told, model, sgd(model)))
    # An orderly end sometimes aborts while the other rank is still ending.
    os._exit(0)


if __name__ == "__main__":
    main()
