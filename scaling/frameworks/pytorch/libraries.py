"""Packages and libraries beside torch that need help to be imported or to be asked."""

from __future__ import annotations

from typing import Any

import torch

_kept: list[torch.library.Library] = []


def torchvision() -> Any:
    """Import torchvision, also the CUDA build of PyPI beside a CPU build of torch.

    There its compiled operators cannot be loaded and the import fails over `nms`, which nothing here calls; it
    succeeds once the name exists.
    """
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
    """The version of NCCL; `unknown` if torch is built without it or does not say."""
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call, unused-ignore]
    except (AttributeError, TypeError, RuntimeError):
        return "unknown"
