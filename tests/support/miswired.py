"""Strategies from outside that send their gradients over the card in SCALING_MISWIRED, whatever they are told:
torch:gloo and jax:psum."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec.structs import replace

from scaling.frameworks.base import Trainer
from scaling.frameworks.jax.strategies import OnMesh
from scaling.frameworks.pytorch.strategies import DDP
from scaling.records.task import Task


class Miswired(DDP):
    """torch:gloo, but for its environment."""

    names = ("tests.support.miswired:gloo",)

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        found = super().environ(task, announced)
        return {**found, "GLOO_SOCKET_IFNAME": os.environ["SCALING_MISWIRED"]} if found else found


class MiswiredPsum(OnMesh):
    """jax:psum, but for its trainer's interface."""

    names = ("tests.support.miswired:psum",)
    trainer = "tests.support.miswired"


def connect(task: Task) -> Trainer:
    from scaling.frameworks.jax import mesh_trainer

    place = replace(task.place, interface=os.environ["SCALING_MISWIRED"])
    return mesh_trainer.connect(replace(task, place=place))
