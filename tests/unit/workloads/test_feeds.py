"""Feeds: images in memory, noise, shards, samplers, parts of a data set, random changes, schedules of rates."""

from __future__ import annotations

import sys
from itertools import chain
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling.errors import UsageError
from scaling.frameworks import feeding
from scaling.records.point import Kind, LrScale, Regime
from scaling.records.task import Task
from scaling.workloads import data, feeds, models, schedule
from scaling.workloads.data import Augment
from scaling.workloads.feeds import pictures
from scaling.workloads.feeds.batches import Batch, Part, Sampler, chosen, once
from scaling.workloads.feeds.pictures import Augmented, Digits, Pixels, bilinear, digits
from scaling.workloads.specs import Images, Tokens
from tests.support import written
from tests.support.paper_tasks import tasks
from tests.support.points import TASK
from tests.support.points import changed as changed_point

COUNT = 1797
DIGITS = Images(channels=1, height=32, width=32)


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-learn"):
        pictures.read_digits()


def test_bilinear_by_hand() -> None:
    assert np.array_equal(bilinear(8, 8), np.eye(8))
    # At twice the size each pixel lies a quarter beside a centre; at the edge there is nothing to mix with.
    assert bilinear(16, 8)[:3, :3].tolist() == [[1, 0, 0], [0.75, 0.25, 0], [0.25, 0.75, 0]]
    for size, side in ((33, 8), (224, 28)):
        np.testing.assert_allclose(bilinear(size, side).sum(axis=1), 1, rtol=1e-6)


def test_digits_are_normalised_and_shared_and_none_can_write_to_them() -> None:
    images, labels = digits(32, 24)
    assert images.shape == (COUNT, 1, 32, 24)
    assert images.dtype == np.float32 and labels.dtype == np.int64
    assert abs(images.mean()) < 1e-3 and abs(images.std() - 1) < 1e-3
    assert sorted(set(labels.tolist())) == list(range(10))
    assert digits(32, 24)[0] is images
    for array in (images, labels):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    batch, names = Digits(DIGITS, "train").take(np.arange(4))
    assert batch.flags.writeable and names.flags.writeable


def test_a_fifth_of_the_digits_is_held_out() -> None:
    train, test = Digits(DIGITS, "train"), Digits(DIGITS, "test")
    assert {"train": len(train), "test": len(test)} == data.spec("digits").splits
    assert f"{COUNT:,}" in data.spec("digits").text
    everything, names = digits(32, 32)
    images = np.concatenate([one.take(np.arange(len(one)))[0] for one in (train, test)])
    assert sorted(map(bytes, images)) == sorted(map(bytes, everything))
    assert np.bincount(test.take(np.arange(360))[1]).min() > 20
    shown, labels = train.take(np.array([5, 1000]))
    place = next(n for n, one in enumerate(everything) if np.array_equal(one, shown[1]))
    assert labels[1] == names[place]


def test_all_channels_are_alike() -> None:
    images, _ = Digits(Images(channels=3, height=40, width=48), "train").take(np.arange(5))
    assert images.shape == (5, 3, 40, 48)
    assert images.flags.c_contiguous
    np.testing.assert_array_equal(images[:, 0], images[:, 2])


def pixels(images: Images, channels: int = 1) -> Pixels:
    shown = np.arange(6 * channels * 4 * 4, dtype=np.uint8).reshape(6, channels, 4, 4)
    mean, deviation = (0.5, 0.25, 0.2)[:channels], (0.25, 0.5, 0.1)[:channels]
    return Pixels(shown, np.arange(6), replace(data.spec("mnist"), mean=mean, deviation=deviation), images)


def test_pixels_are_normalised_by_channel() -> None:
    found = pixels(Images(channels=3, height=4, width=4), channels=3)
    images, labels = found.take(np.array([2, 0]), ())
    assert (images.shape, labels.tolist(), len(found)) == ((2, 3, 4, 4), [2, 0], 6)
    assert images.dtype == np.float32
    assert images[1, 0, 0, 0] == pytest.approx(-2)
    assert images[1, 1, 0, 1] == pytest.approx((17 / 255 - 0.25) / 0.5)
    assert images[0, 2, 3, 3] == pytest.approx((143 / 255 - 0.2) / 0.1, rel=1e-5)


def test_pixels_are_resized_to_the_model_and_grey_ones_repeated() -> None:
    images, _ = pixels(Images(channels=3, height=8, width=6)).take(np.arange(6), ())
    assert images.shape == (6, 3, 8, 6)
    np.testing.assert_array_equal(images[:, 0], images[:, 2])
    small, _ = pixels(Images(channels=1, height=4, width=4)).take(np.arange(6), ())
    np.testing.assert_allclose(images[:, 0], bilinear(8, 4) @ small[:, 0] @ bilinear(6, 4).T, rtol=1e-5)


