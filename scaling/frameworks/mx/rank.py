"""What all MXNet strategies share outside the loop: what they refuse, their environment, a worker's contexts
and model. MXNet is imported when a rank is made: the agent imports this module too."""

from __future__ import annotations

import warnings
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from scaling.frameworks import limits, options
from scaling.frameworks.mx import vision
from scaling.hosts import gpus, proc
from scaling.records.point import Point
from scaling.records.task import Task
from scaling.workloads import models

# Every MXNet strategy has these options beside its own.
OPTIONS = options.LOOP
accumulated = options.accumulated


# ---------------------------------------------------------------- before the worker


def missing() -> str | None:
    """Why MXNet cannot be imported, found without importing it."""
    return "mxnet is not installed: ./launch/install mxnet" if find_spec("mxnet") is None else None


def refuse(point: Point) -> str | None:
    """What no MXNet strategy can do of a point."""
    if (why := limits.refuse(point)) is not None:
        return why
    if not vision.available(point.workload.model):
        return f"--model {point.workload.model}: not in Gluon; mxnet has {', '.join(vision.BUILDERS)}"
    if point.workload.precision != "fp32" and (point.workload.precision, point.hardware.device) != (
        "fp16",
        "cuda",
    ):
        return f"--precision {point.workload.precision}: mxnet computes in fp32 (fp16 with CUDA)"
    if point.workload.memory_format != "contiguous":
        return f"--memory-format {point.workload.memory_format}: mxnet has its models in contiguous (NCHW)"
    if point.workload.compile:
        return "--compile: mxnet runs hybridized graphs always; leave it out"
    return options.refuse(point)


def environ(task: Task, contexts: int = 1) -> dict[str, str]:
    """MXNet's settings in a process that computes on so many `contexts`.

    Each context has one engine thread, whose OpenMP team has OMP_NUM_THREADS; only summing over contexts
    has a number of its own. An inherited DMLC_ROLE could turn `import mxnet` into a server.
    """
    settings = {
        "DMLC_ROLE": "worker",
        "MXNET_CPU_WORKER_NTHREADS": "1",
        "MXNET_KVSTORE_REDUCTION_NTHREADS": str(task.threads * contexts),
    }
    if task.point.hardware.device == "cuda":
        # cuDNN and cuBLAS compute "fp32" in TF32 by default.
        settings["NVIDIA_TF32_OVERRIDE"] = "0"
    return settings


def cuda_build() -> str | None:
    """The installed distribution with CUDA, like `mxnet-cu112`; None for one without. Imports nothing."""
    names = (each.metadata["Name"] or "" for each in metadata.distributions())
    return next((name for name in names if name.startswith(("mxnet-cu", "mxnet_cu"))), None)


# ---------------------------------------------------------------- in the worker


def load_mxnet() -> Any:
    """Import MXNet 1.9 beside a NumPy that has lost a name it needs; returns the module.

    Its import warns of NumPy's other changes, which nothing here meets.
    """
    import numpy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "bool" not in vars(numpy):
            numpy.bool = bool  # type: ignore[attr-defined, unused-ignore]
        import mxnet  # type: ignore[import-not-found, import-untyped, unused-ignore]
    return mxnet


class MxnetRank:
    """One worker's contexts and the facts about them and its model.

    `contexts` are those that this process drives; a strategy with several overrides `find_contexts`.
    """

    parameters: int
    gradient_bytes: int

    def __init__(self, task: Task) -> None:
        self.task = task
        self.mx = load_mxnet()
        self.cuda = task.point.hardware.device == "cuda"
        if self.cuda and not self.mx.context.num_gpus():
            raise RuntimeError(f"mxnet {self.mx.__version__} finds no GPU: ./launch/install mxnet-cuda")
        self.contexts = self.find_contexts()
        self.spec = models.spec(task.point.workload.model)
        self.dtype = "float16" if task.point.workload.precision == "fp16" else "float32"
        self.device_name = self._name_device()
        self.versions = self._versions()
        self.notes: tuple[str, ...] = vision.notes(self.spec)

    def find_contexts(self) -> list[Any]:
        """This rank's device."""
        return [self.mx.gpu(self.task.device_index) if self.cuda else self.mx.cpu()]

    def sync(self) -> None:
        """Wait for MXNet's engine: computation, exchange and update. Raises what went wrong in them."""
        self.mx.nd.waitall()

    def peak_memory_bytes(self) -> int:
        """What is in use on the GPUs, others' memory included: MXNet's pool gives nothing back. 0 on CPU,
        where the process's own peak counts."""
        if not self.cuda:
            return 0
        told = [self.mx.context.gpu_memory_info(each.device_id) for each in self.contexts]
        return max(int(total - free) for free, total in told)

    def close(self) -> None:
        """Nothing to leave."""

    def build(self) -> Any:
        """The point's model on all contexts, with the weights of the task's seed, as hybridized block."""
        self.mx.random.seed(self.task.seed)
        net = vision.build(self.spec)
        vision.initialize(net, self.spec, self.contexts)
        if self.dtype != "float32":
            net.cast(self.dtype)
        net.hybridize(static_alloc=True, static_shape=True)
        return net

    def describe(self, net: Any) -> dict[str, Any]:
        """Set what is known of a model's size; returns its trained gluon.Parameters.

        Their names sort in the model's order and are those of every process: Gluon's own are numbered anew
        with each model, and its Trainer sorts by name.
        """
        named = net._collect_params_with_prefix().items()
        trained = [(name, each) for name, each in named if each.grad_req != "null"]
        sizes = [each.data(self.contexts[0]).size for _, each in trained]
        self.parameters = sum(sizes)
        bytes_each = [each.data(self.contexts[0]).dtype().itemsize for _, each in trained]
        self.gradient_bytes = sum(size * each for size, each in zip(sizes, bytes_each, strict=True))
        return {f"{index:03d}.{name}": each for index, (name, each) in enumerate(trained)}

    def _name_device(self) -> str:
        if self.cuda:
            return str(gpus.gather_gpus()[0][self.contexts[0].device_id].name)
        return proc.cpu_model(proc.cpuinfo())

    def _versions(self) -> dict[str, str]:
        found = {"mxnet": str(self.mx.__version__), "numpy": metadata.version("numpy")}
        if self.cuda:
            found["build"] = cuda_build() or "?"
        return found
