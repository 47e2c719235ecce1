"""The Gluon training loop of all MXNet strategies: a rank's contexts, emulated devices, compute, and the trainers.

Strategies differ in their contexts and in the Trainer that exchanges the gradients.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling.emulated.device import EmulatedDevice, value
from scaling.emulated.layers import Span
from scaling.frameworks import feeding
from scaling.frameworks.abilities import Learnt, Rank, Tracer, Trained, Untrained, filled, pack
from scaling.frameworks.base import Trainer
from scaling.frameworks.feeding import AREA, RATIO, FeedError
from scaling.frameworks.mx import network
from scaling.frameworks.mx.library import mx
from scaling.frameworks.mx.network import Network, Value
from scaling.frameworks.mx.optimizers import make_optimizer, set_rate
from scaling.frameworks.mx.strategies import cuda_build
from scaling.frameworks.options import accumulated
from scaling.hosts import gpus, proc
from scaling.records.task import Task
from scaling.text import counted
from scaling.workloads import data, feeds, models
from scaling.workloads.data.records import recordio_file
from scaling.workloads.specs import Binary, MaskedTokens, ModelSpec, Recipe, Target

# ---------------------------------------------------------------- tracing


class MxnetTracer(Tracer):
    """MXNet's profiler, over all devices of the process."""

    def start(self, path: Path) -> None:
        """Start the trace. MXNet opens its file only at the end: touch it now, so that an error is noticed."""
        self._path, self._plain = path, path.with_suffix("")
        self._plain.touch()
        mx.profiler.set_config(profile_all=True, filename=str(self._plain))
        mx.profiler.set_state("run")

    def stop(self) -> None:
        mx.nd.waitall()
        mx.profiler.set_state("stop")
        mx.profiler.dump(True)
        pack(self._plain, self._path)


# ---------------------------------------------------------------- rank


class MxnetRank(Rank):
    """One worker's contexts and its model. For several contexts override `find_contexts` and `ranks`."""

    device_name: str

    def __init__(self, task: Task) -> None:
        self.task = task
        self.cuda = task.point.hardware.device == "cuda"
        if self.cuda and not mx.context.num_gpus():
            raise RuntimeError(f"mxnet {mx.__version__} finds no GPU: ./launch/install mxnet-cuda")
        self.contexts = self.find_contexts()
        self.spec = models.at(task.point)
        self.dtype = "float16" if task.point.workload.precision == "fp16" else "float32"
        self.versions = {"mxnet": str(mx.__version__), "numpy": metadata.version("numpy")}
        if self.cuda:
            self.versions["build"] = cuda_build() or "?"

    def find_contexts(self) -> list[mx.Context]:
        return [mx.gpu(self.task.device_index) if self.cuda else mx.cpu()]

    def ranks(self) -> Sequence[int]:
        return (self.task.rank,)

    def sync(self) -> None:
        mx.nd.waitall()

    def peak_memory_bytes(self) -> int:
        """Return the GPUs' used memory in bytes, of all processes; 0 on CPU. MXNet's pool frees nothing."""
        if not self.cuda:
            return 0
        told = [mx.context.gpu_memory_info(each.device_id) for each in self.contexts]
        return max(int(total - free) for free, total in told)

    def tracers(self) -> Sequence[Tracer]:
        return [MxnetTracer()]

    def describe(self, net: mx.gluon.Block) -> dict[str, mx.gluon.Parameter]:
        """Set the model's size. Return its trained gluon.Parameters. Their names sort in the model's order and
        agree in all processes. Gluon numbers its own names anew for each model, and its Trainer sorts by name."""
        trained = net.trained if isinstance(net, Network) else net._collect_params_with_prefix()
        arrays = [each.data(self.contexts[0]) for each in trained.values()]
        self.parameters = sum(each.size for each in arrays)
        self.gradient_bytes = sum(each.size * each.dtype().itemsize for each in arrays)
        return {f"{index:03d}.{name}": each for index, (name, each) in enumerate(trained.items())}

    def name_device(self) -> str:
        if self.cuda:
            return str(gpus.gather_gpus()[0][self.contexts[0].device_id].name)
        return proc.cpu_model(proc.cpuinfo())


