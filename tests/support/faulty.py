"""A strategy from outside: the fake one, but by its mode one of its functions raises, or it lacks something."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from scaling.frameworks.base import Helper
from scaling.frameworks.fake.strategy import Fake
from scaling.records.task import Task

MODULE = "tests.support.faulty"
# What `sometimes` answers, call by call: in a launch inside one process, rank by rank.
ANSWERS: list[str | None] = []


class Faulty(Fake):
    """`fine` works; `environ`, `helpers` and `missing` raise in that function; `number` asks for a variable that
    is no string; `lacking` lacks something everywhere, `sometimes` as ANSWERS say, `second` on mpirun's rank 1."""

    names: tuple[str, ...] = tuple(  # type: ignore[assignment]
        f"{MODULE}:{mode}"
        for mode in ("fine", "environ", "helpers", "missing", "number", "lacking", "sometimes", "second")
    )

    def missing(self, name: str) -> str | None:  # type: ignore[override]  # as it was before devices were asked
        """By mode."""
        mode = name.partition(":")[2]
        if mode == "missing":
            raise KeyError("planted in missing")
        rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK")
        lacks = mode == "lacking" or (mode == "second" and rank == "1")
        return ANSWERS.pop(0) if mode == "sometimes" else "no licence: buy one" if lacks else None

    def helpers(self, task: Task) -> list[Helper]:
        """By mode."""
        if task.point.strategy.endswith(":helpers"):
            raise KeyError("planted in helpers")
        return super().helpers(task)

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        """By mode."""
        if task.point.strategy.endswith(":environ"):
            raise KeyError("planted in environ")
        planted: dict[str, Any] = {"PLANTED": 1} if task.point.strategy.endswith(":number") else {}
        return {**super().environ(task, announced), **planted}
