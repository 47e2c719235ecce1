"""A strategy from outside: the fake one, but by its mode a hook raises or answers wrongly, or it is missing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scaling.frameworks.base import Helper, Trainer
from scaling.frameworks.fake.strategy import Fake, FakeTrainer
from scaling.records.crossing import Bounds
from scaling.records.point import Device, Point
from scaling.records.task import Task

MODULE = "tests.support.faulty"
MODES = (
    "fine", "lacking", "sometimes", "second", "environ", "helpers", "refuse", "missing", "leaving", "number",
    "null", "refusing", "helping", "beyond", "bytes", "memory", "notes", "exits", "announces",
)  # fmt: skip
# What `sometimes` answers, call by call: in a launch inside one process, rank by rank.
ANSWERS: list[str | None] = []


class Faulty(Fake):
    """`fine` works; `lacking` lacks something everywhere, `sometimes` as ANSWERS say, `second` on mpirun's rank 1.

    `environ`, `helpers`, `refuse` and `missing` raise in that hook, `leaving` exits in environ(). Others answer
    wrongly: `number`, `null` (environ), `refusing` (refuse), `helping`, `beyond` (helpers), `bytes`
    (bytes_per_step); in the trainer `memory`, `notes`. `exits` exits in a step, `announces` announces a number.
    """

    names: tuple[str, ...] = tuple(f"{MODULE}:{mode}" for mode in MODES)  # type: ignore[assignment]
    trainer = server = MODULE

    def missing(self, name: str, _device: Device = "cpu") -> str | None:
        mode = name.partition(":")[2]
        if mode == "missing":
            raise KeyError("planted in missing")
        rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK")
        lacks = mode == "lacking" or (mode == "second" and rank == "1")
        return ANSWERS.pop(0) if mode == "sometimes" else "no licence: buy one" if lacks else None

    def helpers(self, task: Task) -> list[Helper]:
        mode = mode_of(task.point)
        if mode == "helpers":
            raise KeyError("planted in helpers")
        wrong: dict[str, Any] = {
            "helping": [Helper(name=3)],  # type: ignore[arg-type]
            "beyond": [Helper(name="server", rank=99)],
            "announces": [Helper(name="server")],
        }
        return wrong[mode] if mode in wrong else super().helpers(task)

    def refuse(self, point: Point) -> str | None:
        mode = mode_of(point)
        if mode == "refuse":
            raise KeyError("planted in refuse")
        wrong: Any = 3
        return wrong if mode == "refusing" else None

    def bytes_per_step(self, task: Task, gradient_bytes: int) -> Bounds | None:
        wrong: Any = "a lot"
        return wrong if mode_of(task.point) == "bytes" else super().bytes_per_step(task, gradient_bytes)

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        mode = mode_of(task.point)
        if mode == "environ":
            raise KeyError("planted in environ")
        if mode == "leaving":
            raise SystemExit("planted in environ")
        wrong: dict[str, Any] = {"number": 1, "null": "a\0b"}
        planted = {"PLANTED": wrong[mode]} if mode in wrong else {}
        return {**super().environ(task, announced), **planted}


def copied(folder: Path) -> None:
    """Put this strategy into a folder as `my.plug`, which nothing else of this repository is beside."""
    (folder / "my").mkdir()
    (folder / "my" / "plug.py").write_text(Path(__file__).read_text().replace(MODULE, "my.plug"))


def mode_of(point: Point) -> str:
    """`fine` of `tests.support.faulty:fine`."""
    return point.strategy.partition(":")[2]


def connect(task: Task) -> Trainer:
    """The fake one, with a wrong answer by mode."""
    trainer: Any = FakeTrainer(task)
    mode = mode_of(task.point)
    if mode == "memory":
        trainer.peak_memory_bytes = lambda: 1234.5
    if mode == "notes":
        trainer.notes = "tuned"
    if mode == "exits":
        trainer.step = sys.exit
    return trainer  # type: ignore[no-any-return]


def serve(_task: Task, announce: Callable[[Any], None]) -> None:
    """Announce a number, where an address is wanted."""
    announce({"PORT": 1})