# ---------------------------------------------------------------- emulated
#
# Real gradients and exchange; sleeps replace the compute.
# * The block has the model's parameters, divided by the point's `shrink`, in the model's order.
# * As MXNet's engine does: a layer's gradients go to the Trainer after the sleep of its backward pass, and its
#   forward pass sleeps once its weights are here.
# * A gradient has one value per rank and step: the digest shows what an exchange leaves out or adds twice.
# * The update is plain SGD.


# Gluon's trainers skip such parameters.
LEFT_OUT = SimpleNamespace(grad_req="null")


class EmulatedCompute:
    """The parameters of emulated devices, and their time, which is the same on all devices of a process."""

    def __init__(self, rank: MxnetRank) -> None:
        self._task, self._contexts = rank.task, rank.contexts
        # Nothing is learnt.
        self.recipe = Recipe(rate=rank.spec.recipe.rate, momentum=0.0)
        self._device = EmulatedDevice(rank.task.point)
        self._timeline = self._device.timeline
        self._steps = 0
        self.device_name = self._device.name
        self.net = _net(self._device.spans, rank.contexts)

    def begin(self, _parameters: dict[str, mx.gluon.Parameter], trainer: mx.gluon.Trainer) -> None:
        """Make one step, with all that trainers create late."""
        self._trainer = trainer
        # In the model's order.
        self._parameters = trainer._params
        numbers = iter(range(len(self._parameters)))
        self._numbered = [(span, [next(numbers) for _ in span.sizes]) for span in self._device.spans]
        # For each gradient, what the Trainer sees while that one is ready.
        self._ready = [
            [each if other is each else LEFT_OUT for other in self._parameters] for each in self._parameters
        ]
        trainer.step(1, ignore_stale_grad=True)
        mx.nd.waitall()
        self._timeline.meet()

    def step(self, update: Callable[[], None]) -> int:
        """Sleep as the profile says. Each gradient's exchange begins when it is ready. The next step waits."""
        self._timeline.begin(self._device.rate.step_s)
        for span, numbers in self._numbered:
            self._wait_for(numbers)
            self._timeline.spend(span.forward_s)
        for span, numbers in reversed(self._numbered):
            self._timeline.spend(span.backward_s)
            for number in reversed(numbers):
                self._exchange(number, value(self._task.rank, self._steps))
        update()
        self._steps += 1
        return self._task.point.workload.batch_size * len(self._contexts)

    def update(self) -> None:
        """Update in this process, if the Trainer does so. The exchange has begun already."""
        self._trainer._params = self._parameters
        self._trainer._update()

    def sync(self) -> None:
        self._timeline.ask()
        mx.nd.waitall()
        self._timeline.granted()
        self._timeline.finish()

    def loss(self) -> None:
        """Return None: nothing is learnt."""

    def _wait_for(self, numbers: list[int]) -> None:
        """Wait for the weights of the last step's exchange, on all devices."""
        self._timeline.ask()
        for number in numbers:
            for weight in self._parameters[number].list_data():
                weight.wait_to_read()
        self._timeline.granted()

    def _exchange(self, number: int, filled_with: float) -> None:
        of = self._parameters[number]
        for index, (weight, gradient) in enumerate(zip(of.list_data(), of.list_grad(), strict=True)):
            gradient[:] = filled_with + index
            # Set by backward: trainers skip stale gradients.
            weight._fresh_grad = True
        self._trainer._params = self._ready[number]
        self._trainer._allreduce_grads()


def _net(spans: Sequence[Span], contexts: Sequence[mx.Context]) -> mx.gluon.Block:
    net = mx.gluon.nn.Sequential()
    for span in spans:
        block = mx.gluon.nn.Sequential()
        for index, size in enumerate(span.sizes):
            name = f"weight{index}"
            setattr(block, name, block.params.get(name, shape=(size,), init="zeros"))
        net.add(block)
    net.initialize(ctx=contexts)
    return net


