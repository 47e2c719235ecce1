"""Pictures in files whose pixels say which they are, and one framework's own pipeline over them on two ranks.

python -m tests.support.native_feeds STRATEGY DATA...     prints what `main` finds as JSON
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from scaling import frameworks
from scaling.frameworks import feeding
from scaling.frameworks.feeding import FeedError
from scaling.records.point import Record
from scaling.records.task import Task
from scaling.workloads import feeds, models
from tests.support import written
from tests.support.paper_tasks import tasks

JPEG = b"\xff\xd8"
MODEL, BATCH, RANKS = "cifar10-cnn", 4, 2
# Reds of one picture and the next differ by more than JPEG changes them; classes have as many each.
PICTURES, CLASSES, STEP = 16, 4, 12


def of_class(picture: int) -> int:
    """The class of a picture."""
    return picture // (PICTURES // CLASSES)


def jpegs() -> Iterator[bytes]:
    """All pictures, equal in size: MXNet's parts are of equal bytes, whose end decoders do not look at."""
    for number in range(PICTURES):
        yield written.picture(STEP * number, side=60, kind="JPEG").ljust(2000, b"\0")


def write(folder: Path, data: str) -> None:
    """The training pictures as `data` has them."""
    if data == "folders":
        for number, content in enumerate(jpegs()):
            path = folder / "train" / f"c{of_class(number)}" / f"{number:03}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    elif data == "recordio":
        heads = (struct.pack("<If2Q", 0, of_class(number), number, 0) for number in range(PICTURES))
        contents = (written.record(head + content) for head, content in zip(heads, jpegs(), strict=True))
        (folder / "train.rec").write_bytes(b"".join(contents))
    else:
        _by_tensorflow(str(folder / "train-00000-of-00001"))


def _by_tensorflow(path: str) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(path) as writer:
        for number, content in enumerate(jpegs()):
            picture = tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))
            label = tf.train.Feature(int64_list=tf.train.Int64List(value=[of_class(number) + 1]))
            features = tf.train.Features(feature={"image/encoded": picture, "image/class/label": label})
            writer.write(tf.train.Example(features=features).SerializeToString())


class Fed(Record, frozen=True, kw_only=True):
    """By rank the samples of an epoch: which picture their pixels say that they are, and their labels; the type
    and shape of its batches, what its feed is. `error` is what a rank's feed said instead."""

    samples: list[list[int]] = []
    labels: list[list[int]] = []
    types: list[str] = []
    shapes: list[list[int]] = []
    said: list[str] = []
    error: str = ""


def ranks(strategy: str, data: str, data_dir: str) -> list[Task]:
    """The tasks of two ranks with a native feed."""
    found = tasks(strategy, "together", RANKS, model=MODEL, data=data, batch_size=BATCH)
    native = replace(found[0].point.workload, feed="native")
    return [replace(one, data_dir=data_dir, point=replace(one.point, workload=native)) for one in found]


def fed(strategy: str, data: str, data_dir: str) -> Fed:
    """An epoch of both ranks, of which each has as many whole batches as half of the pictures fill."""
    module: Any = import_module(frameworks.load(strategy).trainer_module)
    told: dict[str, list[Any]] = {name: [] for name in ("samples", "labels", "types", "shapes", "said")}
    for task in ranks(strategy, data, data_dir):
        feeds.forget()
        try:
            feed = feeding.opened(task, models.of(task.point.workload), module.pipeline.keywords["native"])
            batches = [feed.batch(step) for step in range(PICTURES // RANKS // BATCH)]
        except FeedError as error:
            return Fed(error=str(error))
        arrays = [[_array(each) for each in batch] for batch in batches]
        reds = np.concatenate([_red(images) for images, _ in arrays])
        told["samples"].append(np.rint(reds / STEP).astype(int).tolist())
        told["labels"].append(np.concatenate([labels for _, labels in arrays]).astype(int).tolist())
        told["types"].append(str(arrays[0][0].dtype))
        told["shapes"].append(list(arrays[0][0].shape))
        told["said"].append(feed.said)
        feed.close()
    return msgspec.convert(told, Fed)


def _array(of: Any) -> Any:
    return of.asnumpy() if hasattr(of, "asnumpy") else of.numpy()


def _red(images: Any) -> Any:
    side = images.shape[2] // 2
    return images[:, 0, side, side] if images.shape[1] == 3 else images[:, side, side, 0]


def damage(folder: Path) -> None:
    """Make every picture of a folder look like one at its beginning only."""
    for path in (each for each in folder.rglob("*") if each.is_file()):
        content = path.read_bytes()
        start = content.index(JPEG) + len(JPEG)
        path.write_bytes(content[:start] + bytes(1900) + content[start + 1900 :])


def main(strategy: str, formats: list[str]) -> list[Fed]:
    """An epoch of each of these formats, and what is said of damaged pictures of the first."""
    found = []
    with tempfile.TemporaryDirectory() as root:
        for data in formats:
            folder = Path(root, data)
            folder.mkdir()
            write(folder, data)
            found.append(fed(strategy, data, str(folder)))
        damage(Path(root, formats[0]))
        return [*found, fed(strategy, formats[0], str(Path(root, formats[0])))]


if __name__ == "__main__":
    print(msgspec.json.encode(main(sys.argv[1], sys.argv[2:])).decode(), flush=True)
    os._exit(0)
