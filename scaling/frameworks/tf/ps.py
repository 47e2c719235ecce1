"""TensorFlow's ParameterServerStrategy: asynchronous, with variables on servers, round-robin by number.

Rank 0's worker is the coordinator. It hands out N steps at a time, and each goes to whichever trainer is free: a
trainer pulls the variables, computes, and pushes its gradients; the servers update. Trainers are helpers, one
per rank, each with the CPUs and the device of its rank; they and the servers are TensorFlow's own gRPC servers.

Trainers are fed from memory: a graph cannot call our Python code, so each trainer keeps its rank's first
batches (as many as fit in 32 MB, at least one) in a file without a name, and a tf.data pipeline repeats them.

Running means of batch normalisation are variables on the servers, as TensorFlow has it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from scaling.frameworks import options
from scaling.frameworks.base import Helper, Option, Trainer, Traits
from scaling.frameworks.tf import loop
from scaling.records.point import SERVER, Device, Point
from scaling.records.task import Task
from scaling.workloads import feeds, models

NAMES: tuple[str, ...] = ("tensorflow:ps",)
BASELINE = "tensorflow:plain"

OPTIONS: Mapping[str, Option] = {
    "partition_min_bytes": Option(
        type=options.count_from_0,
        default=0,
        help="variables are cut over the servers into parts of no fewer bytes; 0: they stay whole",
    ),
    **loop.OPTIONS,
}

TRAINER = "trainer-"
FED_BYTES = 32 * 1000**2


# ---------------------------------------------------------------- before the worker


def traits(_name: str) -> Traits:
    """One port for the coordinator, one for each trainer, one for each server."""
    return Traits(drives="point", ports=1, rank_ports=True, servers=True, synchronous=False)


def devices(_name: str) -> tuple[Device, ...]:
    """Trainers compute on either; variables stay in the servers' memory."""
    return ("cpu", "cuda")


def missing(_name: str) -> str | None:
    """Found in the installed files; TensorFlow is not imported."""
    return loop.missing()


def refuse(point: Point) -> str | None:
    """What the shared loop refuses, and XLA."""
    if point.workload.compile:
        return "--compile: TensorFlow's XLA cannot read variables of another process; tensorflow:ps runs without"
    return loop.refuse(point)


def helpers(task: Task) -> list[Helper]:
    """The parameter servers, and a trainer for each rank."""
    servers = [Helper(name=f"{SERVER}{index}", server=index) for index in range(len(task.servers))]
    ranks = range(task.point.world_size)
    return [*servers, *(Helper(name=f"{TRAINER}{rank}", rank=rank, computes=True) for rank in ranks)]


def environ(task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
    """The cluster, whose addresses choose the network, and this process's place in it."""
    kind, index = "chief", 0
    for job, prefix in (("ps", SERVER), ("worker", TRAINER)):
        if task.role.startswith(prefix):
            kind, index = job, int(task.role.removeprefix(prefix))
    cluster = {
        "chief": [f"{task.address}:{task.ports[0]}"],
        "worker": [f"{host}:{port}" for host, port in zip(task.addresses, task.rank_ports, strict=True)],
        "ps": [f"{server.address}:{server.port}" for server in task.servers],
    }
    config = {"cluster": cluster, "task": {"type": kind, "index": index}}
    # As TensorFlow's manual asks of all three: a lost peer is an error, and not waited for.
    return {**loop.ENVIRON, "TF_CONFIG": json.dumps(config), "GRPC_FAIL_FAST": "use_caller"}


# ---------------------------------------------------------------- in the helpers


def serve(task: Task, announce: Callable[[dict[str, str]], None]) -> None:
    """A parameter server, or a trainer, which announces where its images are."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    loop.end_with_parent()
    server = tf.distribute.Server(
        resolver.cluster_spec(), resolver.task_type, resolver.task_id, config=_session(tf, task), protocol="grpc"
    )
    announce({task.role: _keep_images(task) if task.role.startswith(TRAINER) else server.target})
    # Its own `join` keeps Python's lock for ever: the thread that watches the lifeline could not run.
    threading.Event().wait()


def _session(tf: Any, task: Task) -> Any:
    """A server takes the threads that its CPUs allow; a trainer those of its rank, and its GPU."""
    config = tf.compat.v1.ConfigProto()
    trainer = task.role.startswith(TRAINER)
    # A step waits in one such thread while others run its operations: a trainer with one alone hangs, and the
    # manual asks for one more than there are workers of a server.
    waiting = task.threads if trainer else max(task.point.world_size, len(os.sched_getaffinity(0)))
    config.inter_op_parallelism_threads = 1 + waiting
    if trainer and task.point.hardware.device == "cuda":
        config.gpu_options.visible_device_list = str(task.device_index)
        config.gpu_options.allow_growth = True
    else:
        config.device_count["GPU"] = 0
    if trainer:
        config.intra_op_parallelism_threads = task.threads
        tf.config.experimental.enable_tensor_float_32_execution(task.point.workload.precision == "tf32")
    return config


def _keep_images(task: Task) -> str:
    """The file of a rank's first batches, one record each: images (batch, height, width, channels) as
    float32, labels as int64. It is memory of this process and ends with it."""
    feed = feeds.feed(task, models.spec(task.point.workload.model))
    memory = os.memfd_create("images")
    with open(memory, "wb", closefd=False) as file:
        for step in count():
            images, labels = feed.batch(step)
            file.write(images.transpose(0, 2, 3, 1).tobytes() + labels.tobytes())
            if feed.fixed or (step + 2) * (images.nbytes + labels.nbytes) > FED_BYTES:
                break
    return f"/proc/self/fd/{memory}"


# ---------------------------------------------------------------- in the worker


def prepare() -> None:
    """Import TensorFlow."""
    loop.prepare()


def connect(task: Task) -> Trainer:
    """Raises what TensorFlow raises; ImportError when something is not installed."""
    from scaling.frameworks.tf.ps_trainer import Coordinator, GradientExchange

    return GradientExchange(task) if task.point.kind == "comm" else Coordinator(task)
