"""Published formats, read from files that were written by hand, and refused where they are something else."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scaling.errors import UsageError
from scaling.workloads import data
from scaling.workloads.data import images, texts
from scaling.workloads.feeds import sequences
from scaling.workloads.specs import NextToken, Tokens
from tests.support import written
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


def test_words_beyond_the_models_are_unknown(tmp_path: Path) -> None:
    spec = few("imdb", {"train": 20, "test": 6})
    found, _ = texts.read_reviews(written.reviews(tmp_path), spec, "test", length=8, words=8)
    assert found[0].tolist() == [1, 4, 7, 5, 4, 2, 2, 2]
    assert texts.vocabulary(tmp_path / "imdb.vocab", 3) == {}


def test_reviews_that_are_too_few_or_no_text(tmp_path: Path) -> None:
    written.reviews(tmp_path)
    with pytest.raises(UsageError, match="20 samples, expected 25,000 of --data imdb"):
        texts.read_reviews(tmp_path, data.spec("imdb"), "train", length=8, words=8)
    (tmp_path / "train/pos/3_9.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"pos/3_9\.txt: not UTF-8 text"):
        texts.read_reviews(tmp_path, data.spec("imdb"), "train", length=8, words=8)


# ---------------------------------------------------------------- rows of tokens

TOKENS = data.spec("tokens")


def test_tokens_of_nanogpt(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(struct.pack("<1000H", *range(1000)))
    (tmp_path / "val.bin").write_bytes(struct.pack("<3H", 50_256, 1, 2))
    row, kinds = texts.read_tokens(tmp_path, TOKENS, "train")
    assert (row[:3].tolist(), len(row), kinds) == ([0, 1, 2], 1000, 0)
    assert texts.read_tokens(tmp_path, TOKENS, "test")[0][:].tolist() == [50_256, 1, 2]
    row, _ = texts.read_tokens(tmp_path / "train.bin", TOKENS, "test")
    assert row[:].tolist() == list(range(900, 1000))


def llm_c(magic: int, version: int, count: int) -> bytes:
    return struct.pack("<256i", magic, version, count, *[0] * 253)


def test_tokens_of_llm_c(tmp_path: Path) -> None:
    for name, content in {
        "fineweb_train_000001.bin": llm_c(20240520, 1, 4) + struct.pack("<4H", 5, 6, 7, 8),
        "fineweb_train_000002.bin": llm_c(20240520, 1, 1) + struct.pack("<H", 9),
        "fineweb_val_000000.bin": llm_c(20240801, 7, 2) + struct.pack("<2I", 128_000, 3),
    }.items():
        (tmp_path / name).write_bytes(content)
    assert texts.read_tokens(tmp_path, TOKENS, "train")[0][:9].tolist() == [5, 6, 7, 8, 9]
    assert texts.read_tokens(tmp_path, TOKENS, "test")[0][:].tolist() == [128_000, 3]


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
    found = sequences.Windows(row, Tokens(length=6, words=64), NextToken())
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


def test_a_text_is_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("é" + 8 * "a")
    row, kinds = texts.read_tokens(file, TOKENS, "train")
    assert (row[:].tolist(), kinds) == ([0xC3, 0xA9, *[97] * 7], 256)
    assert texts.read_tokens(file, TOKENS, "test")[0][:].tolist() == [97]


def test_characters_are_numbered_as_they_are_sorted(tmp_path: Path) -> None:
    (tmp_path / "nietzsche.txt").write_text("Cba bé\n" + "a" * 3)
    spec = data.spec("nietzsche")
    row, kinds = texts.read_tokens(tmp_path, spec, "train")
    assert (row[:].tolist(), kinds) == ([4, 3, 2, 1, 3, 5, 0, 2, 2], 6)
    assert texts.read_tokens(tmp_path / "nietzsche.txt", spec, "test")[0][:].tolist() == [2]
    (tmp_path / "nietzsche.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"nietzsche\.txt: not UTF-8 text"):
        texts.read_tokens(tmp_path, spec, "train")
