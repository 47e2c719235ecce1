"""A part of the samples: the same for every rank and seed, of each class as many as there can be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.records.point import Regime
from scaling.workloads import data, feeds, models
from scaling.workloads.feeds.batches import Part, chosen
from tests.support import written
from tests.support.points import TASK, changed

REGIME = Regime(epochs=1, seed=0, rate=0.1, base_rate=0.1, base_batch=32)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    feeds.forget()
    yield
    feeds.forget()


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
