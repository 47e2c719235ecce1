"""TensorFlow's MultiWorkerMirroredStrategy over gRPC rings or NCCL: the agent's side.

* Every rank is a gRPC server. TensorFlow binds it to 0.0.0.0 without credentials, whatever TF_CONFIG says
  (GrpcServer::Init in tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc).
* Keras's optimiser sums all gradients in one all-reduce after the backward pass. `bytes_per_pack` cuts it into
  several, which may start earlier.
* Each rank keeps its own running means of batch norm.
* The ring seems to follow the task numbers as text (0, 1, 10, 11, ..., 2, 3, ...). 16 ranks on 4 nodes crossed
  nodes on 6 edges, not 4: 1.51 times the bytes of a ring in rank order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from scaling.frameworks import network_env
from scaling.frameworks.base import Option, Traits, WithNccl
from scaling.frameworks.options import count_from_0
from scaling.frameworks.tf.plain import TensorFlowStrategy
from scaling.records.point import EXCHANGING
from scaling.records.task import Task


class MultiWorker(WithNccl, TensorFlowStrategy):
    """A strategy without helpers: the ranks' own servers find each other."""

    names = ("tensorflow:ring", "tensorflow:nccl")
    # The default of tf.distribute.experimental.CommunicationOptions.
    options: Mapping[str, Option] = {
        "bytes_per_pack": Option(
            type=count_from_0, default=0, help="bytes of gradients that are exchanged as one pack; 0: all in one"
        ),
        **TensorFlowStrategy.options,
    }
    trainer = "scaling.frameworks.tf.multiworker_trainer"

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


STRATEGY = MultiWorker()
