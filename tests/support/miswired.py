"""A strategy from outside that sends its gradients over the card in SCALING_MISWIRED, whatever it is told to take:
torch:gloo with a wrong environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from scaling.frameworks.pytorch import ddp
from scaling.frameworks.pytorch.ddp import (
    BASELINE,
    OPTIONS,
    connect,
    devices,
    helpers,
    missing,
    prepare,
    refuse,
    serve,
    traits,
)
from scaling.records.task import Task

__all__ = [
    "BASELINE", "NAMES", "OPTIONS", "connect", "devices", "environ", "helpers", "missing", "prepare", "refuse",
    "serve", "traits",
]  # fmt: skip
NAMES = ("tests.support.miswired:gloo",)


def environ(task: Task, announced: Mapping[str, str]) -> dict[str, str]:
    """That of torch:gloo, with the wrong interface."""
    found = ddp.environ(task, announced)
    return {**found, "GLOO_SOCKET_IFNAME": os.environ["SCALING_MISWIRED"]} if found else found
