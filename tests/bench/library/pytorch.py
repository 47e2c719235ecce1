"""torchvision's networks."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import nn

from scaling.frameworks.pytorch import compute, libraries, network
from scaling.workloads.specs import ModelSpec
from tests.bench.library import BATCH, Pair

LIBRARY = "torchvision"
NAMES = ("alexnet", "resnet50", "googlenet-bn")
AUXILIARY = ("googlenet-bn", "inception_v3")


def pair(spec: ModelSpec) -> Pair:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    ours = network.build(spec, 1)
    optimizer = compute.optimizer_of(spec.recipe, ours.parameters())
    return Pair(_step(ours, spec, optimizer), _step(_library(spec, ours), spec, optimizer))


def _library(spec: ModelSpec, ours: nn.Module) -> nn.Module:
    extra = {"aux_logits": False, "init_weights": False} if spec.name in AUXILIARY else {}
    name = spec.alike["torchvision"]
    built: nn.Module = libraries.torchvision().models.get_model(name, weights=None, **extra)
    names = [name for name, _ in built.named_parameters()]
    for path, own in zip(names, ours.parameters(), strict=True):
        module, _, last = path.rpartition(".")
        setattr(built.get_submodule(module), last, own)
    return built


def _step(built: nn.Module, spec: ModelSpec, optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    net, criterion = built.train(), compute.loss_of(spec.target)
    images, labels = torch.randn(BATCH, *spec.input.shape), torch.randint(spec.outputs, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        criterion(net(images), labels).backward()
        optimizer.step()

    return step
