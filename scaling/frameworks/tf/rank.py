"""One TensorFlow worker's real or emulated devices, threads and precision, its model's facts, and the profiler."""

from __future__ import annotations

import gzip
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from scaling.emulated.device import EmulatedDevice, value
from scaling.frameworks.abilities import Rank, Tracer, Untrained
from scaling.frameworks.tf import network
from scaling.hosts import proc
from scaling.records.task import Task
from scaling.workloads import models
from scaling.workloads.specs import Recipe

# ---------------------------------------------------------------- emulated
#
# Real gradients and exchange; sleeps replace the compute.
# * The forward pass is one operation that sleeps, and so is each layer's backward pass.
# * A layer's gradients and their exchange follow its sleep.
# * A gradient has one value per rank and step: the digest shows what an exchange leaves out or adds twice.
# * The update is plain SGD.


class Variables:
    """The variables of a Keras model alone, divided by the point's `shrink`."""

    def __init__(self, device: EmulatedDevice) -> None:
        sizes = [size for span in device.spans for size in span.sizes]
        self.trainable_variables = [keras.Variable(tf.zeros(size), name="weight") for size in sizes]
        self.variables = self.trainable_variables


class EmulatedCompute:
    """Sleeps as long as the device would compute, and fills the gradients with a number."""

    def __init__(self, device: EmulatedDevice, task: Task, replicas: int) -> None:
        self._device, self._task, self._replicas = device, task, replicas
        # Nothing is learnt.
        self.recipe = Recipe(rate=models.of(task.point.workload).recipe.rate, momentum=0.0)
        self._timeline = device.timeline

    def first(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the fill value of the first step's gradients twice, as images and labels."""
        filled_with = tf.constant(value(self._task.rank, 0))
        return filled_with, filled_with

    def gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the loss and the gradients, layer by layer, divided by `replicas`."""
        done = self._sleep(sum(span.forward_s for span in self._device.spans), images)
        gradients: list[tf.Tensor] = []
        for span in reversed(self._device.spans):
            done = self._sleep(span.backward_s, done)
            gradients[:0] = [tf.fill([size], done / self._replicas) for size in span.sizes]
        return labels, gradients

    def start(self) -> None:
        self._timeline.meet()

    def run(self, step: Callable[..., tf.Tensor], number: int) -> int:
        self._timeline.begin(self._device.rate.step_s)
        filled_with = tf.constant(value(self._task.rank, number))
        step(filled_with, filled_with)
        # The gradients of all ranks are here.
        self._timeline.meet()
        return self._task.point.workload.batch_size

    def finish(self) -> None:
        self._timeline.finish()

    def loss(self) -> None:
        """Return None: nothing is learnt."""

    def _sleep(self, seconds: float, after: tf.Tensor) -> tf.Tensor:
        """Add an operation that returns `after` once the device has worked for `seconds`."""

        def spend(number: tf.Tensor) -> tf.Tensor:
            self._timeline.spend(seconds)
            return number

        slept = tf.numpy_function(spend, [after], tf.float32)
        slept.set_shape(())
        return slept


# ---------------------------------------------------------------- tracing


class TensorFlowTracer(Tracer):
    """TensorFlow's profiler: operations on the host and, if TensorFlow sees one, kernels on the GPU."""

    def start(self, path: Path) -> None:
        """Start the trace. It is written to a temporary tree of folders."""
        # A private module. A version without it fails here and gets no trace.
        from tensorflow.python.profiler.internal import _pywrap_profiler_plugin

        self._convert = _pywrap_profiler_plugin.xspace_to_tools_data
        self._path = path
        self._folder = tempfile.TemporaryDirectory(dir=path.parent)
        tf.profiler.experimental.start(self._folder.name)

    def stop(self) -> None:
        with self._folder as folder:
            tf.profiler.experimental.stop()
            (written,) = Path(folder).rglob("*.xplane.pb")
            events, _ = self._convert([str(written)], "trace_viewer@")
        with gzip.open(self._path, "wb") as file:
            file.write(events)


# ---------------------------------------------------------------- rank

POLICIES = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


class TensorFlowRank(Rank):
    """One worker's device, and the facts of it and its model. With `computes` False (a coordinator), another
    process has the device, which is only named here."""

    computes = True
    notes: tuple[str, ...] = ("TensorFlow computes in channels_last",)

    def __init__(self, task: Task) -> None:
        self.task = task
        self.emulated = EmulatedDevice(task.point) if task.point.hardware.device == "emulated" else None
        self._gpu = _gpu(task.device_index) if task.point.hardware.device == "cuda" else None
        self.cuda = self._gpu is not None and self.computes
        self.device = "/GPU:0" if self.cuda else "/CPU:0"
        self.spec = models.at(task.point)
        self.is_done_on_return = task.point.hardware.device == "cpu"
        self._configure()
        self.device_name = self._name_device()
        self.versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
        if self.cuda:
            build = tf.sysconfig.get_build_info()
            self.versions |= {name: str(build.get(f"{name}_version", "unknown")) for name in ("cuda", "cudnn")}

    def sync(self) -> None:
        if self.cuda:
            tf.test.experimental.sync_devices()

    def peak_memory_bytes(self) -> int:
        """Return the most that TensorFlow's allocator has handed out, in bytes; 0 on CPU."""
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"]) if self.cuda else 0

    def tracers(self) -> Sequence[Tracer]:
        return [TensorFlowTracer()]

    def build(self) -> keras.Model:
        """Return the model with the weights of the task's seed. On an emulated device it has only variables."""
        if self.emulated is not None:
            return Variables(self.emulated)
        keras.utils.set_random_seed(self.task.seed)
        keras.mixed_precision.set_dtype_policy(POLICIES.get(self.task.point.workload.precision, "float32"))
        return network.build(self.spec, self.task.seed)

    def trained(self, model: keras.Model) -> list[keras.Variable]:
        """Return the trained parameters in the description's order, in which gradients are exchanged."""
        found: list[keras.Variable] = model.trainable_variables
        return found if self.emulated is not None else network.parameters(model)

    def describe(self, model: keras.Model) -> list[tuple[int, ...]]:
        """Set the model's size. Return the shape of each gradient (float32), in its order."""
        shapes = [tuple(each.shape) for each in self.trained(model)]
        self.parameters = sum(map(math.prod, shapes))
        self.gradient_bytes = self.parameters * tf.float32.size
        return shapes

    def _configure(self) -> None:
        """Configure before TensorFlow's first operation. A second rank in the process must ask for the same."""
        config = tf.config
        config.set_visible_devices([self._gpu] if self.cuda else [], "GPU")
        if self.cuda:
            config.experimental.set_memory_growth(self._gpu, True)
        config.threading.set_intra_op_parallelism_threads(self.task.threads)
        # Parallel operations would exceed the requested threads. On a GPU they only enqueue, so TensorFlow
        # chooses. An emulated device sleeps in one of two threads.
        emulated = self.emulated is not None
        config.threading.set_inter_op_parallelism_threads(0 if self.cuda else 2 if emulated else 1)
        # TensorFlow computes "fp32" in TF32 by default.
        config.experimental.enable_tensor_float_32_execution(self.task.point.workload.precision == "tf32")

    def _name_device(self) -> str:
        if self.emulated is not None:
            return self.emulated.name
        if self._gpu is not None:
            return str(tf.config.experimental.get_device_details(self._gpu)["device_name"])
        return proc.cpu_model(proc.cpuinfo())


class AllReduces(Untrained, TensorFlowRank):
    """The exchange of one step alone, of gradients of ones. A strategy has `join` and `exchange`."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.join()
        shapes = self.describe(self.build())
        with tf.device(self.device):
            self._gradients = [tf.ones(shape) for shape in shapes]
        self._step = tf.function(self.exchange, autograph=False).get_concrete_function(*self._gradients)

    def join(self) -> None:
        """Join the exchange. TensorFlow is configured and has no variables yet."""
        raise NotImplementedError

    def exchange(self, *gradients: tf.Tensor) -> list[tf.Tensor] | None:
        """Add the exchange to the step's graph. What has no effect that TensorFlow sees must be returned."""
        raise NotImplementedError

    def step(self) -> None:
        self._step(*self._gradients)


def _gpu(index: int) -> tf.config.PhysicalDevice:
    """Return a GPU by its number. TensorFlow lists none if it lacks a CUDA library, and only logs that."""
    gpus = tf.config.list_physical_devices("GPU")
    if index >= len(gpus):
        raise RuntimeError(
            f"tensorflow {tf.__version__} finds {len(gpus)} GPUs, but not number {index}. Its log names "
            "the library that it could not load: ./launch/install tensorflow-cuda into a new environment"
        )
    return gpus[index]
