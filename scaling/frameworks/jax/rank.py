"""One JAX worker's device, threads and precision, the facts of its model, and the profiler."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from math import prod
from pathlib import Path

import jax
import numpy as np

from scaling.frameworks.abilities import Tracer
from scaling.hosts import proc
from scaling.records.task import Task
from scaling.workloads import models

# ---------------------------------------------------------------- tracing


class JaxTracer(Tracer):
    """jax.profiler: XLA's operations on the host and, on a GPU, kernels. Python's own calls would hide them."""

    def start(self, path: Path) -> None:
        self._path = path
        self._folder = tempfile.TemporaryDirectory(dir=path.parent)
        told = jax.profiler.ProfileOptions()
        told.python_tracer_level, told.host_tracer_level = 0, 3
        jax.profiler.start_trace(self._folder.name, create_perfetto_trace=True, profiler_options=told)

    def stop(self) -> None:
        with self._folder as folder:
            jax.profiler.stop_trace()
            (written,) = Path(folder).rglob("perfetto_trace.json.gz")
            shutil.move(written, self._path)


# ---------------------------------------------------------------- rank

# "fp32" would be TF32 on a GPU by default.
MATMULS = {"fp32": "float32", "tf32": "tensorfloat32"}


class JaxRank:
    """One worker's device, and the facts of it and its model."""

    parameters: int
    gradient_bytes: int

    def __init__(self, task: Task) -> None:
        self.task = task
        self.cuda = task.point.hardware.device == "cuda"
        self.spec = models.at(task.point)
        self.is_done_on_return = not self.cuda
        self._configure()
        self.join()
        self.device = jax.local_devices()[0]
        self.device_name = self.device.device_kind if self.cuda else proc.cpu_model(proc.cpuinfo())
        self.versions = {"jax": jax.__version__, "jaxlib": version("jaxlib")}
        self.notes: tuple[str, ...] = ("XLA compiles every step (--compile changes nothing), in channels_last",)

    def join(self) -> None:
        """Join the exchange. No device is open yet."""

    def sync(self) -> None:
        """Do nothing: on CPU a step is done when it returns."""

    def peak_memory_bytes(self) -> int:
        """Return the most that XLA's allocator has handed out, in bytes; 0 on CPU."""
        return int((self.device.memory_stats() or {}).get("peak_bytes_in_use", 0)) if self.cuda else 0

    def close(self) -> None:
        """Do nothing."""

    def tracers(self) -> Sequence[Tracer]:
        return [JaxTracer()]

    def describe(self) -> dict[str, tuple[int, ...]]:
        """Set the model's size. Return the shape of each parameter (float32), in the description's order."""
        placed = self.spec.placed
        shapes = {f"{one.path}.{each.name}": each.shape for one in placed for each in one.parameters}
        self.parameters = sum(map(prod, shapes.values()))
        self.gradient_bytes = self.parameters * np.float32().itemsize
        return shapes

    def _configure(self) -> None:
        """Configure before JAX's first operation. Without asynchronous dispatch a step on CPU ends in its call."""
        jax.config.update("jax_platforms", "cuda" if self.cuda else "cpu")
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        jax.config.update("jax_default_matmul_precision", MATMULS.get(self.task.point.workload.precision))
        if self.cuda:
            jax.config.update("jax_cuda_visible_devices", str(self.task.device_index))
