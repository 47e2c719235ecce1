"""TensorFlow's strategies: the agent's side."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from scaling.frameworks import cuda, network_env, options
from scaling.frameworks.base import PASSES, Helper, Option, Strategy, Traits, WithNccl
from scaling.frameworks.horovod.strategy import OPTIONS, Horovod
from scaling.frameworks.options import count_from_0
from scaling.frameworks.tf import FRAMEWORK
from scaling.hosts import gpus
from scaling.records.point import EXCHANGING, SERVER, Device, Point
from scaling.records.task import Task

INSTALL = "./launch/install tensorflow-cuda"


def unfit() -> str | None:
    """Return why TensorFlow cannot compute on this host's GPUs; None if it can or this is unknown."""
    package = find_spec("tensorflow")
    assert package is not None and package.origin is not None
    name = distribution()
    try:
        text = (Path(package.origin).parent / "python/platform/build_info.py").read_text()
    except OSError:
        return None
    if "('is_cuda_build', False)" in text:
        return f"{name} is built without CUDA: {INSTALL}"
    mend = "use another framework"
    built = re.search(r"\('cuda_version', '(\d+\.\d+)", text)
    if built and (why := cuda.driver_too_old(name, cuda.version(built.group(1)), lambda: mend)):
        return why
    return cuda.no_kernels(name, " ".join(re.findall(r"'((?:sm|compute)_\d+)[a-z]?'", text)), lambda: mend)


def distribution() -> str:
    for name in FRAMEWORK.distributions["tensorflow"]:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "tensorflow"


# A user's `keras.json` would change the measurement. Keras ignores a home that it cannot create.
ENVIRON: Mapping[str, str] = {"KERAS_BACKEND": "tensorflow", "KERAS_HOME": os.devnull, "TF_CPP_MIN_LOG_LEVEL": "1"}


