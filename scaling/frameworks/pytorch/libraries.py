"""Packages and libraries besides torch that need special handling."""

from __future__ import annotations

from typing import Any

import torch

_kept: list[torch.library.Library] = []


def torchvision() -> Any:
    """Import torchvision, even a CUDA build next to a CPU build of torch. There the import fails over the operator
    `nms`, which is not used here. It succeeds once the name exists."""
    try:
        import torchvision as package  # type: ignore[import-untyped, unused-ignore]
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)  # the operators live as long as this object
        import torchvision as package
    return package


def nccl() -> str:
    """Return NCCL's version; `unknown` if torch is built without it or does not say."""
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call, unused-ignore]
    except (AttributeError, TypeError, RuntimeError):
        return "unknown"
