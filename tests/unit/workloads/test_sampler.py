"""Who is fed with which samples: shards that are disjoint and complete, in an order that is a pure function."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from scaling.workloads.feeds.sampler import Sampler, once

COUNT = 1797


def stream(rank: int = 0, world_size: int = 1, batch_size: int = 100, seed: int = 1) -> Sampler:
    return Sampler(COUNT, batch_size=batch_size, seed=seed, rank=rank, world_size=world_size)


@pytest.mark.parametrize("world_size", [1, 2, 7, 16])
def test_shards_are_disjoint_and_cover_everything(world_size: int) -> None:
    shards = []
    for rank in range(world_size):
        size = len(range(rank, COUNT, world_size))
        shards.append(stream(rank, world_size, batch_size=size).indices(0))
        assert len(stream(rank, world_size)) == size
    assert sorted(np.concatenate(shards).tolist()) == list(range(COUNT))


def test_an_epoch_has_every_sample_once_and_the_next_another_order() -> None:
    feed = stream(rank=1, world_size=3, batch_size=599)
    first, second = feed.indices(0), feed.indices(1)
    assert len(set(first.tolist())) == 599
    assert sorted(first) == sorted(second)
    assert first.tolist() != second.tolist()


def test_batches_run_on_over_the_end_of_an_epoch() -> None:
    feed = stream(world_size=16, batch_size=50)  # shards of 113 samples
    seen = np.concatenate([feed.indices(step) for step in range(10)])[: 4 * 113]
    counts = np.unique(seen, return_counts=True)[1]
    assert len(counts) == 113
    assert set(counts.tolist()) == {4}
    assert len(stream(world_size=16, batch_size=500).indices(3)) == 500


def test_a_batch_is_a_function_of_seed_rank_and_step() -> None:
    chosen = stream().indices(7)
    again = stream()
    again.indices(30)
    assert again.indices(7).tolist() == chosen.tolist()
    for other in (stream(seed=2), stream(rank=1, world_size=2)):
        assert other.indices(7).tolist() != chosen.tolist()


def test_more_ranks_than_samples() -> None:
    assert len(stream(rank=2000, world_size=4000, batch_size=3).indices(1)) == 3


@pytest.mark.parametrize(("count", "world_size"), [(23, 1), (23, 4), (2, 3), (24, 4)])
def test_what_is_held_out_is_gone_through_once(count: int, world_size: int) -> None:
    batches = [
        batch.tolist()
        for rank in range(world_size)
        for batch in once(count, batch_size=4, rank=rank, world_size=world_size)
    ]
    assert sorted(chain(*batches)) == list(range(count))
    assert all(0 < len(batch) <= 4 for batch in batches)
