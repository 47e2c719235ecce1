"""Rows of tokens and reviews, as models learn them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.workloads import data, feeds, models
from scaling.workloads.feeds.sequences import Windows, hide
from scaling.workloads.specs import IGNORED, Classes, MaskedTokens, NextToken, Target, Tokens
from tests.support import written
from tests.support.paper_tasks import one_task

ROW = np.arange(100, 130, dtype=np.uint16)
FOUR = Tokens(length=4, words=200)


def test_the_next_token_at_each_place_or_after_windows_three_apart() -> None:
    windows, apart = Windows(ROW, FOUR, NextToken()), Windows(ROW, FOUR, Classes(count=200))
    # Seven windows of four do not overlap, and the last token of all is only ever a label.
    assert (len(windows), len(apart)) == (7, len(range(0, 30 - 4, 3)))
    tokens, labels = windows.take(np.array([0, 6]), ())
    assert tokens.tolist() == [[100, 101, 102, 103], [124, 125, 126, 127]]
    assert labels.tolist() == [[101, 102, 103, 104], [125, 126, 127, 128]]
    assert tokens.dtype == labels.dtype == np.int64
    tokens, labels = apart.take(np.array([0, 8]), ())
    assert tokens.tolist() == [[100, 101, 102, 103], [124, 125, 126, 127]]
    assert labels.tolist() == [104, 128]


@pytest.mark.parametrize(
    ("length", "target", "count"),
    [(29, NextToken(), 1), (26, Classes(count=200), 2), (14, NextToken(), 2), (15, NextToken(), 1)],
)
def test_windows_end_with_the_row(length: int, target: Target, count: int) -> None:
    windows = Windows(ROW, Tokens(length=length, words=200), target)
    assert len(windows) == count
    windows.take(np.array([count - 1]), ())
    with pytest.raises(IndexError):
        windows.take(np.array([count]), ())


def test_rows_that_a_model_cannot_read() -> None:
    with pytest.raises(UsageError, match="--data-dir: 30 tokens, at least 31 are needed"):
        Windows(ROW, Tokens(length=30, words=200), NextToken())
    with pytest.raises(UsageError, match="has token 129, the model has 129 words"):
        Windows(ROW, Tokens(length=4, words=129), NextToken())


def test_a_large_row_is_looked_at_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaling.workloads.feeds.sequences.LOOKED_AT", 10)
    windows = Windows(ROW, Tokens(length=4, words=129), NextToken())
    windows.take(np.array([6]), ())
    windows = Windows(ROW, Tokens(length=4, words=128), NextToken())
    with pytest.raises(UsageError, match="has token 128, the model has 128 words"):
        windows.take(np.array([6]), ())


# ---------------------------------------------------------------- masked


def test_a_share_of_the_tokens_is_hidden_and_learnt() -> None:
    tokens = np.random.default_rng(0).integers(1, 5000, size=(200, 128))
    shown, labels = hide(tokens, 5000, 0.15, np.random.default_rng(1))
    learnt = labels != IGNORED
    assert learnt.mean() == pytest.approx(0.15, abs=0.01)
    np.testing.assert_array_equal(labels[learnt], tokens[learnt])
    np.testing.assert_array_equal(shown[~learnt], tokens[~learnt])
    assert (shown[learnt] == 0).mean() == pytest.approx(0.8, abs=0.02)
    assert (shown[learnt] == tokens[learnt]).mean() == pytest.approx(0.1, abs=0.02)
    assert 0 <= shown.min() <= shown.max() < 5000


@pytest.mark.parametrize(("length", "hidden"), [(128, 19), (64, 10), (8, 1), (3, 1), (1, 1)])
def test_as_many_tokens_of_every_sequence_are_hidden_and_never_none(length: int, hidden: int) -> None:
    """A micro-batch without any has no mean: its loss and all weights were NaN from there on."""
    _, labels = hide(np.ones((500, length), np.int64), 256, 0.15, np.random.default_rng(1))
    assert set((labels != IGNORED).sum(axis=1)) == {hidden}
    assert (labels != IGNORED).any(axis=0).all()


def test_the_mask_of_berts_vocabulary() -> None:
    shown, labels = hide(np.full((1, 1000), 7), 30_522, 0.15, np.random.default_rng(1))
    assert (shown[labels == 7] == 103).mean() > 0.7


def test_what_is_hidden_is_a_function_of_seed_rank_and_step() -> None:
    windows = Windows(
        np.arange(4000, dtype=np.uint16) % 200, Tokens(length=100, words=200), MaskedTokens(share=0.15)
    )
    first = windows.take(np.arange(8), (1, 0, 5))
    np.testing.assert_array_equal(windows.take(np.arange(8), (1, 0, 5))[1], first[1])
    for other in ((2, 0, 5), (1, 1, 5), (1, 0, 6)):
        assert not np.array_equal(windows.take(np.arange(8), other)[1], first[1])


# ---------------------------------------------------------------- feeds of tasks


@pytest.mark.parametrize(
    ("model", "name", "labels"),
    [
        ("gpt2-tiny", "tokens", (4, 64)),
        ("bert-tiny", "tokens", (4, 64)),
        ("nietzsche-lstm", "nietzsche", (4,)),
        ("gpt2-tiny", "nietzsche", (4, 64)),
    ],
)
def test_a_text_feeds_models_of_tokens(tmp_path: Path, model: str, name: str, labels: tuple[int, ...]) -> None:
    file = tmp_path / "some.txt"
    file.write_text("All the world's a stage, and all the men and women merely players. " * 40)
    spec = models.spec(model)
    task = replace(one_task(model=model, data=name), data_dir=str(file))
    assert feeds.check(name, str(file), spec, ("train", "test")) == str(file)
    feed = feeds.feed(task, spec)
    assert not feed.fixed
    tokens, learnt = feed.batch(3)
    assert (tokens.shape, learnt.shape) == ((4, *spec.input.shape), labels)
    np.testing.assert_array_equal(feeds.feed(task, spec).batch(3)[0], tokens)
    once, again = (list(feeds.shard(task, spec)) for _ in range(2))
    for (left, right), (same, alike) in zip(once, again, strict=True):
        np.testing.assert_array_equal(left, same)
        np.testing.assert_array_equal(right, alike)
    assert sum(len(right) for _, right in once) == len(feeds.samples(task, spec, "test"))


@pytest.mark.parametrize(("name", "kinds"), [("nietzsche", 100), ("tokens", 256)])
def test_more_kinds_of_tokens_than_a_model_has_words(tmp_path: Path, name: str, kinds: int) -> None:
    file = tmp_path / "some.txt"
    file.write_text("".join(map(chr, range(0x4E00, 0x4E00 + 100))))
    said = f"--data {name}: has {kinds} kinds of tokens, the model has 57 words"
    with pytest.raises(UsageError, match=said):
        feeds.check(name, str(file), models.spec("nietzsche-lstm"))


def test_reviews_feed_a_model_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(data.CATALOGUE, "imdb", written.few("imdb", {"train": 20, "test": 6}))
    place = str(written.reviews(tmp_path / "aclImdb"))
    spec = models.spec("imdb-lstm")
    assert feeds.check("imdb", str(tmp_path), spec, ("train", "test")) == place
    task = replace(one_task(model="imdb-lstm", data="imdb"), data_dir=place)
    reviews, labels = feeds.feed(task, spec).batch(0)
    assert (reviews.shape, labels.shape) == ((4, 100), (4,))
    # `great` is word 8, `awful` word 9.
    assert [8 in review for review in reviews.tolist()] == [label == 1 for label in labels]
