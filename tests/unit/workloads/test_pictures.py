"""Pictures in folders and in record files."""

from __future__ import annotations

import math
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.workloads import data, feeds, models
from scaling.workloads.data import images, records
from scaling.workloads.feeds.pictures import decode
from scaling.workloads.specs import Images
from tests.support import written
from tests.support.paper_tasks import one_task

# Pictures in folders: which there are, what they show, and what is refused.

CLASSES = {"ape": 3, "bee": 2, "cat": 4}
MINE = data.spec("folders")


# ---------------------------------------------------------------- folders


def test_a_folder_per_class(tmp_path: Path) -> None:
    written.folders(tmp_path / "train", CLASSES)
    written.folders(tmp_path / "val", {"cat": 1, "ape": 2})
    (tmp_path / "train/bee/notes.txt").write_text("none")
    (tmp_path / "train/.hidden").mkdir()
    tree = images.listing(tmp_path, MINE, "train")
    assert tree.classes == ("ape", "bee", "cat")
    assert tree.labels == (0, 0, 0, 1, 1, 2, 2, 2, 2)
    assert tree.paths[3] == f"{tmp_path}/train/bee/0000.png"
    # Held-out classes keep the numbers of those that are trained on.
    assert images.listing(tmp_path, MINE, "test").labels == (0, 0, 2)


def test_a_million_pictures_are_listed_without_an_object_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [f"{number}.jpg" for number in range(10_000)]
    monkeypatch.setattr(images, "_folders", lambda _: ("ape",))
    monkeypatch.setattr(images, "_in_folder", lambda _: paths)
    tracemalloc.start()
    assert len(images.listing(Path("mine"), MINE, "train")) == len(paths)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 60 * len(paths)


def test_folders_that_are_not_what_was_published(tmp_path: Path) -> None:
    written.folders(tmp_path / "train", CLASSES)
    imagenet = data.spec("imagenet")
    with pytest.raises(UsageError, match="train: 3 folders, expected 1000 classes of --data imagenet"):
        images.listing(tmp_path, imagenet, "train")
    with pytest.raises(UsageError, match="train: 9 samples, expected 1,281,167 of --data imagenet"):
        images.listing(tmp_path, replace(imagenet, classes=3), "train")
    with pytest.raises(UsageError, match="no pictures in its folders"):
        images.listing(written.folders(tmp_path / "none/train", {"a": 0}).parent, MINE, "train")
    written.folders(tmp_path / "val", {"dog": 1})
    with pytest.raises(UsageError, match="val: has dog, which train has not"):
        images.listing(tmp_path, MINE, "test")


FEW = written.few("imagenet", {"train": 9, "test": 3}, classes=3)


BY_NAME = "ImageId,PredictionString\n0002,ape 1 2 3 4 \n0000,cat 5 6 7 8 cat 1 1 1 1\n0001,bee 1 2 3 4\n"


@pytest.mark.parametrize(
    ("name", "content", "unfit", "said"),
    [
        (images.BY_LINE, "cat\nbee\nape\n", b"cat\nbee\n", "2 classes, but 3 pictures"),
        (images.BY_NAME, BY_NAME, BY_NAME.replace("0001", "9999").encode(), r"does not name 0001\.png"),
        (images.BY_LINE, "cat\nbee\nape\n", b"cat\ndog\nape\n", "val: dog is no folder of train"),
        (images.BY_LINE, "cat\nbee\nape\n", b"\xff", "not UTF-8 text"),
    ],
)
def test_a_flat_val_whose_classes_a_file_names(
    tmp_path: Path, name: str, content: str, unfit: bytes, said: str
) -> None:
    written.folders(tmp_path / "train", CLASSES)
    written.folders(tmp_path, {"val": 3})
    with pytest.raises(UsageError, match="val: neither folders of classes, nor imagenet_2012"):
        images.listing(tmp_path, FEW, "test")
    (tmp_path / name).write_text(content)
    assert images.listing(tmp_path, FEW, "test").labels == (2, 1, 0)
    (tmp_path / name).write_bytes(unfit)
    with pytest.raises(UsageError, match=said):
        images.listing(tmp_path, FEW, "test")


def test_in_kaggles_archive_the_classes_stand_far_above_the_pictures(tmp_path: Path) -> None:
    place = tmp_path / "ILSVRC/Data/CLS-LOC"
    written.folders(place / "train", CLASSES)
    written.folders(place, {"val": 3})
    (tmp_path / images.BY_NAME).write_text(BY_NAME)
    assert images.listing(place, FEW, "test").labels == (2, 1, 0)


def test_a_val_without_pictures(tmp_path: Path) -> None:
    written.folders(tmp_path / "train", CLASSES)
    (tmp_path / "val").mkdir()
    (tmp_path / "val/readme.txt").touch()
    (tmp_path / images.BY_LINE).touch()
    with pytest.raises(UsageError, match="val: 0 samples, expected 3"):
        images.listing(tmp_path, FEW, "test")


