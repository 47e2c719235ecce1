"""The buckets of DistributedDataParallel by their sizes; tests/frameworks/pytorch/test_ddp.py asks torch."""

from __future__ import annotations

import pytest

from scaling.tools.emulated import layers
from scaling.tools.emulated.buckets import DEFAULT_BUCKET_MB, bucket_bytes
from scaling.workloads import models

MIB = 1 << 20


def test_buckets_by_hand() -> None:
    assert bucket_bytes([MIB - 1, 1, 26 * MIB, MIB], 25) == [MIB, 26 * MIB, MIB]
    assert bucket_bytes([MIB - 1, 1, 26 * MIB, MIB], 2) == [27 * MIB, MIB]
    assert bucket_bytes([MIB, MIB, MIB], 1) == [MIB, MIB, MIB]


def test_they_shrink_with_the_gradients() -> None:
    sizes = [4 * size for layer in layers.of("resnet50") for size in layer.sizes]
    small = [4 * size for size in layers.shrunken([size // 4 for size in sizes], 10)]
    for cap_mb in (DEFAULT_BUCKET_MB, 5.0):
        whole = bucket_bytes(reversed(sizes), cap_mb)
        found = bucket_bytes(reversed(small), cap_mb, 10.0)
        assert found == pytest.approx([each / 10 for each in whole], rel=0.02)


@pytest.mark.parametrize("model", sorted(models.CATALOGUE))
def test_the_last_one_goes_out_when_backward_has_ended(model: str) -> None:
    """It holds the first layers' gradients, which come last, and no more than a bucket takes."""
    first, tail = layers.of(model)[0], layers.tail_bytes(model)
    assert 4 * sum(first.sizes) <= tail <= layers.gradient_bytes(model)
