"""Published formats, written by hand and refused if they are something else, and texts as models learn them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.workloads import data, feeds, models
from scaling.workloads.data import Split, images, texts
from scaling.workloads.feeds.batches import Windows, hide
from scaling.workloads.specs import IGNORED, Classes, MaskedTokens, NextToken, Target, Tokens
from tests.support import written
from tests.support.paper_tasks import one_task
from tests.support.written import few


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files(tmp_path: Path, packed: bool) -> None:
    place = written.idx(tmp_path, packed=packed)
    pixels, labels = images.read_idx(place, few("mnist"), "train")
    assert pixels.shape == (40, 1, 28, 28) and pixels.dtype == np.uint8
    assert pixels[3, 0, 1, 2] == 3 + 28 + 2
    assert labels.tolist() == [n % 10 for n in range(40)] and labels.dtype == np.int64
    assert len(images.read_idx(place, few("mnist"), "test")[1]) == 12


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("train-images-idx3-ubyte", struct.pack(">4I", 2049, 40, 28, 28), "magic number 2049, expected 2051"),
        ("train-images-idx3-ubyte", b"\x1f\x8b", "magic number 8075, expected 2051"),
        ("train-images-idx3-ubyte", struct.pack(">2I", 2051, 40), "8 bytes, shorter than its header"),
        ("train-images-idx3-ubyte", struct.pack(">4I", 2051, 40, 28, 28), "16 bytes, expected 31,376 for (40, 28"),
        ("train-labels-idx1-ubyte", struct.pack(">2I", 2049, 3) + b"abc", "40 images, but 3 labels in "),
        ("train-labels-idx1-ubyte", struct.pack(">2I", 2051, 3), "magic number 2051, expected 2049"),
        ("train-labels-idx1-ubyte", struct.pack(">2I", 2049, 40) + b"\x0a" * 40, "label 10, expected 0 to 9"),
        ("train-images-idx3-ubyte", struct.pack(">4I", 2051, 40, 0, 28), "40 x 0 x 28 pixels, which is none"),
    ],
)
def test_idx_files_that_are_none(tmp_path: Path, file: str, content: bytes, said: str) -> None:
    place = written.idx(tmp_path)
    (place / file).write_bytes(content)
    with pytest.raises(UsageError) as refused:
        images.read_idx(place, few("mnist"), "train")
    assert said in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_another_count_than_was_published_and_packed_files_that_were_cut_off(tmp_path: Path) -> None:
    place = written.idx(tmp_path, packed=True)
    with pytest.raises(UsageError, match=r"40 samples, expected 60,000 of --data mnist \(train\)"):
        images.read_idx(place, data.spec("mnist"), "train")
    file = place / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(UsageError, match=r"images-idx3-ubyte\.gz: cannot be read: "):
        images.read_idx(place, few("mnist"), "train")


def test_cifar_records(tmp_path: Path) -> None:
    spec = few("cifar10", {"train": 40, "test": 8})
    pixels, labels = images.read_cifar(written.cifar(tmp_path), spec, "train")
    assert pixels.shape == (40, 3, 32, 32)
    assert pixels[0, :, 5, 7].tolist() == [10, 20, 30]
    assert pixels[39, :, 0, 0].tolist() == [14, 24, 34]
    assert labels[:9].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 1]
    assert len(images.read_cifar(tmp_path, spec, "test")[1]) == 8


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda whole: whole[:-1], "24,583 bytes, expected 24,584: 8 records of 3,073"),
        (lambda whole: b"\x0b" + whole[1:], "label 11, expected 0 to 9"),
    ],
)
def test_cifar_files_that_are_none(tmp_path: Path, spoil: Callable[[bytes], bytes], said: str) -> None:
    spec, file = few("cifar10", {"train": 40, "test": 8}), written.cifar(tmp_path) / "data_batch_2.bin"
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(UsageError, match=rf"data_batch_2\.bin: {said}"):
        images.read_cifar(tmp_path, spec, "train")
    file.unlink()
    with pytest.raises(UsageError, match=r"data_batch_2\.bin: cannot be read: No such file"):
        images.read_cifar(tmp_path, spec, "train")


def test_reviews_as_the_keras_example_has_them(tmp_path: Path) -> None:
    spec = few("imdb", {"train": 20, "test": 6})
    found, labels = texts.read_reviews(written.reviews(tmp_path), spec, "train", length=12, words=20_000)
    assert labels.tolist() == [0] * 10 + [1] * 10
    # start; the film and the; awful or great, !, and what no vocabulary has. Padding stands in front.
    assert found[0].tolist() == [0, 0, 0, 0, 1, 4, 7, 5, 4, 9, 10, 2]
    assert found[10].tolist() == [0, 0, 0, 0, 1, 4, 7, 5, 4, 8, 10, 2]
    # A long one loses its beginning.
    assert found[9].tolist() == [6] * 9 + [9, 10, 2]
    # Words beyond the model's are unknown.
    for words, wanted in ((8, [1, 4, 7, 5, 4, 2, 2, 2]), (3, [1, 2, 2, 2, 2, 2, 2, 2])):
        found, _ = texts.read_reviews(tmp_path, spec, "test", length=8, words=words)
        assert found[0].tolist() == wanted


def test_reviews_that_are_too_few_or_no_text(tmp_path: Path) -> None:
    written.reviews(tmp_path)
    with pytest.raises(UsageError, match="20 samples, expected 25,000 of --data imdb"):
        texts.read_reviews(tmp_path, data.spec("imdb"), "train", length=8, words=8)
    (tmp_path / "train/pos/3_9.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"pos/3_9\.txt: not UTF-8 text"):
        texts.read_reviews(tmp_path, data.spec("imdb"), "train", length=8, words=8)


# ---------------------------------------------------------------- rows of tokens

TOKENS = data.spec("tokens")


def llm_c(magic: int, version: int, count: int) -> bytes:
    return struct.pack("<256i", magic, version, count, *[0] * 253)


NANOGPT = {"train.bin": struct.pack("<1000H", *range(1000)), "val.bin": struct.pack("<3H", 50_256, 1, 2)}
LLM_C = {
    "fineweb_train_000001.bin": llm_c(20240520, 1, 4) + struct.pack("<4H", 5, 6, 7, 8),
    "fineweb_train_000002.bin": llm_c(20240520, 1, 1) + struct.pack("<H", 9),
    "fineweb_val_000000.bin": llm_c(20240801, 7, 2) + struct.pack("<2I", 128_000, 3),
}
TEXT = {"mine.txt": ("é" + 8 * "a").encode()}
# Characters are numbered as they are sorted, in lower case.
CHARACTERS = {"nietzsche.txt": ("Cba bé\n" + "a" * 3).encode()}


@pytest.mark.parametrize(
    ("files", "name", "place", "split", "tokens", "kinds"),
    [
        (NANOGPT, "tokens", "", "train", list(range(1000)), 0),
        (NANOGPT, "tokens", "", "test", [50_256, 1, 2], 0),
        (NANOGPT, "tokens", "train.bin", "test", list(range(900, 1000)), 0),
        (LLM_C, "tokens", "", "train", [5, 6, 7, 8, 9], 0),
        (LLM_C, "tokens", "", "test", [128_000, 3], 0),
        (TEXT, "tokens", "mine.txt", "train", [0xC3, 0xA9, *[97] * 7], 256),
        (TEXT, "tokens", "mine.txt", "test", [97], 256),
        (CHARACTERS, "nietzsche", "", "train", [4, 3, 2, 1, 3, 5, 0, 2, 2], 6),
        (CHARACTERS, "nietzsche", "nietzsche.txt", "test", [2], 6),
    ],
)
def test_tokens(
    tmp_path: Path, files: dict[str, bytes], name: str, place: str, split: Split, tokens: list[int], kinds: int
) -> None:
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    row, found = texts.read_tokens(tmp_path / place, data.spec(name), split)
    assert (row[:].tolist(), len(row), found) == (tokens, len(tokens), kinds)


def test_tokens_of_many_files_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    """Ten billion of them lie in a hundred files, and every rank has them."""
    for number in range(3):
        text = llm_c(20240520, 1, 5 * number) + struct.pack(f"<{5 * number}H", *range(10 * number, 15 * number))
        (tmp_path / f"fineweb_train_{number:06}.bin").write_bytes(text)
    row, _ = texts.read_tokens(tmp_path, TOKENS, "train")
    whole = [*range(10, 15), *range(20, 30)]
    assert not isinstance(row, np.ndarray) and {type(one) for one in row._rows} == {np.memmap}
    for first, last in ((0, 15), (2, 4), (3, 12), (5, 99), (15, 20)):
        assert row[first:last].tolist() == whole[first:last]
    places = np.array([[0, 1, 4], [5, 14, 3]])
    assert row[places].tolist() == [[whole[place] for place in line] for line in places]
    with pytest.raises(IndexError):
        row[np.array([15])]
    found = Windows(row, Tokens(length=6, words=64), NextToken())
    assert len(found) == 2
    assert found.take(np.array([1, 0]), ())[1].tolist() == [whole[7:13], whole[1:7]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "0 bytes, expected 16-bit numbers"),
        (b"abc", "3 bytes, expected 16-bit numbers"),
        (llm_c(20240520, 3, 0), r"version 3 of magic 20240520, expected one of llm\.c's"),
        (llm_c(20240520, 1, -256)[:512], "512 bytes, expected 512 for the -256 tokens of its header"),
        (llm_c(20240520, 1, 2) + b"ab", r"1,026 bytes, expected 1,028 for the 2 tokens of its header"),
    ],
)
def test_files_without_tokens(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "train.bin").write_bytes(content)
    with pytest.raises(UsageError, match=rf"train\.bin: {said}"):
        texts.read_tokens(tmp_path, TOKENS, "train")


def test_a_text_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "nietzsche.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"nietzsche\.txt: not UTF-8 text"):
        texts.read_tokens(tmp_path, data.spec("nietzsche"), "train")


# ---------------------------------------------------------------- windows

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
    monkeypatch.setattr("scaling.workloads.feeds.batches.LOOKED_AT", 10)
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
    monkeypatch.setitem(data.CATALOGUE, "imdb", few("imdb", {"train": 20, "test": 6}))
    place = str(written.reviews(tmp_path / "aclImdb"))
    spec = models.spec("imdb-lstm")
    assert feeds.check("imdb", str(tmp_path), spec, ("train", "test")) == place
    task = replace(one_task(model="imdb-lstm", data="imdb"), data_dir=place)
    reviews, labels = feeds.feed(task, spec).batch(0)
    assert (reviews.shape, labels.shape) == ((4, 100), (4,))
    # `great` is word 8, `awful` word 9.
    assert [8 in review for review in reviews.tolist()] == [label == 1 for label in labels]
