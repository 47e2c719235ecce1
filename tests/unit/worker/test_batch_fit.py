"""The trial of larger batches: which batches it tries, and what it finds on GPUs of any size."""

from __future__ import annotations

import pytest

from scaling.records.task import BatchFit
from scaling.worker.batch_fit import MOST, PART, largest

GB = 10**9
WEIGHTS, SEQUENCE = 2 * GB, GB


class Gpu:
    """A step uses WEIGHTS, and SEQUENCE for each sequence. Memory runs out at all that the GPU has."""

    def __init__(self, memory_gb: float, sequence: int = SEQUENCE) -> None:
        self.memory_bytes, self._sequence = round(memory_gb * GB), sequence
        self.tried: list[int] = []

    def peak(self, batch: int) -> int | None:
        self.tried.append(batch)
        used = WEIGHTS + batch * self._sequence
        return used if used <= self.memory_bytes else None


@pytest.mark.parametrize(("memory_gb", "batch"), [(16, 8), (24, 16), (40, 16), (80, 32), (141, 64)])
def test_the_largest_batch_that_leaves_room_for_the_exchange(memory_gb: float, batch: int) -> None:
    gpu = Gpu(memory_gb)
    found = largest(8, gpu.memory_bytes, gpu.peak)
    assert found == BatchFit(batch_size=batch, used_bytes=WEIGHTS + batch * SEQUENCE)
    assert found.used_bytes <= PART * gpu.memory_bytes


def test_growth_tells_when_to_stop_before_memory_runs_out() -> None:
    gpu = Gpu(80)
    largest(8, gpu.memory_bytes, gpu.peak)
    assert gpu.tried == [8, 16, 32]


def test_unknown_use_is_tried_until_memory_runs_out() -> None:
    gpu = Gpu(40)
    found = largest(8, gpu.memory_bytes, lambda batch: None if gpu.peak(batch) is None else 0)
    assert found == BatchFit(batch_size=32, used_bytes=0)
    assert gpu.tried == [8, 16, 32, 64]


def test_small_models_stop_at_a_limit() -> None:
    gpu = Gpu(80, sequence=1)
    assert largest(8, gpu.memory_bytes, gpu.peak) == BatchFit(batch_size=8 * MOST, used_bytes=WEIGHTS + 8 * MOST)


def test_nothing_fits() -> None:
    gpu = Gpu(8)
    assert largest(8, gpu.memory_bytes, gpu.peak) is None
