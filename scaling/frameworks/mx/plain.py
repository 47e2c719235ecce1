"""The agent's side that all MXNet strategies share, and `mxnet:plain`, the loop without exchange."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec

from scaling.frameworks import cuda, options
from scaling.frameworks.base import PASSES, Option, Strategy, Traits
from scaling.hosts import gpus
from scaling.records.point import Device, Point
from scaling.records.task import Task

# What 1.9.1 is compiled for, without PTX (ELF sections of libmxnet.so in mxnet-cu112 and mxnet-cu117).
COMPILED = "sm_50 sm_60 sm_70 sm_80 sm_86"


class MXNetStrategy(Strategy):
    """What all MXNet strategies need, support and set."""

    baseline = "mxnet:plain"
    options: Mapping[str, Option] = options.LOOP
    native_formats = ("recordio",)
    native_hint = "which im2rec.py of MXNet packs a tree of pictures into"

    def devices(self, _name: str) -> tuple[Device, ...]:
        """Return all: gradients can pass through the host's memory."""
        return ("cpu", "cuda", "emulated")

    def missing(self, _name: str, device: Device = "cpu") -> str | None:
        package = find_spec("mxnet")
        if package is None or package.origin is None:  # a folder of this name
            return "mxnet is not installed: ./launch/install mxnet"
        if device != "cuda":
            return None
        if why := gpus.none_here("mxnet:device"):
            return why
        name = cuda_build()
        if name is None:
            return "mxnet is built without CUDA: ./launch/install mxnet-cuda"
        return cuda.no_kernels(name, COMPILED, lambda: "use another framework")

    def refuse(self, point: Point) -> str | None:
        if (why := options.refuse_emulated(point)) is not None:
            return why
        work = point.workload
        if work.precision != "fp32" and (work.precision, point.hardware.device) != ("fp16", "cuda"):
            return f"--precision {work.precision}: mxnet computes in fp32 (fp16 with CUDA)"
        if work.memory_format != "contiguous":
            return f"--memory-format {work.memory_format}: mxnet's models are contiguous (NCHW); leave it out"
        if work.compile:
            return "--compile: mxnet always runs hybridized graphs; leave it out"
        return options.refuse(point)

    def contexts(self, _task: Task) -> int:
        return 1

    def environ(self, task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
        """Return MXNet's settings. Each context has one engine thread with OMP_NUM_THREADS; sums over contexts
        have their own number. An inherited DMLC_ROLE could turn `import mxnet` into a server."""
        settings = {
            "DMLC_ROLE": "worker",
            "MXNET_CPU_WORKER_NTHREADS": "1",
            "MXNET_KVSTORE_REDUCTION_NTHREADS": str(task.threads * self.contexts(task)),
        }
        if task.point.hardware.device == "cuda":
            # cuDNN and cuBLAS compute "fp32" in TF32 by default.
            settings["NVIDIA_TF32_OVERRIDE"] = "0"
        return settings


def cuda_build() -> str | None:
    """Return the name of the installed distribution with CUDA, such as `mxnet-cu112`, or None. Imports nothing."""
    names = (each.metadata["Name"] or "" for each in metadata.distributions())
    return next((name for name in names if name.startswith(("mxnet-cu", "mxnet_cu"))), None)


class Plain(MXNetStrategy):
    """The plain loop of one device."""

    names = ("mxnet:plain",)
    trainer = "scaling.frameworks.mx.loop"

    def traits(self, _name: str) -> Traits:
        return PASSES


STRATEGY = Plain()
