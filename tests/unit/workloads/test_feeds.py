"""The feeds: real digits cut into shards, and seeded noise."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from scaling.errors import UsageError
from scaling.workloads import feeds, models
from scaling.workloads.feeds import digits
from scaling.workloads.feeds.digits import Digits
from scaling.workloads.feeds.synthetic import Synthetic
from tests.support.paper_tasks import tasks

IMAGE = (1, 32, 32)
COUNT = 1797


def stream(rank: int = 0, world_size: int = 1, batch_size: int = 100, seed: int = 1) -> Digits:
    return Digits(IMAGE, batch_size=batch_size, seed=seed, rank=rank, world_size=world_size)


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-learn"):
        digits.read()


def test_bilinear_by_hand() -> None:
    assert np.array_equal(digits.bilinear(8), np.eye(8))
    # At twice the size each pixel lies a quarter beside a centre; at the edge there is nothing to mix with.
    assert digits.bilinear(16)[:3, :3].tolist() == [[1, 0, 0], [0.75, 0.25, 0], [0.25, 0.75, 0]]
    np.testing.assert_allclose(digits.bilinear(33).sum(axis=1), 1, rtol=1e-6)


def test_images_are_normalised_and_keep_their_digit() -> None:
    images, labels = digits.load(32, 24)
    assert images.shape == (COUNT, 1, 32, 24)
    assert images.dtype == np.float32
    assert abs(images.mean()) < 1e-3
    assert abs(images.std() - 1) < 1e-3
    assert labels.dtype == np.int64
    assert sorted(set(labels.tolist())) == list(range(10))


@pytest.mark.parametrize("world_size", [1, 2, 7, 16])
def test_shards_are_disjoint_and_cover_everything(world_size: int) -> None:
    shards = []
    for rank in range(world_size):
        size = len(range(rank, COUNT, world_size))
        shards.append(stream(rank, world_size, batch_size=size).indices(0))
    assert sorted(np.concatenate(shards).tolist()) == list(range(COUNT))


def test_an_epoch_has_every_image_once_and_the_next_another_order() -> None:
    feed = stream(rank=1, world_size=3, batch_size=599)
    first, second = feed.indices(0), feed.indices(1)
    assert len(set(first.tolist())) == 599
    assert sorted(first) == sorted(second)
    assert first.tolist() != second.tolist()


def test_batches_run_on_over_the_end_of_an_epoch() -> None:
    feed = stream(world_size=16, batch_size=50)  # shards of 113 images
    seen = np.concatenate([feed.indices(step) for step in range(10)])[: 4 * 113]
    counts = np.unique(seen, return_counts=True)[1]
    assert len(counts) == 113
    assert set(counts.tolist()) == {4}
    assert stream(world_size=16, batch_size=500).batch(3)[0].shape == (500, *IMAGE)


def test_a_batch_is_a_function_of_seed_rank_and_step() -> None:
    images, labels = stream().batch(7)
    again = stream()
    again.batch(30)
    np.testing.assert_array_equal(again.batch(7)[0], images)
    np.testing.assert_array_equal(again.batch(7)[1], labels)
    for other in (stream(seed=2), stream(rank=1, world_size=2)):
        assert not np.array_equal(other.batch(7)[0], images)


def test_labels_stay_with_their_images() -> None:
    feed = stream()
    everything, names = digits.load(32, 32)
    images, labels = feed.batch(2)
    chosen = feed.indices(2)
    np.testing.assert_array_equal(images, everything[chosen])
    np.testing.assert_array_equal(labels, names[chosen])


def test_feeds_of_a_process_share_what_none_of_them_can_write_to() -> None:
    images, labels = digits.load(32, 32)
    assert digits.load(32, 32)[0] is images
    with pytest.raises(ValueError, match="read-only"):
        images[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        labels[0] = 0
    batch, names = stream().batch(0)
    assert batch.flags.writeable and names.flags.writeable


def test_all_channels_are_alike() -> None:
    images, _ = Digits((3, 40, 48), batch_size=5, seed=1, rank=0, world_size=1).batch(0)
    assert images.shape == (5, 3, 40, 48)
    assert images.flags.c_contiguous
    np.testing.assert_array_equal(images[:, 0], images[:, 2])


def test_more_ranks_than_images() -> None:
    assert stream(rank=2000, world_size=4000, batch_size=3).batch(1)[0].shape == (3, *IMAGE)


def test_synthetic_is_one_batch_of_each_rank() -> None:
    feed = Synthetic((3, 8, 8), 1000, batch_size=16, seed=1, rank=0)
    images, labels = feed.batch(0)
    assert feed.fixed
    assert images.shape == (16, 3, 8, 8)
    assert images.dtype == np.float32
    assert labels.shape == (16,)
    assert labels.min() >= 0
    assert labels.max() < 1000
    assert abs(images.mean()) < 0.1
    assert abs(images.std() - 1) < 0.1
    assert feed.batch(1)[0] is images
    again = Synthetic((3, 8, 8), 1000, batch_size=16, seed=1, rank=0)
    np.testing.assert_array_equal(again.batch(0)[0], images)
    other = Synthetic((3, 8, 8), 1000, batch_size=16, seed=1, rank=1)
    assert not np.array_equal(other.batch(0)[0], images)


@pytest.mark.parametrize("name", feeds.CATALOGUE)
def test_feed_of_a_task(name: str) -> None:
    first, second = tasks("torch:gloo", "exchange", 2, data=name, batch_size=6)
    spec = models.spec("digits-cnn")
    batches = [feeds.feed(task, spec).batch(0) for task in (first, second)]
    for images, labels in batches:
        assert images.shape == (6, *spec.image)
        assert labels.shape == (6,)
        assert labels.max() < spec.classes
    assert not np.array_equal(batches[0][0], batches[1][0])
    other = msgspec.structs.replace(first, seed=2)
    assert not np.array_equal(feeds.feed(other, spec).batch(0)[0], batches[0][0])


def test_check_refuses_what_does_not_fit() -> None:
    feeds.check("synthetic", 3)
    feeds.check("digits", 10)
    with pytest.raises(UsageError, match="--data digit: unknown; did you mean 'digits'"):
        feeds.check("digit", 10)
    with pytest.raises(UsageError, match="--data digits: has 10 classes, the model 3"):
        feeds.check("digits", 3)


def test_the_catalogue_names_how_many_there_are() -> None:
    assert f"{COUNT:,}" in feeds.CATALOGUE["digits"][0]
    assert len(digits.read()[1]) == COUNT
