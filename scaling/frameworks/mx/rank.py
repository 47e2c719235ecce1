"""What all MXNet workers share outside the loop: a rank's contexts, the facts of its model, the profiler."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from scaling.frameworks.abilities import Tracer, pack
from scaling.frameworks.mx import network
from scaling.frameworks.mx.library import mx
from scaling.frameworks.mx.plain import cuda_build
from scaling.hosts import gpus, proc
from scaling.records.task import Task
from scaling.workloads import models

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


class MxnetRank:
    """One worker's contexts and its model. For several contexts override `find_contexts` and `ranks`."""

    parameters: int
    gradient_bytes: int
    device_name: str

    def __init__(self, task: Task) -> None:
        self.task = task
        self.cuda = task.point.hardware.device == "cuda"
        if self.cuda and not mx.context.num_gpus():
            raise RuntimeError(f"mxnet {mx.__version__} finds no GPU: ./launch/install mxnet-cuda")
        self.contexts = self.find_contexts()
        self.spec = models.at(task.point)
        self.dtype = "float16" if task.point.workload.precision == "fp16" else "float32"
        self.versions = self._versions()
        self.notes: tuple[str, ...] = ()

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

    def close(self) -> None:
        """Do nothing."""

    def tracers(self) -> Sequence[Tracer]:
        return [MxnetTracer()]

    def describe(self, net: mx.gluon.Block) -> dict[str, mx.gluon.Parameter]:
        """Set the model's size. Return its trained gluon.Parameters. Their names sort in the model's order and
        agree in all processes. Gluon numbers its own names anew for each model, and its Trainer sorts by name."""
        described = isinstance(net, network.Network)
        trained = list((network.parameters(net) if described else net._collect_params_with_prefix()).items())
        sizes = [each.data(self.contexts[0]).size for _, each in trained]
        self.parameters = sum(sizes)
        bytes_each = [each.data(self.contexts[0]).dtype().itemsize for _, each in trained]
        self.gradient_bytes = sum(size * each for size, each in zip(sizes, bytes_each, strict=True))
        return {f"{index:03d}.{name}": each for index, (name, each) in enumerate(trained)}

    def name_device(self) -> str:
        if self.cuda:
            return str(gpus.gather_gpus()[0][self.contexts[0].device_id].name)
        return proc.cpu_model(proc.cpuinfo())

    def _versions(self) -> dict[str, str]:
        found = {"mxnet": str(mx.__version__), "numpy": metadata.version("numpy")}
        if self.cuda:
            found["build"] = cuda_build() or "?"
        return found