# ---------------------------------------------------------------- losses


def loss_of(target: Target) -> mx.gluon.HybridBlock:
    """Return a block from float32 logits and labels to losses (batch,), whose mean is over all that counts."""
    match target:
        case Binary():
            return mx.gluon.loss.SigmoidBinaryCrossEntropyLoss()
        case MaskedTokens():
            return Masked()
        case _:
            return mx.gluon.loss.SoftmaxCrossEntropyLoss()


class Masked(mx.gluon.HybridBlock):  # type: ignore[misc]
    """Cross-entropy at the positions whose label is not IGNORED, which is negative."""

    def hybrid_forward(self, F: ModuleType, logits: Value, labels: Value) -> Value:
        """Map (batch, length, words) and (batch, length) to (batch,)."""
        counts = labels >= 0
        losses = -F.pick(F.log_softmax(logits), F.relu(labels)) * counts
        # Divided by the count of the whole batch, so that each position has the same weight.
        share = F.broadcast_div(F.sum(losses, axis=1), F.sum(counts))
        return F.broadcast_mul(share, F.sum(F.ones_like(F.slice_axis(labels, axis=1, begin=0, end=1))))


# ---------------------------------------------------------------- compute

Batch: TypeAlias = "tuple[mx.nd.NDArray, mx.nd.NDArray]"
# Batches that wait in the engine fill the memory. Waiting in each step costs 2 % of a short step.
STEPS_AHEAD = 8


