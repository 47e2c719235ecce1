"""MXNet's strategies: the agent's side."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec

from scaling.frameworks import cuda, network_env, options
from scaling.frameworks.base import PASSES, Helper, Option, Strategy, Traits, WithNccl, read_options
from scaling.frameworks.horovod.strategy import OPTIONS, Horovod
from scaling.frameworks.options import one_of, positive_integer, positive_number
from scaling.hosts import gpus
from scaling.records import crossing
from scaling.records.crossing import Parts
from scaling.records.point import EXCHANGING, SERVER, Device, Point
from scaling.records.task import Task
from scaling.workloads import models

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


# ---------------------------------------------------------------- kvstores

CHOICES = {"auto": None, "true": True, "false": False}


class LocalKvstore(WithNccl, MXNetStrategy):
    """MXNet's kvstores of one process: rank 0's worker drives all devices of its node, with a context for each.

    `local` sums the gradients on the host, `device` on the devices, `nccl` with NCCL's all-reduce. On one device
    Gluon's Trainer uses no kvstore. Several nodes and MXNet's tree reduction are not supported.
    """

    names = ("mxnet:local", "mxnet:device", "mxnet:nccl")
    options = {
        "update_on_kvstore": Option(
            type=one_of(*CHOICES),
            default="auto",
            help="true: the kvstore updates the weights; false: each device does; "
            "auto: as Gluon's Trainer chooses",
        ),
        **MXNetStrategy.options,
    }
    trainer = "scaling.frameworks.mx.kvstore_trainer"

    def traits(self, name: str) -> Traits:
        return Traits(drives="node", nccl=name == "mxnet:nccl", accuracy=("evaluate", "rate"))

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        uses_nccl = task.point.strategy == "mxnet:nccl" and task.point.kind in EXCHANGING
        return {**super().environ(task, announced), **(network_env.nccl_log(task) if uses_nccl else {})}

    def contexts(self, task: Task) -> int:
        return task.point.world_size


ASYNCHRONOUS = "mxnet:dist_async"
SCHEDULER = "scheduler"
# MXNet reads the bound as an int, and fails on larger ones.
MOST = 2**31 - 1


class DistKvstore(MXNetStrategy):
    """MXNet's distributed kvstores: a scheduler on rank 0, servers with the parameters, and a worker of ps-lite
    for each rank.

    * `dist_sync`: a server waits for all workers' gradients and makes one update of their mean.
    * `dist_device_sync`: as `dist_sync`; a worker with several devices sums on these. Here a worker has one.
    * `dist_async`: each worker's mean gradient is an update at once, at the same learning rate. Weights may have
      changed since they were pulled. In the time of a synchronous step there are as many updates as workers.

    Momentum is on the servers and mixes all workers' gradients. Row-sparse parameters, ps-lite's P3 scheduling and
    several devices per worker are not supported.
    """

    names = ("mxnet:dist_sync", "mxnet:dist_device_sync", ASYNCHRONOUS)
    # MXNet's defaults.
    options = {
        "bigarray_bound": Option(
            type=positive_integer,
            default=1_000_000,
            help="arrays of at least so many elements are split over all servers",
        ),
        "compression": Option(
            type=one_of("none", "2bit"),
            default="none",
            help="2bit sends each gradient as -threshold, 0 or threshold and keeps the rest for the next step",
        ),
        "compression_threshold": Option(
            type=positive_number, default=0.5, help="threshold of 2bit, for gradients summed over a device's batch"
        ),
        "update_on_kvstore": Option(
            type=bool, default=True, help="true: servers update the weights; false: every rank does"
        ),
        **MXNetStrategy.options,
    }
    trainer = "scaling.frameworks.mx.kvstore_trainer"
    server = "scaling.frameworks.mx.ps_lite"
    preload = (trainer, server)

    def traits(self, name: str) -> Traits:
        return Traits(ports=1, servers=True, synchronous=name != ASYNCHRONOUS, accuracy=("evaluate",))

    def refuse(self, point: Point) -> str | None:
        options, precision = read_options(self.options, point.options), point.workload.precision
        if point.strategy == ASYNCHRONOUS and not options["update_on_kvstore"]:
            return "--option update_on_kvstore=false: mxnet:dist_async only updates on its servers; leave it out"
        optimizer = models.of(point.workload).recipe.optimizer
        if point.strategy == ASYNCHRONOUS and optimizer != "sgd" and point.hardware.device != "emulated":
            return f"--optimizer {optimizer}: the servers of {ASYNCHRONOUS} update by SGD; add --optimizer sgd"
        if options["compression"] != "none" and precision != "fp32":
            return f"--option compression=2bit: mxnet only compresses fp32 gradients, not {precision}"
        return super().refuse(point)

    def helpers(self, task: Task) -> list[Helper]:
        servers = [
            Helper(name=f"{SERVER}{index}", server=index, awaited=False) for index in range(len(task.servers))
        ]
        return [Helper(name=SCHEDULER, awaited=False), *servers]

    def wire_parts(self, point: Point) -> Parts:
        """Return 2 of 32 bits outwards with 2bit compression. Servers send whole weights back."""
        small = read_options(self.options, point.options)["compression"] == "2bit"
        return (2 / 32, 1.0) if small else crossing.WHOLE

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        """Return MXNet's settings and, for a point that exchanges, the variables of ps-lite."""
        common = super().environ(task, announced)
        if task.point.kind not in EXCHANGING:
            return common
        whole = read_options(self.options, task.point.options)["bigarray_bound"]
        role, address, port = node_of(task)
        return {
            **common,
            "DMLC_ROLE": role,
            "DMLC_PS_ROOT_URI": task.address,
            "DMLC_PS_ROOT_PORT": str(task.ports[0]),
            "DMLC_NUM_WORKER": str(task.point.world_size),
            "DMLC_NUM_SERVER": str(len(task.servers)),
            # A node binds this address and announces it. It takes precedence over the interface.
            "DMLC_NODE_HOST": address,
            "DMLC_INTERFACE": task.place.interface,
            "MXNET_KVSTORE_BIGARRAY_BOUND": str(min(MOST, max(1, round(whole / task.point.hardware.shrink)))),
            **({"PORT": str(port)} if role == "server" else {}),
        }


def node_of(task: Task) -> tuple[str, str, int]:
    """Return this process's DMLC_ROLE, its address, and its own port; 0 for a worker: ps-lite takes a free one."""
    if task.role == SCHEDULER:
        return SCHEDULER, task.address, task.ports[0]
    if task.role == "worker":
        return "worker", task.addresses[task.rank], 0
    server = task.servers[int(task.role.removeprefix(SERVER))]
    return "server", server.address, server.port


# ---------------------------------------------------------------- Horovod


class MXNetHorovod(Horovod, MXNetStrategy):
    """Horovod's DistributedTrainer over Gloo, or over NCCL on GPUs. It refuses what MXNet's loop refuses.

    MXNet's engine starts the exchange of each gradient once it is computed. Horovod's optimiser divides by the
    ranks, this loop by the batch: the update is the mean. Adasum, process sets and join are not supported.
    """

    names = ("mxnet:horovod",)
    framework = "mxnet"
    options = {**OPTIONS, **MXNetStrategy.options}
    trainer = "scaling.frameworks.mx.hvd_trainer"
    preload = (*Horovod.preload, trainer)

    def wire_parts(self, point: Point) -> Parts:
        """Return whole gradients with `--precision fp16`: these are halves already."""
        return crossing.WHOLE if point.workload.precision == "fp16" else super().wire_parts(point)
