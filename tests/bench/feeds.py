"""Each framework's own pipeline (`--feed native`) against the plainest one that its manual begins with.

In one process, by turns: each block reads a few batches of photographs as JPEG, of which those that waited decoded
are not counted. The ratio of their rates has the 95 % interval of its geometric mean over blocks.

[BLOCKS=10] python -m tests.bench.feeds torch|tensorflow|mxnet
"""

from __future__ import annotations

import io
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from PIL import Image

from scaling.analysis.statistics.intervals import geometric
from scaling.records.task import Task
from scaling.workloads import models
from tests.support import written
from tests.support.paper_tasks import one_task

BLOCKS = int(os.environ.get("BLOCKS", "10"))
PICTURES, BATCH, WAITING, COUNTED = 128, 16, 6, 8
SIZE, SIDE = (500, 375), 224
Next = Callable[[], object]


def photographs() -> Iterator[bytes]:
    """Smooth noise, which a JPEG of this size holds in about 60 KB as it does photographs."""
    draw = np.random.default_rng(0)
    for _ in range(PICTURES):
        coarse = Image.fromarray(draw.integers(0, 255, (SIZE[1] // 4, SIZE[0] // 4, 3), np.uint8))
        content = io.BytesIO()
        coarse.resize(SIZE, Image.Resampling.BICUBIC).save(content, "JPEG", quality=85)
        yield content.getvalue()


def write(root: Path) -> None:
    """As folders and as RecordIO."""
    records = []
    for number, content in enumerate(photographs()):
        path = root / "train" / f"c{number % 2}" / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        records.append(written.record(struct.pack("<If2Q", 0, number % 2, number, 0) + content))
    (root / "train.rec").write_bytes(b"".join(records))


def task_of(strategy: str, data: str, root: Path) -> Task:
    """One rank with one process or thread."""
    task = one_task(strategy, "feed", model="resnet50", data=data, batch_size=BATCH)
    work = replace(task.point.workload, feed="native", feed_workers=1)
    return replace(task, data_dir=str(root), point=replace(task.point, workload=work))


def torch_pair(root: Path) -> tuple[Next, Next, str]:
    import torch
    from torch.utils.data import DataLoader, Dataset

    from scaling.frameworks.pytorch import native_feed
    from scaling.frameworks.pytorch.native_feed import Loader

    class Plain(Dataset[Any]):
        paths = sorted(root.glob("train/*/*.jpg"))

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            image = Image.open(self.paths[index]).convert("RGB")
            cut = image.crop(native_feed.crop_box(*image.size)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            pixels = torch.from_numpy(np.array(cut).transpose(2, 0, 1))
            return pixels.float().div(255).sub(0.45).div(0.225), 0

    def endless() -> Iterator[object]:
        for _ in count():
            yield from DataLoader(Plain(), BATCH, shuffle=True, num_workers=1, persistent_workers=True)

    task = task_of("torch:plain", "folders", root)
    native = Loader(task, models.of(task.point.workload))
    return native.next, endless().__next__, native.said


def tensorflow_pair(root: Path) -> tuple[Next, Next, str]:
    import tensorflow as tf

    from scaling.frameworks.tf.native_feed import Dataset

    def decoded(path: Any) -> Any:
        image = tf.image.decode_jpeg(tf.io.read_file(path), channels=3)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image), tf.zeros([1, 0, 4]), area_range=(0.08, 1.0), aspect_ratio_range=(3 / 4, 4 / 3),
            use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        part = tf.slice(image, begin, size)
        return (tf.image.resize(part, (SIDE, SIDE)) / 255 - 0.45) / 0.225

    task = task_of("tensorflow:plain", "folders", root)
    native = Dataset(task, models.of(task.point.workload))
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    paths = tf.data.Dataset.from_tensor_slices([str(path) for path in root.glob("train/*/*.jpg")])
    plain = paths.shuffle(PICTURES).repeat().map(decoded, num_parallel_calls=1).batch(BATCH).prefetch(2)
    return native.next, iter(plain.with_options(options)).__next__, native.said


def mxnet_pair(root: Path) -> tuple[Next, Next, str]:
    from scaling.frameworks.mx.library import mx
    from scaling.frameworks.mx.native_feed import Records

    task = task_of("mxnet:plain", "recordio", root)
    native = Records(task, models.of(task.point.workload))
    plain = mx.io.ImageRecordIter(
        path_imgrec=str(root / "train.rec"), data_shape=(3, SIDE, SIDE), batch_size=BATCH, shuffle=True,
        preprocess_threads=1, random_resized_crop=True, min_random_area=0.08, max_random_area=1.0, std_r=58,
        min_aspect_ratio=3 / 4, max_aspect_ratio=4 / 3, rand_mirror=True, mean_r=115, mean_g=115, mean_b=115,
    )  # fmt: skip

    def following() -> object:
        try:
            return plain.next()
        except StopIteration:
            plain.reset()
            return plain.next()

    return native.next, following, native.said


PAIRS = {"torch": torch_pair, "tensorflow": tensorflow_pair, "mxnet": mxnet_pair}


def rate(following: Next) -> float:
    """Images/s of a block."""
    for _ in range(WAITING):
        following()
    begun_s = time.perf_counter()
    for _ in range(COUNTED):
        following()
    return COUNTED * BATCH / (time.perf_counter() - begun_s)


def main(name: str) -> None:
    """Print both rates and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        native, plain, said = PAIRS[name](Path(folder))
        pairs = [(rate(native), rate(plain)) for _ in range(BLOCKS)]
        ratio = geometric([own / other for own, other in pairs])
        own, other = (geometric([pair[which] for pair in pairs]).mean for which in (0, 1))
        print(f"{name}: {said}: {own:.0f} images/s, plainest {other:.0f}", flush=True)
        print(
            f"ratio {ratio.mean:.3f} ({ratio.low or 0:.3f} to {ratio.high or 0:.3f}), {BLOCKS} blocks", flush=True
        )
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