# ---------------------------------------------------------------- feeds of tasks


def task(
    model: str = "mnist-mlp", name: str = "mnist", rank: int = 0, *, size: int = 2, batch_size: int = 6,
    data_dir: str = "",
) -> Task:  # fmt: skip
    made = tasks("torch:gloo", "exchange", size, model=model, data=name, batch_size=batch_size)
    return replace(made[rank], data_dir=data_dir)


SPEC = models.spec("mnist-mlp")


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(data.CATALOGUE, "mnist", written.few("mnist"))
    return str(written.idx(tmp_path))


@pytest.mark.parametrize("name", ["digits", "synthetic", "mnist"])
def test_feed_of_a_task(name: str, mnist: str) -> None:
    first, second = (task("mnist-mlp", name, rank, data_dir=mnist) for rank in (0, 1))
    batches = [feeds.feed(one, SPEC).batch(0) for one in (first, second)]
    for images, labels in batches:
        assert images.shape == (6, *SPEC.input.shape) and images.dtype == np.float32
        # Torch would else take them for channels_last, and convolve by other kernels than for contiguous ones.
        assert images.strides == np.empty(images.shape, np.float32).strides
        assert labels.shape == (6,) and labels.dtype == np.int64
        assert labels.max() < 10
    assert not np.array_equal(batches[0][0], batches[1][0])
    np.testing.assert_array_equal(feeds.feed(first, SPEC).batch(0)[0], batches[0][0])
    assert not np.array_equal(feeds.feed(replace(first, seed=2), SPEC).batch(0)[0], batches[0][0])


def test_shards_of_held_out_pictures_are_complete(mnist: str) -> None:
    seen = [
        (bytes(image), label)
        for rank in range(3)
        for images, labels in feeds.shard(task(rank=rank, size=3, data_dir=mnist), SPEC)
        for image, label in zip(images, labels, strict=True)
    ]
    assert len(seen) == len({image for image, _ in seen}) == 12
    assert sorted(label for _, label in seen) == sorted(n % 10 for n in range(12))


def test_labels_stay_with_their_images_which_are_read_once_for_all_feeds(mnist: str) -> None:
    """Image n begins with pixel n, and has the label n % 10."""
    known = data.spec("mnist")
    images, labels = feeds.feed(task(data_dir=mnist), SPEC).batch(4)
    first = np.rint((images[:, 0, 0, 0] * known.deviation[0] + known.mean[0]) * 255).astype(int)
    assert (first % 10).tolist() == labels.tolist()
    made = [feeds.samples(task(rank=rank, data_dir=mnist), SPEC, "train") for rank in (0, 1)]
    assert made[0] is made[1] and len(made[0]) == 40


def test_check_opens_the_files(mnist: str) -> None:
    assert feeds.check("mnist", mnist, SPEC, ("train", "test")) == mnist
    assert feeds.check("digits", "", SPEC) == ""
    Path(mnist, "train-images-idx3-ubyte").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="train-images-idx3-ubyte: magic number"):
        feeds.check("mnist", mnist, SPEC)
    with pytest.raises(UsageError, match="--data mnist: has images"):
        feeds.check("mnist", mnist, models.spec("gpt2"))


def test_synthetic_is_one_batch_of_each_rank() -> None:
    spec = replace(models.spec("resnet50"), input=Images(channels=3, height=8, width=8))
    first, again, other = (
        feeds.feed(task("resnet50", "synthetic", rank, batch_size=16), spec) for rank in (0, 0, 1)
    )
    images, labels = first.batch(0)
    assert first.fixed and first.batch(1)[0] is images
    assert (images.shape, labels.shape) == ((16, 3, 8, 8), (16,))
    assert images.dtype == np.float32
    assert 0 <= labels.min() <= labels.max() < 1000
    assert abs(images.mean()) < 0.1 and abs(images.std() - 1) < 0.1
    np.testing.assert_array_equal(again.batch(0)[0], images)
    assert not np.array_equal(other.batch(0)[0], images)


