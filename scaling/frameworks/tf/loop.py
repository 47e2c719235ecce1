"""The TensorFlow training loop of all strategies, and the trainers of `plain` and MultiWorkerMirroredStrategy.

Strategies differ in where variables are made and in what happens to the gradients.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property, partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from scaling.frameworks import feeding, options
from scaling.frameworks.abilities import Learnt, Trained, filled
from scaling.frameworks.base import Trainer, timeout_s
from scaling.frameworks.feeding import AREA, RATIO, Batch, FeedError
from scaling.frameworks.tf import network
from scaling.frameworks.tf.rank import AllReduces, EmulatedCompute, TensorFlowRank
from scaling.frameworks.tf.strategies import MultiWorker
from scaling.hosts.proc import end_with_parent
from scaling.records.task import Task
from scaling.text import counted
from scaling.workloads import data, feeds
from scaling.workloads.data.images import Tree
from scaling.workloads.data.records import LABEL, PICTURE, tfrecord_files
from scaling.workloads.feeds.pictures import Pictures
from scaling.workloads.specs import Binary, Images, MaskedTokens, ModelSpec, Recipe, Target

# ---------------------------------------------------------------- optimizers


def optimizer_of(recipe: Recipe) -> keras.Optimizer:
    """Return a recipe's optimiser, with Keras's constants. Only AdamW decays weights; else the loss does."""
    match recipe.optimizer:
        case "sgd":
            return keras.optimizers.SGD(recipe.rate, momentum=recipe.momentum)
        case "rmsprop":
            return keras.optimizers.RMSprop(recipe.rate)
        case "adadelta":
            return keras.optimizers.Adadelta(recipe.rate)
        case "adam":
            return keras.optimizers.Adam(recipe.rate)
        case "adamw":
            return keras.optimizers.AdamW(recipe.rate, weight_decay=recipe.decay)


# ---------------------------------------------------------------- losses


def loss_of(target: Target) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Return a function of float32 logits and labels to their mean loss over everything that counts.

    Logits are (..., classes) with labels (...), or (batch, 1) with labels 0 or 1."""

    def loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if isinstance(target, Binary):
            wanted = tf.cast(labels, tf.float32)
            return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(wanted, logits[:, 0]))
        if not isinstance(target, MaskedTokens):
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        # IGNORED is negative.
        counts = tf.cast(labels >= 0, tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
        return tf.reduce_sum(losses * counts) / tf.reduce_sum(counts)

    return loss


# ---------------------------------------------------------------- compute


class RealCompute:
    """Forward and backward passes of a rank's Keras model on its feed."""

    def __init__(self, rank: Learning) -> None:
        self._rank = rank
        self.recipe = rank.spec.recipe
        self._losses = loss_of(rank.spec.target)
        # The factor of half the sum of squares in the loss.
        self._decay = 0.0 if self.recipe.optimizer == "adamw" else self.recipe.decay
        self._parts = options.accumulated(rank.task.point)
        # XLA gets both passes but not the exchange, for which it has no operations on CPU.
        work = rank.task.point.workload
        passes = self._forward_alone if work.pass_ == "forward" else self._compute
        compiled = tf.function(passes, autograph=False, jit_compile=True)
        self._passes = compiled if work.compile else passes
        self._loss: tf.Tensor | None = None
        self._pixels: tuple[tf.Tensor, tf.Tensor] | None = None

    def first(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Open the feed. Return the arguments of the first step's graph."""
        self._feed = feeding.opened(self._rank.task, self._rank.spec, Dataset)
        batch = self._moved(0)
        self._batch = batch if self._feed.fixed else None
        return batch

    def gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Add a batch's mean loss and gradients, divided by `replicas` and scaled in fp16, to the graph, by XLA if
        requested. A forward pass alone has no gradients."""
        return self._passes(images, labels)

    def start(self) -> None:
        """Do nothing."""

    def run(self, step: Callable[..., tf.Tensor], number: int) -> int:
        """Call the step's graph with the batch of this number. Return its number of samples."""
        images, labels = self._batch or self._moved(number)
        self._loss = step(images, labels)
        return len(images)

    def finish(self) -> None:
        """Do nothing: the graph waits for everything."""

    def loss(self) -> float | None:
        return None if self._loss is None else float(self._loss)

    def _compute(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        if self._parts == 1:
            return self._compute_part(images, labels)
        parts = self._parts
        images, labels = (tf.reshape(each, (parts, -1, *each.shape[1:])) for each in (images, labels))

        def add(index: tf.Tensor, loss: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, ...]:
            part_loss, gradients = self._compute_part(images[index], labels[index])
            return index + 1, loss + part_loss, [a + b for a, b in zip(sums, gradients, strict=True)]

        zeros = [tf.zeros(each.shape) for each in self._rank.sources]
        begin = (0, 0.0, zeros)
        _, loss, sums = tf.while_loop(lambda index, *_: index < parts, add, begin, parallel_iterations=1)
        return loss / parts, [each / parts for each in sums]

    def _compute_part(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        rank = self._rank
        with tf.GradientTape() as tape:
            loss = self._forward(images, labels)
            total = loss
            if self._decay:
                total += self._decay * tf.add_n([tf.nn.l2_loss(each) for each in rank.sources])
            shared = total / rank.replicas
            if rank.task.point.workload.precision == "fp16":
                shared = rank.optimizer.scale_loss(shared)
        # Embeddings have sparse gradients: make them dense, as in the other frameworks.
        return loss, [tf.convert_to_tensor(each) for each in tape.gradient(shared, rank.sources)]

    def _forward(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        logits = tf.cast(self._rank.model(images, training=True), tf.float32)
        return self._losses(logits, labels)

    def _forward_alone(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        return self._forward(images, labels), []

    def _moved(self, step: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the batch on the device, images as (batch, height, width, channels)."""
        taken, labels = self._feed.batch(step)
        with tf.device(self._rank.device):
            if isinstance(taken, tf.Tensor):
                return self._normalised(tf.identity(taken)), tf.identity(labels)
            return tf.constant(taken.transpose(0, 2, 3, 1) if taken.ndim == 4 else taken), tf.constant(labels)

    def _normalised(self, images: tf.Tensor) -> tf.Tensor:
        """Normalise bytes of a native feed on the device: bytes are a quarter of the transfer."""
        if self._pixels is None:
            found = feeds.encoded_pictures(self._rank.task, self._rank.spec)
            self._pixels = tf.constant(found.scale.reshape(-1)), tf.constant(found.shift.reshape(-1))
        scale, shift = self._pixels
        return tf.cast(images, tf.float32) * scale - shift


# ---------------------------------------------------------------- native feed
#
# TensorFlow's own pipeline: tf.data over the files of a rank's shard. Only the used part of a JPEG is decoded.

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


# ---------------------------------------------------------------- loop

pipeline = partial(feeding.alone, native=Dataset)


def connect(task: Task) -> Trainer:
    end_with_parent()
    if task.point.strategy in MultiWorker.names:
        return MirroredGradients(task) if task.point.kind == "comm" else Mirrored(task)
    return Training(task)


def _array(of: keras.Variable) -> NDArray[Any]:
    found: NDArray[Any] = tf.convert_to_tensor(of.value).numpy().copy()
    return found


def sources(trained: Iterable[keras.Variable]) -> list[tf.Variable]:
    """Return the trained variables as tf.Variable; one that was cut gives its parts."""
    found: list[tf.Variable] = []
    for each in trained:
        found += getattr(each.value, "variables", [each.value])
    return found


class Learning(TensorFlowRank):
    """The model, its loss and optimiser, and one step's computation. A strategy overrides some of `join`, `scope`,
    `broadcast`, `exchange`, `distribute` and `replicas`."""

    # The loss is divided by it, because optimizer.apply sums the gradients of so many replicas.
    replicas = 1

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.join()
        self.compute: RealCompute | EmulatedCompute = (
            EmulatedCompute(self.emulated, task, self.replicas) if self.emulated is not None else RealCompute(self)
        )
        with self.scope():
            self.model = self.build()
            # The variables of the gradients, as tf.Variable.
            self.sources = sources(self.trained(self.model))
            self.optimizer = optimizer_of(self.compute.recipe)
            if task.point.workload.precision == "fp16":
                self.optimizer = keras.optimizers.LossScaleOptimizer(self.optimizer)
            self.optimizer.build(self.sources)
        self.describe(self.model)
        self.broadcast()
        self.samples = 0

    # ------------------------------------------------------------ what strategies override

    def join(self) -> None:
        """Join the exchange. TensorFlow is configured and has no variables yet."""

    def scope(self) -> AbstractContextManager[object]:
        return nullcontext()

    def broadcast(self) -> None:
        """Give all ranks rank 0's variables (`self.variables()`). Here equal seeds have done so."""

    def exchange(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Add the mean of each gradient over all ranks to the step's graph, once, in the order of `trained`."""
        return gradients

    def distribute(self, function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        """Return what the step's graph calls for `function(images, labels)`, which returns the loss."""
        return function

    # ------------------------------------------------------------ the parameters

    def variables(self) -> list[tf.Variable]:
        return [each.value for each in (*self.model.variables, *self.optimizer.variables)]

    def weights(self) -> dict[str, NDArray[Any]]:
        named = enumerate(self.trained(self.model))
        return {f"{index}.{each.name}": _array(each) for index, each in named}

    # ------------------------------------------------------------ one step

    def train(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        loss, gradients = self.compute.gradients(images, labels)
        self.optimizer.apply(self.exchange(gradients))
        return loss


class Training(Learning, Trained):
    """One rank that trains on its own images. Without an exchange it is the plain loop."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        batch = self.compute.first()
        # Traced here: a slow step would count as stalled.
        self._step = self._traced(batch)
        if task.point.workload.compile:
            self._rehearse(batch)
        self._steps, self._rate = 0, self.compute.recipe.rate
        self.compute.start()

    def step(self) -> None:
        self.samples += self.compute.run(self._step, self._steps)
        self._steps += 1

    def set_rate(self, rate: float) -> None:
        """Set the rate. SGD's momentum includes the old one and is rescaled to the new one: as in torch and in
        Goyal 2017, remark 2, "momentum correction"."""
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        if isinstance(optimizer, keras.optimizers.SGD) and self._rate and rate != self._rate:
            for each in optimizer.momentums:
                each.assign(each * (rate / self._rate))
        optimizer.learning_rate = self._rate = rate

    def sync(self) -> None:
        super().sync()
        self.compute.finish()

    def loss(self) -> float | None:
        return self.compute.loss() if self.task.point.workload.trains else None

    def average_statistics(self) -> None:
        """Do nothing: models with batch norm are refused, unless the strategy has a collective."""

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        """Return each sample's class, in a separate graph of whole batches. A smaller batch is padded."""
        whole = filled(inputs, self.task.point.workload.batch_size)
        with tf.device(self.device):
            shown = tf.constant(whole.transpose(0, 2, 3, 1) if whole.ndim == 4 else whole)
            found: NDArray[np.int64] = self._classes(shown).numpy()[: len(inputs)]
        return found

    def learnt(self) -> Learnt:
        both = ((norm.moving_mean, norm.moving_variance) for norm in network.norms(self.model))
        statistics = tuple((_array(mean), _array(variance)) for mean, variance in both)
        return Learnt(dict(network.as_described(self.model, self.weights().values())), statistics)

    @cached_property
    def _classes(self) -> Callable[[tf.Tensor], tf.Tensor]:
        def classes(shown: tf.Tensor) -> tf.Tensor:
            logits = self.model(shown, training=False)
            is_binary = isinstance(self.spec.target, Binary)
            return tf.cast(logits[:, 0] > 0 if is_binary else tf.argmax(logits, 1), tf.int64)

        graph: Callable[[tf.Tensor], tf.Tensor] = tf.function(self.distribute(classes), autograph=False)
        return graph

    def _traced(self, batch: tuple[tf.Tensor, tf.Tensor]) -> Callable[..., tf.Tensor]:
        """Trace the step's graph. Without training it also returns the gradients, or they would be pruned."""
        trains = self.task.point.workload.trains
        graph = tf.function(self.distribute(self.train) if trains else self._passes, autograph=False)
        step = graph.get_concrete_function(*map(tf.TensorSpec.from_tensor, batch))
        return step if trains else lambda images, labels: step(images, labels)[0]

    def _passes(self, images: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        loss, gradients = self.compute.gradients(images, labels)
        return [loss, *gradients]

    def _rehearse(self, batch: tuple[tf.Tensor, tf.Tensor]) -> None:
        """Run one step, in which XLA compiles, and restore all variables."""
        variables = self.variables()
        kept = [each.numpy().copy() for each in variables]
        self._step(*batch)
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)


# ---------------------------------------------------------------- MultiWorkerMirroredStrategy


class Mirrored(Training):
    """The shared loop in the replica of a MultiWorkerMirroredStrategy."""

    def join(self) -> None:
        self._strategy = _mirrored(self.task)
        self.replicas = self._strategy.num_replicas_in_sync

    def scope(self) -> AbstractContextManager[object]:
        scope: AbstractContextManager[object] = self._strategy.scope()
        return scope

    def distribute(self, function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        def replica(*batch: tf.Tensor) -> tf.Tensor:
            return self._strategy.run(function, batch)

        return replica


class MirroredGradients(AllReduces):
    """The all-reduce of one step alone, for this model's gradients."""

    def join(self) -> None:
        self._strategy = _mirrored(self.task)

    def exchange(self, *gradients: tf.Tensor) -> None:
        def reduce(*gradients: tf.Tensor) -> None:
            # As in Keras's optimiser, with its packs. The strategy needs tensors with a device.
            placed = list(map(tf.identity, gradients))
            tf.group(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, placed))

        self._strategy.run(reduce, gradients)


def _mirrored(task: Task) -> tf.distribute.Strategy:
    experimental = tf.distribute.experimental
    mode = task.point.strategy.partition(":")[2]
    packed = MultiWorker.options_of(task.point)["bytes_per_pack"]
    options = experimental.CommunicationOptions(
        bytes_per_pack=round(packed / task.point.hardware.shrink),
        implementation=experimental.CommunicationImplementation[mode.upper()],
    )
    _have_patience(task)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    # The strategy would ignore SIGTERM to save work, but there is none here.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return strategy


def _have_patience(task: Task) -> None:
    """Configure the coordination service with a longer timeout. The strategy's own timeout is 10 s, but ranks are
    paused for longer while others are measured. A TensorFlow with another internal interface keeps its timeout."""
    with suppress(ImportError, AttributeError, TypeError):
        from tensorflow.python.distribute import collective_all_reduce_strategy
        from tensorflow.python.eager import context

        # The module of these messages differs by version.
        messages = collective_all_reduce_strategy.coordination_config_pb2
        workers = messages.CoordinatedJob(name="worker", num_tasks=task.point.world_size)
        context.context().configure_coordination_service(
            service_type="standalone",
            service_leader="/job:worker/replica:0/task:0",
            heartbeat_timeout_in_ms=round(1000 * timeout_s(task.clocks)),
            coordinated_jobs=[workers],
        )
