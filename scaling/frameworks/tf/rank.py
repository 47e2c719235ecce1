"""One TensorFlow worker's devices, threads and precision, and the facts about it and its model."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Sequence
from pathlib import Path

import keras
import tensorflow as tf

from scaling.frameworks.tf import network
from scaling.frameworks.tf.emulated import Variables
from scaling.frameworks.tracing import Tracer
from scaling.hosts import proc
from scaling.records.task import Task
from scaling.tools.emulated.device import EmulatedDevice
from scaling.workloads import models

# ---------------------------------------------------------------- tracing
#
# TensorFlow's profiler as the worker starts and stops it. Worker's side.


class TensorFlowTracer(Tracer):
    """Operations on the host and, where TensorFlow sees one, kernels on the GPU."""

    def start(self, path: Path) -> None:
        """It writes into a tree of folders of its own."""
        # TensorFlow's own, which not every version has: without it there is no trace, and nothing else is lost.
        from tensorflow.python.profiler.internal import _pywrap_profiler_plugin

        self._convert = _pywrap_profiler_plugin.xspace_to_tools_data
        self._path = path
        self._folder = tempfile.TemporaryDirectory(dir=path.parent)
        tf.profiler.experimental.start(self._folder.name)

    def stop(self) -> None:
        """Make Chrome's events of what it wrote, as TensorBoard does."""
        with self._folder as folder:
            tf.profiler.experimental.stop()
            (written,) = Path(folder).rglob("*.xplane.pb")
            events, _ = self._convert([str(written)], "trace_viewer@")
        with gzip.open(self._path, "wb") as file:
            file.write(events)


# ---------------------------------------------------------------- rank

POLICIES = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


class TensorFlowRank:
    """One worker's device and the facts about it and its model.

    A coordinator `computes` nothing: its rank's device is another process's, and only named here.
    """

    computes = True
    parameters: int
    gradient_bytes: int

    def __init__(self, task: Task) -> None:
        self.task = task
        self.emulated = EmulatedDevice(task.point) if task.point.hardware.device == "emulated" else None
        self._gpu = _gpu(task.device_index) if task.point.hardware.device == "cuda" else None
        self.cuda = self._gpu is not None and self.computes
        self.device = "/GPU:0" if self.cuda else "/CPU:0"
        self.spec = models.at(task.point)
        self.notes: tuple[str, ...] = network.notes(self.spec)
        self.is_done_on_return = task.point.hardware.device == "cpu"
        self._configure()
        self.device_name = self._name_device()
        self.versions = self._versions()

    def sync(self) -> None:
        """Wait for the GPU; on CPU a step has ended when it returns."""
        if self.cuda:
            tf.test.experimental.sync_devices()

    def peak_memory_bytes(self) -> int:
        """The most that TensorFlow's allocator has handed out; 0 on CPU, where the process's own peak counts."""
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"]) if self.cuda else 0

    def close(self) -> None:
        """Nothing to leave."""

    def tracers(self) -> Sequence[Tracer]:
        """TensorFlow's own."""
        return [TensorFlowTracer()]

    def build(self) -> keras.Model:
        """The point's model, with the weights of the task's seed; on an emulated device what has its variables."""
        if self.emulated is not None:
            return Variables(self.emulated)
        keras.utils.set_random_seed(self.task.seed)
        keras.mixed_precision.set_dtype_policy(POLICIES.get(self.task.point.workload.precision, "float32"))
        return network.build(self.spec, self.task.seed)

    def trained(self, model: keras.Model) -> list[keras.Variable]:
        """What is trained, in the order of the model's description, in which gradients are exchanged."""
        found: list[keras.Variable] = model.trainable_variables
        return found if self.emulated is not None else network.parameters(model)

    def describe(self, model: keras.Model) -> list[tuple[int, ...]]:
        """Set what is known of a model's size; returns the shape of each gradient (float32), in its order."""
        shapes = [tuple(each.shape) for each in self.trained(model)]
        self.parameters = sum(self._size(shape) for shape in shapes)
        self.gradient_bytes = self.parameters * tf.float32.size
        return shapes

    def _size(self, shape: tuple[int, ...]) -> int:
        return int(tf.TensorShape(shape).num_elements())

    def _configure(self) -> None:
        """Before TensorFlow's first operation; a second rank in one process must ask for the same."""
        config = tf.config
        config.set_visible_devices([self._gpu] if self.cuda else [], "GPU")
        if self.cuda:
            config.experimental.set_memory_growth(self._gpu, True)
        config.threading.set_intra_op_parallelism_threads(self.task.threads)
        # Operations that run beside each other would be threads beyond those that were asked for; on a GPU
        # they only enqueue, and TensorFlow's own choice stands. An emulated device sleeps in one.
        emulated = self.emulated is not None
        config.threading.set_inter_op_parallelism_threads(0 if self.cuda else 2 if emulated else 1)
        # TensorFlow computes in TF32 by default: "fp32" must switch it off.
        config.experimental.enable_tensor_float_32_execution(self.task.point.workload.precision == "tf32")

    def _name_device(self) -> str:
        if self.emulated is not None:
            return self.emulated.name
        if self._gpu is not None:
            return str(tf.config.experimental.get_device_details(self._gpu)["device_name"])
        return proc.cpu_model(proc.cpuinfo())

    def _versions(self) -> dict[str, str]:
        found = {"tensorflow": tf.__version__, "keras": keras.__version__}
        if self.cuda:
            build = tf.sysconfig.get_build_info()
            found |= {name: str(build.get(f"{name}_version", "unknown")) for name in ("cuda", "cudnn")}
        return found


def _gpu(index: int) -> tf.config.PhysicalDevice:
    """A GPU by its number. Where TensorFlow lacks a CUDA library it only logs so, and lists none."""
    gpus = tf.config.list_physical_devices("GPU")
    if index >= len(gpus):
        raise RuntimeError(
            f"tensorflow {tf.__version__} finds {len(gpus)} GPUs and not number {index}: its log names "
            "the library that it could not load; ./launch/install tensorflow-cuda into an environment of its own"
        )
    return gpus[index]
