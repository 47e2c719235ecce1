"""The layers of a model: parameters, floating-point operations, DDP's buckets, and spans of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.records.point import Record
from scaling.workloads import models
from scaling.workloads.layers import backwards

# ---------------------------------------------------------------- buckets


MIB = 1 << 20
DEFAULT_BUCKET_MB = 25.0
FIRST_BUCKET_BYTES, BUCKET_BYTES = MIB, int(DEFAULT_BUCKET_MB * MIB)


def bucket_bytes(sizes: Iterable[int], cap_mb: float, shrink: float = 1.0) -> list[int]:
    """Compute DDP's buckets for gradients of these `sizes`, in the order of backward, in bytes. A bucket is full
    when it reaches the cap. With the default cap the first one has 1 MiB (torch/csrc/distributed/c10d/reducer.cpp,
    compute_bucket_assignment_by_size). Limits are divided by `shrink`."""
    cap = cap_mb * MIB / shrink
    limit = FIRST_BUCKET_BYTES / shrink if cap_mb == DEFAULT_BUCKET_MB else cap
    buckets, filling = [], 0
    for size in sizes:
        filling += size
        if filling >= limit:
            buckets.append(filling)
            filling, limit = 0, cap
    return [*buckets, filling] if filling else buckets


# ---------------------------------------------------------------- layers

FLOAT32_BYTES = 4


class Layer(Record, frozen=True, kw_only=True):
    """A module with parameters. `forward` and `backward` count operations of one sample; a multiply and an add are
    two."""

    name: str
    sizes: tuple[int, ...]
    forward: int
    backward: int


class Span(Record, frozen=True, kw_only=True):
    """A part of a step; `sizes` are elements of the parameters whose gradients are ready at its end."""

    forward_s: float
    backward_s: float
    sizes: tuple[int, ...]


@lru_cache(maxsize=8)
def of(model: str, image_size: int = 0) -> tuple[Layer, ...]:
    """List a model's layers with parameters, in forward order. Raises UsageError for an unknown model or image
    size."""
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
        for one, backward in zip(placed, backwards(placed), strict=True)
        if one.parameters
    )


def operations(model: str, image_size: int = 0) -> int:
    return sum(layer.forward + layer.backward for layer in of(model, image_size))


def gradient_bytes(model: str, image_size: int = 0) -> int:
    return FLOAT32_BYTES * sum(sum(layer.sizes) for layer in of(model, image_size))


def tail_bytes(model: str, image_size: int = 0) -> int:
    """Count the bytes of DDP's last bucket, which is sent after backward has ended."""
    sizes = [FLOAT32_BYTES * size for layer in of(model, image_size) for size in layer.sizes]
    return bucket_bytes(reversed(sizes), DEFAULT_BUCKET_MB)[-1]


def spans(layers: Sequence[Layer], step_s: float, shrink: float = 1.0) -> tuple[Span, ...]:
    """Divide `step_s` in proportion to the operations, and the parameters by `shrink`. A layer without operations
    joins the span before it."""
    per_operation_s = step_s / sum(layer.forward + layer.backward for layer in layers)
    sizes = iter(shrunken([size for layer in layers for size in layer.sizes], shrink))
    stretches: list[Span] = []
    for layer in layers:
        own = tuple(next(sizes) for _ in layer.sizes)
        if layer.forward or not stretches:
            forward_s, backward_s = layer.forward * per_operation_s, layer.backward * per_operation_s
            stretches.append(Span(forward_s=forward_s, backward_s=backward_s, sizes=own))
        else:
            stretches[-1] = replace(stretches[-1], sizes=(*stretches[-1].sizes, *own))
    return tuple(stretches)


def shrunken(sizes: Iterable[int], shrink: float) -> list[int]:
    """Divide elements by `shrink` so that the sum is right and every parameter keeps at least one."""
    shares, whole, done = [], 0, 0
    for size in sizes:
        whole += size
        share = max(1, round(whole / shrink) - done)
        done += share
        shares.append(share)
    return shares
