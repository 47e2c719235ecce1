"""Pictures in RecordIO and TFRecord files: what they hold, and what is refused."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.workloads import data, feeds, models
from scaling.workloads.data import frames, recordio, tfrecord
from tests.support import written
from tests.support.paper_tasks import one_task

MINE = data.spec("folders")


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    feeds.forget()
    yield
    feeds.forget()


# ---------------------------------------------------------------- RecordIO


def labelled(label: float, content: bytes, *more: float) -> bytes:
    head = struct.pack("<If2Q", len(more), label, 7, 0)
    return head + struct.pack(f"<{len(more)}f", *more) + content


def recorded(tmp_path: Path, *contents: bytes) -> frames.Records:
    (tmp_path / "train.rec").write_bytes(b"".join(contents))
    return recordio.records(tmp_path, data.spec("recordio"), "train")


def test_recordio(tmp_path: Path) -> None:
    found = recorded(
        tmp_path, written.record(labelled(3.0, b"first")), written.record(labelled(0.0, b"second!", 5.0, 9.0))
    )
    assert [found.read(index) for index in range(len(found))] == [(b"first", 3), (b"second!", 5)]


def test_a_record_that_has_the_magic_number_comes_in_parts(tmp_path: Path) -> None:
    magic = struct.pack("<I", 0xCED7230A)
    content = labelled(1.0, b"") + b"abcd" + magic + b"efgh" + magic + b"ij"
    first, second, third = content.split(magic)
    parts = [
        struct.pack("<2I", 0xCED7230A, flag << 29 | len(part)) + part + bytes(-len(part) % 4)
        for flag, part in ((1, first), (2, second), (3, third))
    ]
    found = recorded(tmp_path, *parts, written.record(labelled(2.0, b"next")))
    assert [found.read(index) for index in range(len(found))] == [
        (b"abcd" + magic + b"efgh" + magic + b"ij", 1),
        (b"next", 2),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"some other file", "no RecordIO at 0: the magic number is not 0xced7230a"),
        (written.record(labelled(1, b"abcd"))[:-3], "cut off at 33 bytes, within the record at 0"),
    ],
)
def test_files_that_are_no_recordio(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(UsageError, match=rf"train\.rec: {said}"):
        recorded(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"ab", "a record of 2 bytes, shorter than IRHeader"),
        (labelled(1.5, b""), "label 1.5, expected a class"),
        (labelled(math.inf, b""), "label inf, expected a class"),
        (labelled(1e30, b""), r"label 1\.0\d*e\+30, expected a class"),
        (struct.pack("<If2Q", 1000, 0.0, 7, 0), "a record of 24 bytes, shorter than its 1,000 labels"),
    ],
)
def test_records_that_hold_no_picture(tmp_path: Path, content: bytes, said: str) -> None:
    found = recorded(tmp_path, written.record(labelled(0, b"fine")), written.record(content))
    with pytest.raises(UsageError, match=rf"train\.rec at \d+: {said}"):
        found.read(1)


# ---------------------------------------------------------------- TFRecord


def field(number: int, content: bytes) -> bytes:
    assert len(content) < 1 << 14
    return bytes([number << 3 | 2, len(content) & 0x7F | 0x80, len(content) >> 7]) + content


def example(picture: bytes, label: int, *, packed: bool = True) -> bytes:
    # Ten bytes of seven bits hold a negative one, as 64 bits have it.
    number = bytes([label]) if label >= 0 else bytes([label & 0x7F | 0x80, *[0xFF] * 8, 1])
    numbers = field(1, number) if packed else bytes([8]) + number
    features = {
        b"image/colorspace": field(1, field(1, b"RGB")),
        b"image/object/bbox": field(2, field(1, struct.pack("<f", 0.5))),
        b"image/class/label": field(3, numbers),
        b"image/encoded": field(1, field(1, picture)),
    }
    return field(1, b"".join(field(1, field(1, name) + field(2, value)) for name, value in features.items()))


def framed(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", tfrecord.masked_crc(length)) + content + struct.pack("<I", 0)


def test_crc_32c_of_the_catalogue() -> None:
    """0xE3069283 is its check value for "123456789" in every catalogue of CRCs."""
    crc = 0xE3069283
    assert tfrecord.masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_tfrecords_of_several_files(tmp_path: Path) -> None:
    for number in range(3):
        contents = [example(b"x" * (300 + number), 1 + number, packed=number != 1), example(b"y", 9)]
        (tmp_path / f"train-0000{number}-of-00003").write_bytes(b"".join(map(framed, contents)))
    spec = data.spec("imagenet-tfrecord")
    found = tfrecord.records(tmp_path, spec, "train")
    # Labels count from 1 there, from 0 here.
    assert [(len(content), label) for content, label in map(found.read, range(len(found)))] == [
        (300, 0), (1, 8), (301, 1), (1, 8), (302, 2), (1, 8)
    ]  # fmt: skip
    (tmp_path / "train-00001-of-00003").unlink()
    with pytest.raises(UsageError, match=r"2 files train-\*-of-\*, expected 3 by their names"):
        tfrecord.records(tmp_path, spec, "train")


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_no_more_files_are_open_than_a_process_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MOST_OPEN", 2)
    for number in range(5):
        (tmp_path / f"train-0000{number}-of-00005").write_bytes(framed(example(b"p", 1 + number)))
    before = open_files()
    found = tfrecord.records(tmp_path, data.spec("tfrecord"), "train")
    assert [found.read(index)[1] for index in (0, 1, 2, 3, 4, 0)] == [0, 1, 2, 3, 4, 0]
    assert open_files() == before + 2
    found.close()
    assert open_files() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"some other file", "no TFRecord at 0: the checksum of its length does not hold"),
        (framed(b"abc")[:-2], "cut off at 17 bytes, within the record at 0"),
    ],
)
def test_files_that_are_no_tfrecords(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "train-00000-of-00001").write_bytes(content)
    with pytest.raises(UsageError, match=rf"of-00001: {said}"):
        tfrecord.records(tmp_path, data.spec("tfrecord"), "train")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x0b", "no protocol buffer: a field of kind 3"),
        (b"", "an Example without image/encoded and image/class/label"),
        (example(b"p", 0), "image/class/label is 0, expected a number from 1"),
        (example(b"p", -4), "image/class/label is -4, expected a number from 1"),
        (b"\x80\x80", "index out of range"),
    ],
)
def test_examples_that_hold_no_picture(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "train-00000-of-00001").write_bytes(framed(content))
    found = tfrecord.records(tmp_path, data.spec("tfrecord"), "train")
    with pytest.raises(UsageError, match=rf"of-00001 at 12: {said}"):
        found.read(0)


@pytest.mark.parametrize("name", ["recordio", "tfrecord"])
def test_a_feed_of_records(tmp_path: Path, name: str) -> None:
    shown = [written.picture(20 * label) for label in range(10)]
    if name == "recordio":
        recorded(tmp_path, *(written.record(labelled(label, one)) for label, one in enumerate(shown)))
    else:
        contents = [framed(example(one, 1 + label)) for label, one in enumerate(shown)]
        (tmp_path / "train-00000-of-00001").write_bytes(b"".join(contents))
    spec = models.spec("cifar10-cnn")
    place = str(tmp_path)
    assert feeds.check(name, place, spec) == place
    task = replace(one_task(model="cifar10-cnn", data=name, batch_size=10), data_dir=place)
    images, labels = feeds.feed(task, spec).batch(0)
    red = np.rint((images[:, 0, 9, 9] * MINE.deviation[0] + MINE.mean[0]) * 255)
    assert (red // 20).tolist() == labels.tolist()
    assert sorted(labels.tolist()) == list(range(10))
    few = replace(spec, target=replace(spec.target, count=9))
    with pytest.raises(UsageError, match=rf"--data {name}: .* is of class 9, the model has 9"):
        feeds.check(name, place, few)


@pytest.mark.parametrize(("name", "file"), [("recordio", "train.rec"), ("tfrecord", "train-00000-of-00001")])
def test_files_without_a_record(tmp_path: Path, name: str, file: str) -> None:
    (tmp_path / file).touch()
    with pytest.raises(UsageError, match=rf"{file}: no records in it$"):
        feeds.check(name, str(tmp_path), models.spec("resnet50"))
