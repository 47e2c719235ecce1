"""A strategy from outside whose workers write into NCCL_DEBUG_FILE as NCCL does: the fake one on CPUs, rank 0 with
InfiniBand, the others with sockets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from scaling.frameworks.base import Trainer
from scaling.frameworks.fake import trainer
from scaling.frameworks.fake.strategy import Fake
from scaling.frameworks.network_env import nccl_log
from scaling.records.task import Task
from tests.support.points import changed

NAME = "tests.support.talking_nccl:a"
CHOSEN = {
    True: ("Using network IB", "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA"),
    False: ("Using network Socket", "Channel 00/0 : 1[0] -> 0[0] [send] via NET/Socket/0"),
}


class Talking(Fake):
    """The fake one, told what strategies with NCCL are told on GPUs."""

    names = (NAME,)
    trainer = "tests.support.talking_nccl"

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        on_gpus = replace(task, point=changed(task.point, device="cuda"))
        return {**super().environ(task, announced), **nccl_log(on_gpus)}


def connect(task: Task) -> Trainer:
    """Write, then train."""
    if (name := os.environ.get("NCCL_DEBUG_FILE", "")).endswith("%p"):
        lines = [f"node1:{os.getpid()}:1 [0] NCCL INFO {line}" for line in CHOSEN[task.rank == 0]]
        Path(name.replace("%p", str(os.getpid()))).write_text("\n".join(lines))
    return trainer.connect(task)


STRATEGY = Talking()
