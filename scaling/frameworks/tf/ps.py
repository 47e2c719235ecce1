"""TensorFlow's asynchronous ParameterServerStrategy, with variables on servers, round-robin: the agent's side.

Rank 0's worker is the coordinator. It hands out N steps at a time, each to the next free trainer. A trainer pulls
the variables, computes and pushes its gradients, and the servers update. Trainers are helpers, one per rank, with
the CPUs and the device of their rank. Trainers and servers are TensorFlow's own gRPC servers. Running means of
batch norm are variables on the servers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from scaling.frameworks.base import Helper, Option, Traits
from scaling.frameworks.options import count_from_0
from scaling.frameworks.tf.plain import TensorFlowStrategy
from scaling.records.point import SERVER, Device, Point
from scaling.records.task import Task

# Helpers that compute are named trainer-0, trainer-1, ... by rank.
TRAINER = "trainer-"


class ParameterServer(TensorFlowStrategy):
    """A coordinator, a trainer for each rank, and the servers."""

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


STRATEGY = ParameterServer()