def test_sixty_of_each_class_of_caltech_train(tmp_path: Path) -> None:
    names = [f"{number:03}.object" for number in range(1, 257)] + ["257.clutter"]
    for name in names:
        (tmp_path / name).mkdir()
    # Links cost less than pictures: only their names are looked at.
    for number in range(62):
        (tmp_path / f"001.object/001_{number:04}.jpg").symlink_to("nowhere")
    for number in range(80):
        (tmp_path / f"257.clutter/257_{number:04}.jpg").symlink_to("nowhere")
    spec = written.few("caltech256", {"train": 120, "test": 22})
    train, test = images.listing(tmp_path, spec, "train"), images.listing(tmp_path, spec, "test")
    assert np.bincount(train.labels)[[0, 256]].tolist() == [60, 60]
    assert np.bincount(test.labels)[[0, 256]].tolist() == [2, 20]
    assert not set(train.paths) & set(test.paths)
    assert images.listing(tmp_path, spec, "train").paths == train.paths
    (tmp_path / "002.object").rmdir()
    with pytest.raises(UsageError, match="256 folders, expected 257 classes of --data caltech256"):
        images.listing(tmp_path, spec, "train")


# ---------------------------------------------------------------- decoding


def test_the_middle_of_a_picture_in_the_models_size() -> None:
    shown = decode(written.picture(200, side=64, kind="JPEG"), Images(channels=3, height=16, width=16))
    assert shown.shape == (3, 16, 16)
    assert abs(shown[:, 5, 5].astype(int) - [200, 100, 50]).max() <= 2
    grey = decode(written.picture(200), Images(channels=1, height=8, width=12))
    assert grey.shape == (1, 8, 12)


BOMB = b"BM" + bytes(8) + (54).to_bytes(4, "little") + (40).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"P6\n4x 4\n255\n", "invalid literal for int"),
        (BOMB + 2 * (1 << 20).to_bytes(4, "little") + b"\1\0\30\0" + bytes(24), "Image size"),
        (b"nothing", "cannot identify image file$"),
    ],
    ids=["damaged", "huge", "none"],
)
def test_whatever_pillow_says_of_damage_names_the_picture(content: bytes, said: str) -> None:
    with pytest.raises(OSError, match=said):
        decode(content, Images(channels=3, height=8, width=8))


def test_a_feed_of_folders(tmp_path: Path) -> None:
    written.folders(tmp_path / "train", dict.fromkeys("abcdefghij", 3))
    spec = replace(models.spec("cifar10-cnn"), input=Images(channels=3, height=32, width=32))
    place = str(tmp_path)
    assert feeds.check("folders", place, spec) == place
    task = replace(one_task(model="cifar10-cnn", data="folders", batch_size=8), data_dir=place)
    images, labels = feeds.feed(task, spec).batch(0)
    assert images.shape == (8, 3, 32, 32) and images.dtype == np.float32
    # Each picture is redder than the one before, and each class has three.
    red = np.rint((images[:, 0, 9, 9] * MINE.deviation[0] + MINE.mean[0]) * 255)
    assert (red // 3).tolist() == labels.tolist()
    np.testing.assert_array_equal(feeds.feed(task, spec).batch(0)[0], images)
    with pytest.raises(UsageError, match=r"--data folders has no val/\*/"):
        list(feeds.shard(task, spec))


def test_folders_that_a_model_cannot_learn(tmp_path: Path) -> None:
    root = written.folders(tmp_path / "train", {f"{n:02}": 1 for n in range(11)})
    spec = models.spec("cifar10-cnn")
    with pytest.raises(UsageError, match="--data folders: has 11 classes; the model has 10, so that "):
        feeds.check("folders", str(tmp_path), spec)
    (root / "10/0000.png").unlink()
    (root / "10").rmdir()
    (root / "09/0000.png").write_bytes(b"nothing")
    with pytest.raises(UsageError, match=r"09/0000\.png: Pillow cannot read it: cannot identify"):
        feeds.check("folders", str(tmp_path), spec)
    (root / "00/0000.png").unlink()
    (root / "00/0000.png").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"00/0000\.png: cannot be read: No such file"):
        feeds.check("folders", str(tmp_path), spec)


def test_without_pillow_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written.folders(tmp_path / "train", {"a": 1})
    monkeypatch.setattr("scaling.workloads.feeds.pictures.find_spec", lambda _: None)
    with pytest.raises(UsageError, match="--data folders: decodes pictures with Pillow: pip install pillow"):
        feeds.check("folders", str(tmp_path), models.spec("cifar10-cnn"))


# Pictures in RecordIO and TFRecord files: what they hold, and what is refused.

# ---------------------------------------------------------------- RecordIO


def labelled(label: float, content: bytes, *more: float) -> bytes:
    head = struct.pack("<If2Q", len(more), label, 7, 0)
    return head + struct.pack(f"<{len(more)}f", *more) + content