class RealCompute:
    """The point's model in Gluon with the weights of the task's seed, fed and differentiated on all contexts. Kind
    `comm` needs only the parameters of `net`."""

    def __init__(self, rank: MxnetRank) -> None:
        self.device_name = rank.name_device()
        self.recipe = rank.spec.recipe
        self._rank = rank
        self._parts = accumulated(rank.task.point)
        self._goes_back = rank.task.point.workload.pass_ != "forward"
        self._steps = 0
        # Of the previous step.
        self._losses: list[mx.nd.NDArray] = []
        # By context, the scale and the shift of bytes.
        self._pixels: dict[mx.Context, list[mx.nd.NDArray]] = {}
        mx.random.seed(rank.task.seed)
        self.net = network.build(rank.spec, rank.task.seed, rank.contexts)
        if rank.dtype != "float32":
            self.net.cast(rank.dtype)
        self.net.hybridize(static_alloc=True, static_shape=True)

    @cached_property
    def feeds(self) -> list[feeding.Opened]:
        """Return one feed per context, opened on first use: the Trainer needs the size of a batch."""
        task, spec = self._rank.task, self._rank.spec
        return [feeding.opened(replace(task, rank=rank), spec, Records) for rank in self._rank.ranks()]

    def begin(self, parameters: dict[str, mx.gluon.Parameter], trainer: mx.gluon.Trainer) -> None:
        """Do the slow first work. `trainer` has joined the exchange of the gradients of `parameters`."""
        self._parameters, self._trainer = parameters, trainer
        self._criterion = loss_of(self._rank.spec.target)
        self._criterion.hybridize(static_alloc=True, static_shape=True)
        self._batches = self._moved(0) if all(feed.fixed for feed in self.feeds) else None

    def step(self, update: Callable[[], None]) -> int:
        """Queue passes and update in MXNet's engine, which may be behind. Return the samples of all devices."""
        batches = self._batches or self._moved(self._steps)
        losses = self._queued(batches)
        update()
        # Wait if the engine is too far behind.
        if not self._steps % STEPS_AHEAD:
            for loss in self._losses:
                loss.wait_to_read()
        self._losses = losses
        self._steps += 1
        return sum(len(images) for images, _ in batches)

    def update(self) -> None:
        """Update by 1: the optimiser divides, since a Trainer knows only its own process's batch."""
        self._trainer.step(1)

    def sync(self) -> None:
        mx.nd.waitall()

    def loss(self) -> float | None:
        if not self._losses:
            return None
        return sum(float(each.mean().asscalar()) for each in self._losses) / len(self._losses)

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        """Return each sample's class, by the first context. A smaller batch is padded."""
        size = self._rank.task.point.workload.batch_size
        logits = self.net(self._array(filled(inputs, size), self._rank.contexts[0]))
        logits = logits.astype("float32", copy=False).asnumpy()
        found = logits[:, 0] > 0 if isinstance(self._rank.spec.target, Binary) else logits.argmax(1)
        classes: NDArray[np.int64] = found[: len(inputs)].astype(np.int64)
        return classes

    def _array(self, inputs: NDArray[Any], context: mx.Context) -> mx.nd.NDArray:
        return mx.nd.array(inputs, context, self._rank.dtype if inputs.dtype == "float32" else "int32")

    def _queued(self, batches: Sequence[Batch]) -> list[mx.nd.NDArray]:
        """Queue the passes of a batch per context, in micro-batches. Return arrays with one loss per sample."""
        if self._parts > 1:
            for parameter in self._parameters.values():
                parameter.zero_grad()
        queued: list[mx.nd.NDArray] = []
        for index in range(self._parts):
            parts = [[self._part(each, index) for each in batch] for batch in batches]
            with mx.autograd.record():
                logits = [self.net(images).astype("float32", copy=False) for images, _ in parts]
                losses = [self._criterion(each, labels) for each, (_, labels) in zip(logits, parts, strict=True)]
            if self._goes_back:
                mx.autograd.backward(losses)
            else:  # detached: the graph's memory is needed for the next pass
                losses = [each.detach() for each in losses]
            queued += losses
        return queued

    def _part(self, array: mx.nd.NDArray, index: int) -> mx.nd.NDArray:
        size = len(array) // self._parts
        return array if self._parts == 1 else array[index * size : (index + 1) * size]

    def _moved(self, step: int) -> list[Batch]:
        """Move the feeds' batches to their contexts. Gluon's loss takes classes as float32, which is exact."""
        array, found = mx.nd.array, []
        for context, feed in zip(self._rank.contexts, self.feeds, strict=True):
            taken, labels = feed.batch(step)
            if isinstance(taken, mx.nd.NDArray):
                found.append((self._normalised(taken, context), labels.as_in_context(context)))
            else:
                found.append((self._array(taken, context), array(labels, context, "float32")))
        return found

    def _normalised(self, images: mx.nd.NDArray, context: mx.Context) -> mx.nd.NDArray:
        """Normalise bytes of a native feed on the device: bytes are a quarter of the transfer."""
        if context not in self._pixels:
            pictures = feeds.encoded_pictures(self._rank.task, self._rank.spec)
            self._pixels[context] = [mx.nd.array(each[None], context) for each in (pictures.scale, pictures.shift)]
        scale, shift = self._pixels[context]
        moved = images.as_in_context(context).astype("float32")
        normal = mx.nd.broadcast_sub(mx.nd.broadcast_mul(moved, scale), shift)
        return normal.astype(self._rank.dtype, copy=False)


# ---------------------------------------------------------------- native feed
#
# MXNet's own pipeline: ImageRecordIter over a rank's part of a RecordIO file, decoded by threads in C++. Gluon's
# DataLoader is not used: its processes hang or die next to the engine (apache/mxnet #14541, #13126).


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


# ---------------------------------------------------------------- loop

pipeline = partial(feeding.alone, native=Records)


def connect(task: Task) -> Trainer:
    return Training(task)


