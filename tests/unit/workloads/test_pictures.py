"""Pictures in folders: which there are, what they show, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.workloads import data, feeds, models
from scaling.workloads.data import folders
from scaling.workloads.feeds.pictures import decode
from scaling.workloads.specs import Images
from tests.support import written
from tests.support.paper_tasks import one_task

CLASSES = {"ape": 3, "bee": 2, "cat": 4}
MINE = data.spec("folders")


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    feeds.forget()
    yield
    feeds.forget()


# ---------------------------------------------------------------- folders


def test_a_folder_per_class(tmp_path: Path) -> None:
    written.folders(tmp_path / "train", CLASSES)
    written.folders(tmp_path / "val", {"cat": 1, "ape": 2})
    (tmp_path / "train/bee/notes.txt").write_text("none")
    (tmp_path / "train/.hidden").mkdir()
    tree = folders.listing(tmp_path, MINE, "train")
    assert tree.classes == ("ape", "bee", "cat")
    assert tree.labels == (0, 0, 0, 1, 1, 2, 2, 2, 2)
    assert tree.paths[3] == f"{tmp_path}/train/bee/0000.png"
    # Held-out classes keep the numbers of those that are trained on.
    assert folders.listing(tmp_path, MINE, "test").labels == (0, 0, 2)


def test_folders_that_are_not_what_was_published(tmp_path: Path) -> None:
    written.folders(tmp_path / "train", CLASSES)
    imagenet = data.spec("imagenet")
    with pytest.raises(UsageError, match="train: 3 folders, expected 1000 classes of --data imagenet"):
        folders.listing(tmp_path, imagenet, "train")
    with pytest.raises(UsageError, match="train: 9 samples, expected 1,281,167 of --data imagenet"):
        folders.listing(tmp_path, replace(imagenet, classes=3), "train")
    with pytest.raises(UsageError, match="no pictures in its folders"):
        folders.listing(written.folders(tmp_path / "none/train", {"a": 0}).parent, MINE, "train")
    written.folders(tmp_path / "val", {"dog": 1})
    with pytest.raises(UsageError, match="val: has dog, which train has not"):
        folders.listing(tmp_path, MINE, "test")


FEW = written.few("imagenet", {"train": 9, "test": 3}, classes=3)


@pytest.mark.parametrize("name", [folders.BY_LINE, folders.BY_NAME])
def test_a_flat_val_whose_classes_a_file_names(tmp_path: Path, name: str) -> None:
    written.folders(tmp_path / "train", CLASSES)
    written.folders(tmp_path, {"val": 3})
    with pytest.raises(UsageError, match="val: neither folders of classes, nor imagenet_2012"):
        folders.listing(tmp_path, FEW, "test")
    by_name = "ImageId,PredictionString\n0002,ape 1 2 3 4 \n0000,cat 5 6 7 8 cat 1 1 1 1\n0001,bee 1 2 3 4\n"
    (tmp_path / name).write_text("cat\nbee\nape\n" if name == folders.BY_LINE else by_name)
    assert folders.listing(tmp_path, FEW, "test").labels == (2, 1, 0)
    (tmp_path / name).write_text("cat\nbee\n" if name == folders.BY_LINE else by_name.replace("0001", "9999"))
    with pytest.raises(UsageError, match=r"2 classes, but 3 pictures|does not name 0001\.png"):
        folders.listing(tmp_path, FEW, "test")


def test_in_kaggles_archive_the_classes_stand_far_above_the_pictures(tmp_path: Path) -> None:
    place = tmp_path / "ILSVRC/Data/CLS-LOC"
    written.folders(place / "train", CLASSES)
    written.folders(place, {"val": 3})
    (tmp_path / folders.BY_NAME).write_text("ImageId,\n0000,cat 1 2 3 4\n0001,bee 1 2 3 4\n0002,ape 1 2 3 4\n")
    assert folders.listing(place, FEW, "test").labels == (2, 1, 0)


@pytest.mark.parametrize(("content", "said"), [(b"", "val: 0 samples, expected 3"), (b"\xff", "not UTF-8 text")])
def test_a_val_without_pictures_and_names_that_are_no_text(tmp_path: Path, content: bytes, said: str) -> None:
    written.folders(tmp_path / "train", CLASSES)
    (tmp_path / "val").mkdir()
    (tmp_path / "val/readme.txt").touch()
    (tmp_path / folders.BY_LINE).write_bytes(content)
    with pytest.raises(UsageError, match=said):
        folders.listing(tmp_path, FEW, "test")


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
    train, test = folders.listing(tmp_path, spec, "train"), folders.listing(tmp_path, spec, "test")
    assert np.bincount(train.labels)[[0, 256]].tolist() == [60, 60]
    assert np.bincount(test.labels)[[0, 256]].tolist() == [2, 20]
    assert not set(train.paths) & set(test.paths)
    assert folders.listing(tmp_path, spec, "train").paths == train.paths
    (tmp_path / "002.object").rmdir()
    with pytest.raises(UsageError, match="256 folders, expected 257 classes of --data caltech256"):
        folders.listing(tmp_path, spec, "train")


# ---------------------------------------------------------------- decoding


def test_the_middle_of_a_picture_in_the_models_size() -> None:
    shown = decode(written.picture(200, side=64, kind="JPEG"), Images(channels=3, height=16, width=16))
    assert shown.shape == (3, 16, 16)
    assert abs(shown[:, 5, 5].astype(int) - [200, 100, 50]).max() <= 2
    grey = decode(written.picture(200), Images(channels=1, height=8, width=12))
    assert grey.shape == (1, 8, 12)
    with pytest.raises(OSError, match="cannot identify"):
        decode(b"nothing", Images(channels=3, height=8, width=8))


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


def test_a_picture_that_is_no_file(tmp_path: Path) -> None:
    written.folders(tmp_path / "train", {"a": 2})
    (tmp_path / "train/a/0000.png").unlink()
    (tmp_path / "train/a/0000.png").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"a/0000\.png: cannot be read: No such file"):
        feeds.check("folders", str(tmp_path), models.spec("cifar10-cnn"))


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


def test_without_pillow_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written.folders(tmp_path / "train", {"a": 1})
    monkeypatch.setattr("scaling.workloads.feeds.pictures.find_spec", lambda _: None)
    with pytest.raises(UsageError, match="--data folders: decodes pictures with Pillow: pip install pillow"):
        feeds.check("folders", str(tmp_path), models.spec("cifar10-cnn"))
