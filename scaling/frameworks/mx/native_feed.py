"""MXNet's own pipeline: ImageRecordIter over a rank's part of a RecordIO file, decoded by threads in C++.

Gluon's DataLoader is not used: its processes hang or die next to the engine (apache/mxnet #14541, #13126).
"""

from __future__ import annotations

import os

from scaling.frameworks import feeding
from scaling.frameworks.feeding import AREA, RATIO, Batch, FeedError
from scaling.frameworks.mx.library import mx
from scaling.records.task import Task
from scaling.text import counted
from scaling.workloads import data, feeds
from scaling.workloads.data.records import recordio_file
from scaling.workloads.specs import ModelSpec


class Records:
    """Batches of uint8 (batch, channels, height, width) and float32 labels (batch,), in the host's memory. MXNet
    cuts disjoint parts of equal bytes. An epoch's last batch is filled from the next epoch."""

    def __init__(self, task: Task, spec: ModelSpec) -> None:
        work, pictures = task.point.workload, feeds.encoded_pictures(task, spec)
        found, workers = data.spec(work.data), min(feeding.workers(task), most_threads())
        self.said = f"ImageRecordIter, {counted(workers, 'thread')} a rank"
        self._classes, self._data, self._size = pictures.classes, work.data, work.batch_size
        path = recordio_file(data.locate(found, task.data_dir), found, "train")
        try:
            # The constructor reads the first batch.
            self._batches = _iterator(task, str(path), pictures.images.shape, workers)
        except mx.MXNetError as error:
            raise FeedError(self._why(str(error))) from None
        except StopIteration:
            raise FeedError("ImageRecordIter: no pictures in this rank's part; take fewer ranks") from None

    def next(self) -> Batch:
        """Return the next batch. Raises FeedError for a broken picture, or a part smaller than a batch."""
        try:
            found = self._next()
        except mx.MXNetError as error:
            raise FeedError(self._why(str(error))) from None
        # In NumPy: the engine would queue an operation behind those of the previous step.
        feeding.check_classes(found.label[0].asnumpy(), self._classes, self._data)
        return found.data[0], found.label[0]

    def _next(self) -> mx.io.DataBatch:
        """Return the next batch. A part hardly larger than a batch may end twice in a row."""
        while True:
            try:
                return self._batches.next()
            except StopIteration:
                self._batches.reset()

    def _why(self, text: str) -> str:
        if "bigger than the batch size" in text:
            return f"a rank's part has fewer pictures than its batch of {self._size}: take a smaller --batch-size"
        last = [line for line in text.splitlines() if "rror" in line]
        return f"ImageRecordIter: {(last or ['failed'])[-1].strip()}; --feed reference names the record"

    def close(self) -> None:
        self._batches = None


def most_threads() -> int:
    """Return the threads that ImageRecordIter uses at most (MXNet 1.9.1, src/io/iter_image_recordio_2.cc)."""
    return max(1, len(os.sched_getaffinity(0)) // 2 - 1)


def _iterator(task: Task, path: str, shape: tuple[int, ...], workers: int) -> mx.io.MXDataIter:
    return mx.io.ImageRecordIter(
        path_imgrec=path,
        data_shape=shape,
        batch_size=task.point.workload.batch_size,
        dtype="uint8",
        shuffle=True,
        seed=task.seed,
        seed_aug=task.seed + task.rank,
        num_parts=task.point.world_size,
        part_index=task.rank,
        preprocess_threads=workers,
        round_batch=True,
        random_resized_crop=True,
        min_random_area=AREA[0],
        max_random_area=AREA[1],
        min_aspect_ratio=RATIO[0],
        max_aspect_ratio=RATIO[1],
        rand_mirror=True,
        verbose=False,
    )
