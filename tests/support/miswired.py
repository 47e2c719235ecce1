"""A strategy from outside that sends its gradients over the card in SCALING_MISWIRED, whatever it is told to take:
torch:gloo with a wrong environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from scaling.frameworks.pytorch.ddp import DDP
from scaling.records.task import Task


class Miswired(DDP):
    """torch:gloo, but for its environment."""

    names = ("tests.support.miswired:gloo",)

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        found = super().environ(task, announced)
        return {**found, "GLOO_SOCKET_IFNAME": os.environ["SCALING_MISWIRED"]} if found else found
