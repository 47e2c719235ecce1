"""The buckets in which DistributedDataParallel exchanges gradients, by their sizes alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable

MIB = 1 << 20
DEFAULT_BUCKET_MB = 25.0
FIRST_BUCKET_BYTES, BUCKET_BYTES = MIB, int(DEFAULT_BUCKET_MB * MIB)


def bucket_bytes(sizes: Iterable[int], cap_mb: float, shrink: float = 1.0) -> list[int]:
    """Bytes of the buckets that DDP forms of gradients of these `sizes`, given in the order in which
    backward makes them (the model's, reversed); its limits are divided by `shrink`, as the sizes are.

    A bucket is full once it reaches the cap; at the default cap the first one has 1 MiB
    (torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size).
    """
    cap = cap_mb * MIB / shrink
    limit = FIRST_BUCKET_BYTES / shrink if cap_mb == DEFAULT_BUCKET_MB else cap
    buckets, filling = [], 0
    for size in sizes:
        filling += size
        if filling >= limit:
            buckets.append(filling)
            filling, limit = 0, cap
    return [*buckets, filling] if filling else buckets
