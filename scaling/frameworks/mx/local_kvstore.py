"""MXNet's kvstores of one process: rank 0's worker drives all devices of its node.

`local` sums the gradients on the host, `device` on the devices, `nccl` with NCCL's all-reduce. On one device
Gluon's Trainer uses no kvstore. Several nodes and MXNet's tree reduction are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping

from scaling.frameworks import network_env
from scaling.frameworks.base import Option, Traits, WithNccl
from scaling.frameworks.mx.plain import MXNetStrategy
from scaling.frameworks.options import one_of
from scaling.records.point import EXCHANGING
from scaling.records.task import Task

CHOICES = {"auto": None, "true": True, "false": False}


class LocalKvstore(WithNccl, MXNetStrategy):
    """One worker per node, with a context per device."""

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
    trainer = "scaling.frameworks.mx.local_kvstore_trainer"

    def traits(self, name: str) -> Traits:
        return Traits(drives="node", nccl=name == "mxnet:nccl", accuracy=("evaluate", "rate"))

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        uses_nccl = task.point.strategy == "mxnet:nccl" and task.point.kind in EXCHANGING
        return {**super().environ(task, announced), **(network_env.nccl_log(task) if uses_nccl else {})}

    def contexts(self, task: Task) -> int:
        return task.point.world_size


STRATEGY = LocalKvstore()