@pytest.mark.parametrize(
    ("model", "shape", "below"),
    [
        ("gpt2-tiny", (6, 64), 256),
        ("bert-tiny", (6, 64), 256),
        ("imdb-lstm", (6,), 2),
        ("nietzsche-lstm", (6,), 57),
    ],
)
def test_synthetic_tokens_have_the_labels_that_the_model_learns(
    model: str, shape: tuple[int, ...], below: int
) -> None:
    spec = models.spec(model)
    assert isinstance(spec.input, Tokens)
    found = feeds.feed(task(model, "synthetic-tokens"), spec)
    tokens, labels = found.batch(0)
    assert found.fixed
    assert tokens.shape == (6, spec.input.length) and tokens.dtype == labels.dtype == np.int64
    assert 0 <= tokens.min() <= tokens.max() < spec.input.words
    assert labels.shape == shape and labels.max() < below


def of_kind(kind: Kind) -> Task:
    (task, _) = tasks("torch:plain", "together", 2)
    return replace(task, point=replace(task.point, kind=kind))


def test_of_kind_held_every_step_has_the_batch_of_the_first() -> None:
    of = (of_kind("together"), of_kind("held"))
    fed, held = (feeds.feed(one, models.of(one.point.workload)) for one in of)
    assert held.fixed and not fed.fixed
    for step in (0, 1, 7):
        assert all(np.array_equal(a, b) for a, b in zip(held.batch(step), fed.batch(0), strict=True))


def test_of_kind_feed_steps_are_batches_and_nothing_is_trained() -> None:
    trainer = feeding.connect(of_kind("feed"))
    for _ in range(3):
        trainer.step()
    assert trainer.samples == 3 * of_kind("feed").point.workload.batch_size
    assert (trainer.loss(), trainer.digest(), trainer.parameters) == (None, None, 0)


# ---------------------------------------------------------------- shards
#
# They are disjoint and complete, in an order that is a pure function.


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


# ---------------------------------------------------------------- parts
#
# The same for every rank and seed, of each class as many as there can be.


def training(data_dir: str = "", name: str = "digits", **fields: Any) -> Task:
    regime = Regime(epochs=1, seed=0, rate=0.1, base_rate=0.1, base_batch=32, **fields)
    return replace(
        TASK, data_dir=data_dir, point=changed_point(TASK.point, kind="train", regime=regime, data=name)
    )


def test_classes_take_turns_until_one_is_used_up() -> None:
    labels = np.array([0] * 50 + [1] * 3 + [2] * 47)
    for count, wanted in ((3, [1, 1, 1]), (9, [3, 3, 3]), (13, [5, 3, 5]), (100, [50, 3, 47])):
        assert np.bincount(labels[chosen(100, count, labels)]).tolist() == wanted
    assert sorted(np.bincount(labels[chosen(100, 7, labels)])) == [2, 2, 3]
    assert len(set(chosen(1000, 100, None))) == 100


def test_a_larger_part_contains_the_smaller_and_is_drawn_all_over() -> None:
    labels = np.arange(1000) % 10
    small, large = chosen(1000, 100, labels), chosen(1000, 200, labels)
    assert set(small) < set(large)
    assert small.tolist() == sorted(small)
    assert small[0] < 100 and small[-1] > 900
    assert small.tolist() != list(range(small[0], small[0] + 100))


def test_a_sample_keeps_its_label() -> None:
    spec = models.spec("digits-cnn")
    whole = feeds.samples(training(), spec, "train")
    shown, labels = Part(whole, 40).take(np.arange(40), (0,))
    assert shown.shape == (40, *spec.input.shape)
    assert np.bincount(labels).tolist() == [4] * 10
    everything, names = whole.take(np.arange(len(whole)), (0,))
    by_content = {one.tobytes(): name for one, name in zip(everything, names, strict=True)}
    assert [by_content[one.tobytes()] for one in shown] == labels.tolist()


def test_a_point_has_as_many_as_it_asks_for_on_all_ranks_and_seeds() -> None:
    spec = models.spec("digits-cnn")
    task = training(train_samples=100, test_samples=20)
    assert [len(feeds.samples(task, spec, split)) for split in ("train", "test")] == [100, 20]
    assert [feeds.whole(task, spec, split) for split in ("train", "test")] == [1437, 360]
    assert len(feeds.samples(training(), spec, "train")) == 1437
    other = replace(task, rank=1, seed=5)
    here, there = (feeds.samples(one, spec, "test").take(np.arange(20), (0,)) for one in (task, other))
    assert np.array_equal(here[0], there[0])


