"""FSDP2 (fully_shard) over gloo, as its tutorial has it: each layer with parameters, then the whole."""

from __future__ import annotations

import os

import torch
from torch.distributed.fsdp import fully_shard

from scaling.frameworks.pytorch.network import build
from tests.bench.plain import work
from tests.bench.plain.torch_step import one_step, sgd


def main() -> None:
    told = work.read()
    torch.manual_seed(1)
    torch.distributed.init_process_group("gloo")
    model = build(work.SPEC, 1)
    mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in model.children():
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    work.serve(told, one_step(told, model, sgd(model)))
    # An orderly end sometimes aborts while the other rank is still ending.
    os._exit(0)


if __name__ == "__main__":
    main()