class Exchange(MxnetRank):
    """A model's parameters, and the gluon.Trainer that exchanges their gradients and updates them.

    This class exchanges nothing. A strategy's subclass E overrides some of `find_contexts`, `ranks`,
    `update_samples`, `make_trainer`, `start` and `update`. It trains as `class (E, Training)`. It is measured
    without compute as `class (E, GradientExchange)`.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        emulated = task.point.hardware.device == "emulated"
        self.compute: RealCompute | EmulatedCompute = EmulatedCompute(self) if emulated else RealCompute(self)
        self.device_name = self.compute.device_name
        self.net = self.compute.net
        # By name, in the model's order.
        self.trained = self.describe(self.net)
        if accumulated(task.point) > 1:
            for each in self.trained.values():
                each.grad_req = "add"
        options = {"rescale_grad": 1.0 / self.update_samples(), "multi_precision": self.dtype == "float16"}
        self.trainer = self.make_trainer(self.trained, self.make_optimizer(options))
        self.start()

    def update_samples(self) -> int:
        """Return the samples over which the gradients of one update are summed. The update is their mean."""
        return self.task.point.workload.batch_size

    def make_optimizer(self, options: dict[str, Any]) -> mx.optimizer.Optimizer:
        return make_optimizer(self.compute.recipe, options)

    def make_trainer(
        self, parameters: dict[str, mx.gluon.Parameter], optimizer: mx.optimizer.Optimizer
    ) -> mx.gluon.Trainer:
        return mx.gluon.Trainer(parameters, optimizer, kvstore=None)

    def start(self) -> None:
        """Join the exchange and give all ranks the same weights. Here equal seeds have done so."""

    def update(self) -> None:
        # Without training no gradient is ever fresh.
        self.trainer.step(1, ignore_stale_grad=True)


class Training(Trained, Exchange):
    """The model's loss and optimiser. With `Exchange` above it is the plain loop."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.samples = 0
        self._trains = task.point.workload.trains
        self.compute.begin(self.trained, self.trainer)

    def update_samples(self) -> int:
        compute = self.compute
        return len(compute.feeds[0].batch(0)[1]) if isinstance(compute, RealCompute) else super().update_samples()

    def step(self) -> None:
        """Do forward, backward and update, or only the passes that the point asks for."""
        self.samples += self.compute.step(self.update if self._trains else lambda: None)

    def update(self) -> None:
        self.compute.update()

    def sync(self) -> None:
        self.compute.sync()

    def loss(self) -> float | None:
        return self.compute.loss() if self._trains else None

    def set_rate(self, rate: float) -> None:
        set_rate(self.trainer, rate)

    def average_statistics(self) -> None:
        if self.task.point.world_size > 1 and isinstance(self.net, Network):
            for index, norm in enumerate(self.net.norms):
                for each in (norm.running_mean, norm.running_var):
                    each.set_data(self.mean_over_ranks(each.data(self.contexts[0]), f"{index}.{each.name}"))

    def mean_over_ranks(self, value: mx.nd.NDArray, name: str) -> mx.nd.NDArray:
        """Return the mean over ranks, for strategies with a collective for it. The plain loop has none."""
        raise NotImplementedError(f"{self.task.point.strategy} only averages gradients: {name}, {value}")

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        assert isinstance(self.compute, RealCompute)
        return self.compute.predict(inputs)

    def learnt(self) -> Learnt:
        assert isinstance(self.net, Network)
        both = ((norm.running_mean, norm.running_var) for norm in self.net.norms)
        statistics = tuple((self._array(mean), self._array(variance)) for mean, variance in both)
        return Learnt(dict(network.read(self.net)), statistics)

    def _array(self, parameter: mx.gluon.Parameter) -> NDArray[Any]:
        array: NDArray[Any] = parameter.data(self.contexts[0]).asnumpy()
        return array

    def weights(self) -> dict[str, NDArray[Any]]:
        return self.weights_of(self.contexts[0])

    def weights_of(self, context: mx.Context) -> dict[str, NDArray[Any]]:
        return {name: each.data(context).asnumpy() for name, each in self.trained.items()}


class GradientExchange(Untrained, Exchange):
    """One step's exchange alone, with the keys, sizes, order and update of training. Gradients are zero."""

    def step(self) -> None:
        self.update()
