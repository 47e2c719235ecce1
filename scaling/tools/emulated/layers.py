"""The layers of a model as its device sees them: parameters, and floating-point operations of each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from scaling.errors import UsageError
from scaling.records.point import Record
from scaling.tools.emulated.buckets import DEFAULT_BUCKET_MB, bucket_bytes
from scaling.workloads import models, walk

FLOAT32_BYTES = 4


class Layer(Record, frozen=True, kw_only=True):
    """A module with parameters. `sizes` are their elements; `forward` and `backward` count the operations of one
    sample (a multiply and an add are two). Layers that multiply no matrices (normalisation) count none."""

    name: str
    sizes: tuple[int, ...]
    forward: int
    backward: int


class Span(Record, frozen=True, kw_only=True):
    """A stretch of a step: seconds of the forward and of the backward pass, and the parameters whose gradients
    are there at its end, in elements."""

    forward_s: float
    backward_s: float
    sizes: tuple[int, ...]


@lru_cache(maxsize=8)
def of(model: str, image_size: int = 0) -> tuple[Layer, ...]:
    """Those layers of a model that have parameters, in the order of the forward pass, at an image size, 0 for the
    model's own; UsageError for no model, or a size that it cannot have."""
    try:
        placed = models.sized(model, image_size).placed
    except UsageError as error:
        size = f"--image-size {image_size}: {model}: " if image_size else ""
        raise UsageError(f"{size}{error}") from None
    return tuple(
        Layer(
            name=one.path,
            sizes=tuple(each.size for each in one.parameters),
            forward=one.operations,
            backward=backward,
        )
        for one, backward in zip(placed, walk.backwards(placed), strict=True)
        if one.parameters
    )


def operations(model: str, image_size: int = 0) -> int:
    """Of both passes of one sample."""
    return sum(layer.forward + layer.backward for layer in of(model, image_size))


def gradient_bytes(model: str, image_size: int = 0) -> int:
    """Bytes of the gradients of all layers, in float32."""
    return FLOAT32_BYTES * sum(sum(layer.sizes) for layer in of(model, image_size))


def tail_bytes(model: str, image_size: int = 0) -> int:
    """Bytes of the last of DDP's buckets at their usual sizes, which goes out when backward has ended."""
    sizes = [FLOAT32_BYTES * size for layer in of(model, image_size) for size in layer.sizes]
    return bucket_bytes(reversed(sizes), DEFAULT_BUCKET_MB)[-1]


def spans(layers: Sequence[Layer], step_s: float, shrink: float = 1.0) -> tuple[Span, ...]:
    """Share `step_s` out in proportion to the operations, and divide the parameters by `shrink`.

    A layer that counts no operations ends with the one before it. What a device does besides (update, activation
    functions) is shared out alike: only the whole step was ever published.
    """
    per_operation_s = step_s / sum(layer.forward + layer.backward for layer in layers)
    sizes = iter(shrunken([size for layer in layers for size in layer.sizes], shrink))
    stretches: list[Span] = []
    for layer in layers:
        own = tuple(next(sizes) for _ in layer.sizes)
        if layer.forward or not stretches:
            forward_s, backward_s = layer.forward * per_operation_s, layer.backward * per_operation_s
            stretches.append(Span(forward_s=forward_s, backward_s=backward_s, sizes=own))
        else:
            stretches[-1] = msgspec.structs.replace(stretches[-1], sizes=(*stretches[-1].sizes, *own))
    return tuple(stretches)


def shrunken(sizes: Iterable[int], shrink: float) -> list[int]:
    """Elements divided by `shrink`, so that the sum is right and none is empty."""
    shares, whole, done = [], 0, 0
    for size in sizes:
        whole += size
        share = max(1, round(whole / shrink) - done)
        done += share
        shares.append(share)
    return shares