class TensorFlowStrategy(Strategy):
    """Devices, limits and environment of all of TensorFlow's strategies."""

    baseline = "tensorflow:plain"
    options: Mapping[str, Option] = options.LOOP
    native_formats: tuple[str, ...] = ("folders", "tfrecord")

    def devices(self, _name: str) -> tuple[Device, ...]:
        return ("cpu", "cuda", "emulated")

    def missing(self, _name: str, device: Device = "cpu") -> str | None:
        package = find_spec("tensorflow")
        if package is None or package.origin is None:  # a folder of this name
            return "tensorflow is not installed: ./launch/install tensorflow"
        return gpus.none_here("tensorflow:ring") or unfit() if device == "cuda" else None

    def refuse(self, point: Point) -> str | None:
        """Return what the loop cannot do. Any `memory_format` is accepted: TensorFlow has its own."""
        return options.refuse(point)

    def environ(self, _task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
        return dict(ENVIRON)


class Plain(TensorFlowStrategy):
    """The loop of one device without exchange: the baseline."""

    names = ("tensorflow:plain",)
    trainer = "scaling.frameworks.tf.loop"

    def traits(self, _name: str) -> Traits:
        return PASSES


class MultiWorker(WithNccl, TensorFlowStrategy):
    """MultiWorkerMirroredStrategy over gRPC rings or NCCL. The ranks' own servers find each other.

    * Every rank is a gRPC server. TensorFlow binds it to 0.0.0.0 without credentials, whatever TF_CONFIG says
      (GrpcServer::Init in tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc).
    * Keras's optimiser sums all gradients in one all-reduce after the backward pass. `bytes_per_pack` cuts it into
      several, which may start earlier.
    * Each rank keeps its own running means of batch norm.
    * The ring seems to follow the task numbers as text (0, 1, 10, 11, ..., 2, 3, ...). 16 ranks on 4 nodes crossed
      nodes on 6 edges, not 4: 1.51 times the bytes of a ring in rank order.
    """

    names = ("tensorflow:ring", "tensorflow:nccl")
    # The default of tf.distribute.experimental.CommunicationOptions.
    options: Mapping[str, Option] = {
        "bytes_per_pack": Option(
            type=count_from_0, default=0, help="bytes of gradients that are exchanged as one pack; 0: all in one"
        ),
        **TensorFlowStrategy.options,
    }
    trainer = "scaling.frameworks.tf.loop"

    def traits(self, name: str) -> Traits:
        return Traits(rank_ports=True, is_open=True, nccl=name == "tensorflow:nccl", accuracy=("evaluate", "rate"))

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        """Return the cluster, whose addresses choose the network, and for NCCL also the interface."""
        shared = super().environ(task, announced)
        if task.point.kind not in EXCHANGING:
            return shared
        servers = [f"{host}:{port}" for host, port in zip(task.addresses, task.rank_ports, strict=True)]
        cluster = {"cluster": {"worker": servers}, "task": {"type": "worker", "index": task.rank}}
        nccl = network_env.nccl(task) | network_env.nccl_log(task) if self.by_nccl(task.point) else {}
        return {**shared, "TF_CONFIG": json.dumps(cluster), **nccl}

    def ring_of(self, task: Task) -> Sequence[str]:
        """Return the hosts in the order of the task numbers as text."""
        return [host for _, host in sorted(enumerate(task.hosts), key=lambda pair: str(pair[0]))]


# Helpers that compute are named trainer-0, trainer-1, ... by rank.
TRAINER = "trainer-"


class ParameterServer(TensorFlowStrategy):
    """TensorFlow's asynchronous ParameterServerStrategy, with variables on servers, round-robin.

    Rank 0's worker is the coordinator. It hands out N steps at a time, each to the next free trainer. A trainer
    pulls the variables, computes and pushes its gradients, and the servers update. Trainers are helpers, one per
    rank, with the CPUs and the device of their rank. Trainers and servers are TensorFlow's own gRPC servers.
    Running means of batch norm are variables on the servers.
    """

    names = ("tensorflow:ps",)
    options: Mapping[str, Option] = {
        "partition_min_bytes": Option(
            type=count_from_0,
            default=0,
            help="smallest part, in bytes, of a variable that is split over the servers; 0: none is split",
        ),
        **TensorFlowStrategy.options,
    }
    # Its trainers keep the first batches of the reference feed.
    native_formats = ()
    trainer = "scaling.frameworks.tf.ps_trainer"
    server = "scaling.frameworks.tf.ps_server"

    def traits(self, _name: str) -> Traits:
        return Traits(drives="point", ports=1, rank_ports=True, servers=True, synchronous=False, is_open=True)

    def devices(self, _name: str) -> tuple[Device, ...]:
        """Return where trainers compute. Variables stay in the servers' memory."""
        return ("cpu", "cuda")

    def refuse(self, point: Point) -> str | None:
        if point.workload.compile:
            return "--compile: TensorFlow's XLA cannot read variables of another process; leave it out"
        return super().refuse(point)

    def helpers(self, task: Task) -> list[Helper]:
        servers = [Helper(name=f"{SERVER}{index}", server=index) for index in range(len(task.servers))]
        ranks = range(task.point.world_size)
        return [*servers, *(Helper(name=f"{TRAINER}{rank}", rank=rank, computes=True) for rank in ranks)]

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        """Return the cluster, whose addresses choose the network, and this process's place in it."""
        kind, index = "chief", 0
        for job, prefix in (("ps", SERVER), ("worker", TRAINER)):
            if task.role.startswith(prefix):
                kind, index = job, int(task.role.removeprefix(prefix))
        cluster = {
            "chief": [f"{task.address}:{task.ports[0]}"],
            "worker": [f"{host}:{port}" for host, port in zip(task.addresses, task.rank_ports, strict=True)],
            "ps": [f"{server.address}:{server.port}" for server in task.servers],
        }
        config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        # As TensorFlow's manual asks for all three: a lost peer is then an error.
        return {**super().environ(task, announced), "TF_CONFIG": config, "GRPC_FAIL_FAST": "use_caller"}


class TensorFlowHorovod(Horovod, TensorFlowStrategy):
    """Horovod's all-reduce of each gradient, over Gloo, or over NCCL on GPUs. It refuses what TensorFlow's loop
    refuses. Horovod's Adasum, process sets and join are not supported."""

    names = ("tensorflow:horovod",)
    framework = "tensorflow"
    options = {**OPTIONS, **TensorFlowStrategy.options}
    trainer = "scaling.frameworks.tf.hvd_trainer"
