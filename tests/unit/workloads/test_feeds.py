"""Feeds: shards, samplers, parts of a data set, schedules of rates."""

from __future__ import annotations

from itertools import chain
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.frameworks import feeding
from scaling.records.point import Regime
from scaling.records.task import Task
from scaling.workloads import data, feeds, models, schedule
from scaling.workloads.feeds import pictures
from scaling.workloads.feeds.batches import Part, Sampler, chosen, once
from scaling.workloads.feeds.pictures import Digits, Pixels, bilinear, digits
from scaling.workloads.specs import Images, Tokens
from tests.support import written
from tests.support.paper_tasks import tasks
from tests.support.points import TASK, changed

# The feeds: real digits, pictures in memory and noise, cut into shards.

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
    np.testing.assert_allclose(bilinear(33, 8).sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(bilinear(224, 28).sum(axis=1), 1, rtol=1e-6)


def test_digits_are_normalised_and_keep_their_digit() -> None:
    images, labels = digits(32, 24)
    assert images.shape == (COUNT, 1, 32, 24)
    assert images.dtype == np.float32
    assert abs(images.mean()) < 1e-3
    assert abs(images.std() - 1) < 1e-3
    assert labels.dtype == np.int64
    assert sorted(set(labels.tolist())) == list(range(10))


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


def test_feeds_of_a_process_share_what_none_of_them_can_write_to() -> None:
    images, labels = digits(32, 32)
    assert digits(32, 32)[0] is images
    with pytest.raises(ValueError, match="read-only"):
        images[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        labels[0] = 0
    batch, names = Digits(DIGITS, "train").take(np.arange(4))
    assert batch.flags.writeable and names.flags.writeable


def test_all_channels_are_alike() -> None:
    images, _ = Digits(Images(channels=3, height=40, width=48), "train").take(np.arange(5))
    assert images.shape == (5, 3, 40, 48)
    assert images.flags.c_contiguous
    np.testing.assert_array_equal(images[:, 0], images[:, 2])


# ---------------------------------------------------------------- pictures in memory


def pixels(images: Images, channels: int = 1) -> Pixels:
    shown = np.arange(6 * channels * 4 * 4, dtype=np.uint8).reshape(6, channels, 4, 4)
    mean, deviation = (0.5, 0.25, 0.2)[:channels], (0.25, 0.5, 0.1)[:channels]
    spec = replace(data.spec("mnist"), mean=mean, deviation=deviation)
    return Pixels(shown, np.arange(6), spec, images)


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


def task(model: str, name: str, rank: int = 0, *, size: int = 2, batch_size: int = 6, data_dir: str = "") -> Task:
    made = tasks("torch:gloo", "exchange", size, model=model, data=name, batch_size=batch_size)
    return replace(made[rank], data_dir=data_dir)


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(data.CATALOGUE, "mnist", written.few("mnist"))
    return str(written.idx(tmp_path))


@pytest.mark.parametrize("name", ["digits", "synthetic", "mnist"])
def test_feed_of_a_task(name: str, mnist: str) -> None:
    spec = models.spec("mnist-mlp")
    first, second = (task("mnist-mlp", name, rank, data_dir=mnist) for rank in (0, 1))
    batches = [feeds.feed(one, spec).batch(0) for one in (first, second)]
    for images, labels in batches:
        assert images.shape == (6, *spec.input.shape) and images.dtype == np.float32
        assert labels.shape == (6,) and labels.dtype == np.int64
        assert labels.max() < 10
    assert not np.array_equal(batches[0][0], batches[1][0])
    np.testing.assert_array_equal(feeds.feed(first, spec).batch(0)[0], batches[0][0])
    assert not np.array_equal(feeds.feed(replace(first, seed=2), spec).batch(0)[0], batches[0][0])


@pytest.mark.parametrize("name", ["digits", "synthetic", "mnist"])
def test_images_of_one_channel_have_the_strides_of_any(name: str, mnist: str) -> None:
    """Torch would else take them for channels_last, and convolve by other kernels than for --memory-format
    contiguous."""
    spec = models.spec("mnist-mlp")
    images, _ = feeds.feed(task("mnist-mlp", name, data_dir=mnist), spec).batch(0)
    assert images.strides == np.empty(images.shape, np.float32).strides


def test_shards_of_held_out_pictures_are_complete(mnist: str) -> None:
    spec = models.spec("mnist-mlp")
    seen = [
        (bytes(image), label)
        for rank in range(3)
        for images, labels in feeds.shard(task("mnist-mlp", "mnist", rank, size=3, data_dir=mnist), spec)
        for image, label in zip(images, labels, strict=True)
    ]
    assert len(seen) == len({image for image, _ in seen}) == 12
    assert sorted(label for _, label in seen) == sorted(n % 10 for n in range(12))
    assert len(feeds.samples(task("mnist-mlp", "mnist", data_dir=mnist), spec, "train")) == 40


def test_labels_stay_with_their_images(mnist: str) -> None:
    """Image n begins with pixel n, and has the label n % 10."""
    spec = models.spec("mnist-mlp")
    known = data.spec("mnist")
    images, labels = feeds.feed(task("mnist-mlp", "mnist", data_dir=mnist), spec).batch(4)
    first = np.rint((images[:, 0, 0, 0] * known.deviation[0] + known.mean[0]) * 255).astype(int)
    assert (first % 10).tolist() == labels.tolist()


def test_pictures_are_read_once_for_all_feeds_of_a_process(mnist: str) -> None:
    spec = models.spec("mnist-mlp")
    made = [feeds.samples(task("mnist-mlp", "mnist", rank, data_dir=mnist), spec, "train") for rank in (0, 1)]
    assert made[0] is made[1]


def test_check_opens_the_files(mnist: str) -> None:
    spec = models.spec("mnist-mlp")
    assert feeds.check("mnist", mnist, spec, ("train", "test")) == mnist
    assert feeds.check("digits", "", spec) == ""
    Path(mnist, "train-images-idx3-ubyte").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="train-images-idx3-ubyte: magic number"):
        feeds.check("mnist", mnist, spec)
    with pytest.raises(UsageError, match="--data mnist: has images"):
        feeds.check("mnist", mnist, models.spec("gpt2"))


# ---------------------------------------------------------------- made up


def test_synthetic_is_one_batch_of_each_rank() -> None:
    spec = models.spec("resnet50")
    spec = replace(spec, input=Images(channels=3, height=8, width=8))
    first = feeds.feed(task("resnet50", "synthetic", batch_size=16), spec)
    images, labels = first.batch(0)
    assert first.fixed
    assert images.shape == (16, 3, 8, 8)
    assert images.dtype == np.float32
    assert labels.shape == (16,)
    assert 0 <= labels.min() <= labels.max() < 1000
    assert abs(images.mean()) < 0.1
    assert abs(images.std() - 1) < 0.1
    assert first.batch(1)[0] is images
    again = feeds.feed(task("resnet50", "synthetic", batch_size=16), spec)
    np.testing.assert_array_equal(again.batch(0)[0], images)
    other = feeds.feed(task("resnet50", "synthetic", 1, batch_size=16), spec)
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
    assert labels.shape == shape
    assert labels.max() < below


def test_of_kind_held_every_step_has_the_batch_of_the_first() -> None:
    (task, _) = tasks("torch:plain", "together", 2)
    model = models.of(task.point.workload)
    fed = feeds.feed(task, model)
    held = feeds.feed(replace(task, point=replace(task.point, kind="held")), model)
    assert held.fixed and not fed.fixed
    for step in (0, 1, 7):
        assert all(np.array_equal(a, b) for a, b in zip(held.batch(step), fed.batch(0), strict=True))


def test_of_kind_feed_steps_are_batches_and_nothing_is_trained() -> None:
    (task, _) = tasks("torch:plain", "together", 2)
    trainer = feeding.connect(replace(task, point=replace(task.point, kind="feed")))
    for _ in range(3):
        trainer.step()
    assert trainer.samples == 3 * task.point.workload.batch_size
    assert (trainer.loss(), trainer.digest(), trainer.parameters) == (None, None, 0)


# Who is fed with which samples: shards that are disjoint and complete, in an order that is a pure function.


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


# A part of the samples: the same for every rank and seed, of each class as many as there can be.

REGIME = Regime(epochs=1, seed=0, rate=0.1, base_rate=0.1, base_batch=32)


def test_classes_take_turns_until_one_is_used_up() -> None:
    labels = np.array([0] * 50 + [1] * 3 + [2] * 47)
    for count, wanted in ((3, [1, 1, 1]), (9, [3, 3, 3]), (13, [5, 3, 5]), (100, [50, 3, 47])):
        assert np.bincount(labels[chosen(100, count, labels)]).tolist() == wanted
    assert sorted(np.bincount(labels[chosen(100, 7, labels)])) == [2, 2, 3]


def test_a_larger_part_contains_the_smaller_and_is_drawn_all_over() -> None:
    labels = np.arange(1000) % 10
    small, large = chosen(1000, 100, labels), chosen(1000, 200, labels)
    assert set(small) < set(large)
    assert small.tolist() == sorted(small)
    assert small[0] < 100 and small[-1] > 900
    assert small.tolist() != list(range(small[0], small[0] + 100))


def test_without_classes_it_is_drawn_from_all() -> None:
    assert len(set(chosen(1000, 100, None))) == 100


def test_a_sample_keeps_its_label() -> None:
    images = models.spec("digits-cnn").input
    whole = feeds.samples(changed_task(), models.spec("digits-cnn"), "train")
    part = Part(whole, 40)
    shown, labels = part.take(np.arange(40), (0,))
    assert shown.shape == (40, *images.shape)
    assert np.bincount(labels).tolist() == [4] * 10
    everything, names = whole.take(np.arange(len(whole)), (0,))
    by_content = {one.tobytes(): name for one, name in zip(everything, names, strict=True)}
    assert [by_content[one.tobytes()] for one in shown] == labels.tolist()


def changed_task(**fields: Any) -> Any:
    return replace(TASK, point=changed(TASK.point, kind="train", regime=replace(REGIME, **fields)))


def test_a_point_has_as_many_as_it_asks_for_on_all_ranks_and_seeds() -> None:
    spec = models.spec("digits-cnn")
    task = changed_task(train_samples=100, test_samples=20)
    assert [len(feeds.samples(task, spec, split)) for split in ("train", "test")] == [100, 20]
    assert [feeds.whole(task, spec, split) for split in ("train", "test")] == [1437, 360]
    assert len(feeds.samples(changed_task(), spec, "train")) == 1437
    other = replace(task, rank=1, seed=5)
    here, there = (feeds.samples(one, spec, "test").take(np.arange(20), (0,)) for one in (task, other))
    assert np.array_equal(here[0], there[0])


def test_pictures_in_folders_are_balanced_and_records_drawn(tmp_path: Path) -> None:
    written.folders(tmp_path / "train", {"ape": 6, "bee": 2})
    spec = replace(models.spec("digits-cnn"), name="mine")
    work = {"data": "folders", "data_dir": str(tmp_path)}
    task = replace(changed_task(train_samples=4), data_dir=str(tmp_path))
    task = replace(task, point=changed(task.point, data=work["data"]))
    part = feeds.samples(task, spec, "train")
    assert part.take(np.arange(4), (0,))[1].tolist() == [0, 0, 1, 1]


def test_a_part_of_more_than_there_is(tmp_path: Path) -> None:
    """Of the user's own pictures nobody knows how many there are until they are looked at."""
    written.folders(tmp_path / "train", {"ape": 3, "bee": 2})
    model = models.spec("digits-cnn")
    with pytest.raises(UsageError, match="--train-samples 6: --data folders has 5 in its train split; take fewer"):
        feeds.check("folders", str(tmp_path), model, ("train",), {"train": 6})
    assert feeds.check("folders", str(tmp_path), model, ("train",), {"train": 5}) == str(tmp_path)
    data.check_part("folders", "train", 6, None)


# Rates and steps of a training to an accuracy, by hand.

SCHEDULE_REGIME = Regime(epochs=10, seed=0, rate=0.4, base_rate=0.1, base_batch=32)


@pytest.mark.parametrize(("rule", "rate"), [("linear", 0.4), ("sqrt", 0.1 * sqrt(4)), ("none", 0.1)])
def test_a_rate_grows_with_the_update_by_its_rule(rule: str, rate: float) -> None:
    assert schedule.scaled(0.1, rule, 4) == pytest.approx(rate)  # type: ignore[arg-type]


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
    regime = replace(SCHEDULE_REGIME, warmup_epochs=2, lr_steps=(5, 8))
    found = [schedule.rate(regime, epochs) for epochs in (0, 1, 1.5, 2, 4.9, 5, 7.9, 8, 9.9)]
    assert found == pytest.approx([0.1, 0.25, 0.325, 0.4, 0.4, 0.04, 0.04, 0.004, 0.004])
    assert schedule.varies(regime)
    assert not schedule.varies(SCHEDULE_REGIME)
