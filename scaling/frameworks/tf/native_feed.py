"""TensorFlow's own pipeline: tf.data over the files of a rank's shard. Only the used part of a JPEG is decoded."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from scaling.frameworks import feeding
from scaling.frameworks.feeding import AREA, RATIO, Batch, FeedError
from scaling.records.task import Task
from scaling.text import counted
from scaling.workloads import data, feeds
from scaling.workloads.data.images import Tree
from scaling.workloads.data.records import LABEL, PICTURE, tfrecord_files
from scaling.workloads.feeds.pictures import Pictures
from scaling.workloads.specs import Images, ModelSpec

# Number of encoded records in the shuffle buffer, and of record files that are read in turns.
SHUFFLED, INTERLEAVED = 2048, 4
_FEATURES = {
    PICTURE: tf.io.FixedLenFeature([], tf.string),
    LABEL: tf.io.FixedLenFeature([], tf.int64),
}


class Dataset:
    """Batches of uint8 (batch, height, width, channels) and int64 labels (batch,), in the host's memory."""

    def __init__(self, task: Task, spec: ModelSpec) -> None:
        workers, size, self._data = feeding.workers(task), task.point.workload.batch_size, task.point.workload.data
        self.said = f"tf.data, {counted(workers, 'thread')} a rank, decode_and_crop_jpeg"
        pictures = feeds.encoded_pictures(task, spec)
        self._classes = pictures.classes
        options = tf.data.Options()
        options.threading.private_threadpool_size = workers
        options.deterministic = True
        with tf.device("CPU"):
            found = _encoded(task, pictures).repeat()
            decode = _decoder(pictures.images, task.seed)
            found = found.map(decode, num_parallel_calls=workers).batch(size, drop_remainder=True)
            self._batches = iter(found.prefetch(2).with_options(options))

    def next(self) -> Batch:
        try:
            images, labels = next(self._batches)
        except StopIteration:
            raise FeedError("tf.data: no pictures in this rank's files; take fewer ranks") from None
        except tf.errors.OpError as error:
            raise FeedError(f"tf.data: {error.message.splitlines()[0]}; --feed reference names the file") from None
        feeding.check_classes(labels.numpy(), self._classes, self._data)
        return images, labels

    def close(self) -> None:
        self._batches = None


def _encoded(task: Task, pictures: Pictures) -> tf.data.Dataset:
    """Return one rank's shard, reshuffled each epoch: encoded pictures and their classes."""
    size, rank, seed = task.point.world_size, task.rank, task.seed
    if isinstance(tree := pictures.encoded, Tree):
        shard = feeds.sampler_of(task, len(tree)).shard
        paths = [os.fsencode(tree.paths[index]) for index in shard]  # names need not be UTF-8
        labels = np.asarray(tree.labels, np.int64)[shard]
        found = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(shard), seed=seed)
        return found.map(lambda path, label: (tf.io.read_file(path), label))
    spec = data.spec(task.point.workload.data)
    files = list(map(str, tfrecord_files(data.locate(spec, task.data_dir), spec, "train")))
    # Whole files if there is one for each rank, else every N-th record, N the world size.
    if len(files) >= size:
        own = tf.data.Dataset.from_tensor_slices(files[rank::size]).shuffle(len(files), seed=seed)
        found = own.interleave(tf.data.TFRecordDataset, cycle_length=INTERLEAVED, block_length=16)
    else:
        found = tf.data.TFRecordDataset(files).shard(size, rank)
    return found.shuffle(SHUFFLED, seed=seed).map(_parsed)


def _parsed(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the picture and its class; the format's classes start at 1."""
    found = tf.io.parse_single_example(record, _FEATURES)
    return found[PICTURE], found[LABEL] - 1


def _decoder(images: Images, seed: int) -> Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Return a function of an encoded picture and its class to uint8 (height, width, channels) in the model's
    size, and the class."""

    def window(shape: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the start and the size of a random part: (height, width, all channels)."""
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape,
            tf.zeros([1, 0, 4]),
            seed=seed + 2,
            area_range=AREA,
            aspect_ratio_range=RATIO,
            use_image_if_no_bounding_boxes=True,
        )
        return begin, size

    def part_of_jpeg(content: tf.Tensor) -> tf.Tensor:
        begin, size = window(tf.io.extract_jpeg_shape(content))
        crop = tf.concat([begin[:2], size[:2]], axis=0)
        return tf.image.decode_and_crop_jpeg(content, crop, channels=images.channels)

    def part_of_others(content: tf.Tensor) -> tf.Tensor:
        whole = tf.io.decode_image(content, channels=images.channels, expand_animations=False)
        return tf.slice(whole, *window(tf.shape(whole)))

    def decode(content: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        part = tf.cond(tf.io.is_jpeg(content), lambda: part_of_jpeg(content), lambda: part_of_others(content))
        resized = tf.image.resize(part, (images.height, images.width))
        turned = tf.image.random_flip_left_right(resized, seed=seed + 1)
        pixels = tf.cast(tf.round(turned), tf.uint8)
        return tf.ensure_shape(pixels, (images.height, images.width, images.channels)), label

    return decode