def test_pictures_in_folders_are_balanced_and_at_most_all(tmp_path: Path) -> None:
    """Of the user's own pictures nobody knows how many there are until they are looked at."""
    written.folders(tmp_path / "train", {"ape": 6, "bee": 2})
    model, place = models.spec("digits-cnn"), str(tmp_path)
    part = feeds.samples(training(data_dir=place, name="folders", train_samples=4), model, "train")
    assert part.take(np.arange(4), (0,))[1].tolist() == [0, 0, 1, 1]
    with pytest.raises(UsageError, match="--train-samples 9: --data folders has 8 in its train split; take fewer"):
        feeds.check("folders", place, model, ("train",), {"train": 9})
    assert feeds.check("folders", place, model, ("train",), {"train": 8}) == place
    data.check_part("folders", "train", 9, None)


# ---------------------------------------------------------------- changed at random

ALL = Augment(rotate=20, shift=0.1, shear=0.2, zoom=0.1, flip=True)
IMAGE = np.random.default_rng(0).standard_normal((3, 9, 9)).astype(np.float32)


class Feed:
    fixed = False

    def batch(self, step: int) -> Batch:
        return np.stack([IMAGE, -IMAGE]), np.array([step, step])


class Drawn:
    """Draws the largest of all that it may."""

    def uniform(self, low: float, high: float, size: int | None = None) -> object:
        return high if size is None else np.full(size, high)

    def random(self) -> float:
        return 0.0


def changed(**limits: Any) -> NDArray[np.float32]:
    return pictures.changed(IMAGE, Augment(**limits), Drawn())  # type: ignore[arg-type]


def test_images_change_as_they_may() -> None:
    assert changed() == pytest.approx(IMAGE, abs=1e-6)
    assert changed(rotate=90) == pytest.approx(np.rot90(IMAGE, -1, (1, 2)), abs=1e-5)
    assert changed(flip=True) == pytest.approx(IMAGE[..., ::-1])
    for limits in ({"zoom": 0.5}, {"shear": 0.3}):
        assert changed(**limits)[:, 4, 4] == pytest.approx(IMAGE[:, 4, 4], abs=1e-6)
    shifted = changed(shift=2 / 9)  # the edge is repeated
    assert shifted[:, :7, :7] == pytest.approx(IMAGE[:, 2:, 2:], abs=1e-6)
    assert shifted[:, 8, 8] == pytest.approx(IMAGE[:, 8, 8])


def test_scipy_is_imported_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.ndimage", None)
    with pytest.raises(ModuleNotFoundError, match=r"scipy\.ndimage"):
        Augmented(Feed(), ALL, first_step=3, seed=1, rank=0)


def test_images_change_from_a_step_on_and_alike_each_time() -> None:
    def feed(rank: int = 0) -> Augmented:
        return Augmented(Feed(), ALL, first_step=3, seed=1, rank=rank)

    assert np.array_equal(feed().batch(2)[0], Feed().batch(2)[0])
    images, labels = feed().batch(3)
    assert images.dtype == np.float32
    assert (images.shape, labels.tolist()) == ((2, 3, 9, 9), [3, 3])
    assert np.array_equal(images, feed().batch(3)[0])
    for others in (Feed().batch(3)[0], feed().batch(4)[0], feed(rank=1).batch(3)[0]):
        assert not np.allclose(images, others)


# ---------------------------------------------------------------- schedules, by hand

REGIME = Regime(epochs=10, seed=0, rate=0.4, base_rate=0.1, base_batch=32)


@pytest.mark.parametrize(("rule", "rate"), [("linear", 0.4), ("sqrt", 0.1 * sqrt(4)), ("none", 0.1)])
def test_a_rate_grows_with_the_update_by_its_rule(rule: LrScale, rate: float) -> None:
    assert schedule.scaled(0.1, rule, 4) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("samples", "world_size", "batch_size"), [(1437, 1, 16), (1437, 4, 64), (7, 2, 16), (32, 4, 8)]
)
def test_after_an_epoch_every_sample_was_seen_and_few_twice(
    samples: int, world_size: int, batch_size: int
) -> None:
    longest = -(-samples // world_size)
    for epoch in range(6):
        steps = schedule.steps_before(epoch, samples=samples, world_size=world_size, batch_size=batch_size)
        assert epoch * longest <= steps * batch_size < epoch * longest + batch_size


def test_warm_up_and_steps_follow_each_other() -> None:
    regime = replace(REGIME, warmup_epochs=2, lr_steps=(5, 8))
    found = [schedule.rate(regime, epochs) for epochs in (0, 1, 1.5, 2, 4.9, 5, 7.9, 8, 9.9)]
    assert found == pytest.approx([0.1, 0.25, 0.325, 0.4, 0.4, 0.04, 0.04, 0.004, 0.004])
    assert schedule.varies(regime)
    assert not schedule.varies(REGIME)
