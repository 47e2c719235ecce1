"""The floating-point operations of a model's layers, counted by torch on tensors without memory.

python -m scaling.frameworks.pytorch.flops     writes emulated/layers.json anew
"""

from __future__ import annotations

import sys
from functools import partial

import msgspec
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from scaling.emulated.layers import FILE, Layer
from scaling.frameworks.pytorch import vision
from scaling.workloads import models
from scaling.workloads.models import ModelSpec

# Normalisation of a single value per channel is an error.
IMAGES = 2


def count(spec: ModelSpec) -> tuple[Layer, ...]:
    """The modules with parameters of their own, in the order of the forward pass, each counted alone.

    The images need no gradient, so the first layer's backward pass is half of the others'. Raises ValueError
    where that order is not the one in which the model lists its parameters, which buckets follow.
    """
    seen: list[tuple[str, nn.Module, torch.Size]] = []
    with torch.device("meta"):
        module = vision.build(spec)
    leaves = [(name, each) for name, each in module.named_modules() if list(each.parameters(recurse=False))]
    for name, leaf in leaves:
        leaf.register_forward_hook(partial(_note, seen, name))
    module(torch.empty(IMAGES, *spec.image, device="meta"))
    if [name for name, _, _ in seen] != [name for name, _ in leaves]:
        raise ValueError(f"{spec.name} calls its layers in another order than it lists them")
    return tuple(_layer(*one, is_first=one is seen[0]) for one in tuple(seen))


def _note(
    seen: list[tuple[str, nn.Module, torch.Size]],
    name: str,
    leaf: nn.Module,
    given: tuple[torch.Tensor, ...],
    _made: object,
) -> None:
    seen.append((name, leaf, given[0].shape))


def _layer(name: str, leaf: nn.Module, shape: torch.Size, *, is_first: bool) -> Layer:
    images = torch.empty(shape, device="meta", requires_grad=not is_first)
    with FlopCounterMode(display=False) as forward:
        made = leaf(images)
    with FlopCounterMode(display=False) as backward:
        made.sum().backward()
    return Layer(
        name=name,
        sizes=tuple(each.numel() for each in leaf.parameters(recurse=False)),
        forward=forward.get_total_flops() // IMAGES,
        backward=backward.get_total_flops() // IMAGES,
    )


def text(counted: dict[str, tuple[Layer, ...]]) -> str:
    """As JSON, a line per layer."""
    encode = msgspec.json.encode
    parts = []
    for name, layers in counted.items():
        lines = ",\n".join(encode(layer).decode() for layer in layers)
        parts.append(f'"{name}": [\n{lines}\n]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Count all models of the catalogue."""
    FILE.write_text(text({spec.name: count(spec) for spec in models.CATALOGUE.values()}))
    sys.stdout.write(f"{FILE}: {len(models.CATALOGUE)} models\n")


if __name__ == "__main__":
    main()
