"""The catalogue's models in PyTorch, with random weights from torch's seed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from scaling.workloads.models import ModelSpec

# Their auxiliary outputs exist in training only and are left out, as throughput benchmarks do.
WITH_AUXILIARY = ("googlenet", "inception_v3")

_kept: list[torch.library.Library] = []


def build(spec: ModelSpec) -> nn.Module:
    """Return the model as a torch.nn.Module: float32, on torch's default device, in training mode."""
    if spec.name == "digits-cnn":
        return _digits_cnn(spec)
    options = {"aux_logits": False, "init_weights": True} if spec.name in WITH_AUXILIARY else {}
    models = _torchvision().models
    module: nn.Module = models.get_model(spec.name, weights=None, num_classes=spec.classes, **options)
    return module


def notes(spec: ModelSpec) -> tuple[str, ...]:
    """How the model differs from what its name promises."""
    return (f"{spec.name} without its auxiliary classifiers",) if spec.name in WITH_AUXILIARY else ()


def _digits_cnn(spec: ModelSpec) -> nn.Module:
    channels, height, width = spec.image
    layers: list[nn.Module] = []
    for wider in (32, 64, 128):
        layers += [nn.Conv2d(channels, wider, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(wider, wider, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = wider
    flat = channels * (height // 8) * (width // 8)
    layers += [nn.Flatten(), nn.Linear(flat, 256), nn.ReLU(), nn.Linear(256, spec.classes)]
    # He et al. 2015. Torch's default shrinks the signal in each layer: after 60 steps nothing is learnt.
    for layer in layers[:-1]:
        for parameter in layer.parameters():
            if parameter.ndim > 1:
                nn.init.kaiming_normal_(parameter, nonlinearity="relu")
            else:
                nn.init.zeros_(parameter)
    return nn.Sequential(*layers)


def _torchvision() -> Any:
    """Import torchvision, also the CUDA build of PyPI beside a CPU build of torch.

    There its compiled operators cannot be loaded and the import fails over `nms`, which no model here
    calls; it succeeds once the name exists.
    """
    try:
        import torchvision  # type: ignore[import-untyped, unused-ignore]
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)  # the operators live as long as this object
        import torchvision
    return torchvision