def recorded(tmp_path: Path, *contents: bytes) -> records.Records:
    (tmp_path / "train.rec").write_bytes(b"".join(contents))
    return records.records(tmp_path, data.spec("recordio"), "train")


def test_recordio_also_of_a_picture_with_the_magic_number_which_comes_in_parts(tmp_path: Path) -> None:
    magic = struct.pack("<I", 0xCED7230A)
    content = labelled(1.0, b"") + b"abcd" + magic + b"efgh" + magic + b"ij"
    parts = [
        struct.pack("<2I", 0xCED7230A, flag << 29 | len(part)) + part + bytes(-len(part) % 4)
        for flag, part in enumerate(content.split(magic), 1)
    ]
    whole = map(written.record, (labelled(3.0, b"first"), labelled(0.0, b"second!", 5.0, 9.0)))
    found = recorded(tmp_path, *whole, *parts, written.record(labelled(2.0, b"next")))
    assert [found.read(index) for index in range(len(found))] == [
        (b"first", 3), (b"second!", 5), (b"abcd" + magic + b"efgh" + magic + b"ij", 1), (b"next", 2),
    ]  # fmt: skip


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
    return length + struct.pack("<I", records.masked_crc(length)) + content + struct.pack("<I", 0)


def test_crc_32c_of_the_catalogue() -> None:
    """0xE3069283 is its check value for "123456789" in every catalogue of CRCs."""
    crc = 0xE3069283
    assert records.masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_tfrecords_of_several_files(tmp_path: Path) -> None:
    for number in range(3):
        contents = [example(b"x" * (300 + number), 1 + number, packed=number != 1), example(b"y", 9)]
        (tmp_path / f"train-0000{number}-of-00003").write_bytes(b"".join(map(framed, contents)))
    spec = data.spec("imagenet-tfrecord")
    found = records.records(tmp_path, spec, "train")
    # Labels count from 1 there, from 0 here.
    assert [(len(content), label) for content, label in map(found.read, range(len(found)))] == [
        (300, 0), (1, 8), (301, 1), (1, 8), (302, 2), (1, 8)
    ]  # fmt: skip
    (tmp_path / "train-00001-of-00003").unlink()
    with pytest.raises(UsageError, match=r"2 files train-\*-of-\*, expected 3 by their names"):
        records.records(tmp_path, spec, "train")


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_no_more_files_are_open_than_a_process_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_OPEN", 2)
    for number in range(5):
        (tmp_path / f"train-0000{number}-of-00005").write_bytes(framed(example(b"p", 1 + number)))
    before = open_files()
    found = records.records(tmp_path, data.spec("tfrecord"), "train")
    assert [found.read(index)[1] for index in (0, 1, 2, 3, 4, 0)] == [0, 1, 2, 3, 4, 0]
    assert open_files() == before + 2
    found.close()
    assert open_files() == before


NAMES = {"recordio": "train.rec", "tfrecord": "train-00000-of-00001"}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("recordio", b"", "no records in it"),
        ("recordio", b"some other file", "no RecordIO at 0: the magic number is not 0xced7230a"),
        ("recordio", written.record(labelled(1, b"abcd"))[:-3], "cut off at 33 bytes, within the record at 0"),
        ("tfrecord", b"", "no records in it"),
        ("tfrecord", b"some other file", "no TFRecord at 0: the checksum of its length does not hold"),
        ("tfrecord", framed(b"abc")[:-2], "cut off at 17 bytes, within the record at 0"),
    ],
)
def test_files_without_records(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / NAMES[name]).write_bytes(content)
    with pytest.raises(UsageError, match=rf"{NAMES[name]}: {said}$"):
        feeds.check(name, str(tmp_path), models.spec("resnet50"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("recordio", b"ab", "a record of 2 bytes, shorter than IRHeader"),
        ("recordio", labelled(1.5, b""), "label 1.5, expected a class"),
        ("recordio", labelled(math.inf, b""), "label inf, expected a class"),
        ("recordio", labelled(1e30, b""), r"label 1\.0\d*e\+30, expected a class"),
        ("recordio", struct.pack("<If2Q", 1000, 0.0, 7, 0), "a record of 24 bytes, shorter than its 1,000 labels"),
        ("tfrecord", b"\x0b", "no protocol buffer: a field of kind 3"),
        ("tfrecord", b"", "an Example without image/encoded and image/class/label"),
        ("tfrecord", example(b"p", 0), "image/class/label is 0, expected a number from 1"),
        ("tfrecord", example(b"p", -4), "image/class/label is -4, expected a number from 1"),
        ("tfrecord", b"\x80\x80", "index out of range"),
    ],
)
def test_records_that_hold_no_picture(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / NAMES[name]).write_bytes(written.record(content) if name == "recordio" else framed(content))
    found = records.records(tmp_path, data.spec(name), "train")
    with pytest.raises(UsageError, match=rf"{NAMES[name]} at \d+: {said}"):
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
