"""Sweeps of points that take turns, inside this process: who was told what, and who ran then."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from scaling.quiet import agent
from scaling.records.messages import Pause, Paused
from scaling.records.run import PointRecord
from scaling.records.task import Run as RunCommand
from tests.support.inline import Launch, Run
from tests.support.inline_child import Told

STEADY_S = 0.006

# Five points of one epoch of three blocks.
BLOCKS = 3
CELLS = ("exchange N=1", "exchange N=2", "comm N=2", "each N=2", "together N=2")
SIDE_BY_SIDE: dict[str, Any] = {
    "interleave": True, "kinds": ["exchange", "solo", "each", "together", "comm"], "rounds": 1, "windows": BLOCKS,
    "window_s": 0.015, "soak_s": 0.2,
}  # fmt: skip
# One cell alone: its canaries come one per block.
ONE_CELL: dict[str, Any] = {"kinds": ["exchange", "each"], "windows": 12, "soak_s": 0.0}
# Steps of the exchange of both ranks before its first block, by the script's 10 ms and windows of four of them:
# two single ones, one window; then in each block one that is not counted and a window.
WARM, BLOCK = 6, 5
# Then it goes on for a soak of turns of two windows, before which one step is not counted: so many as a soak has
# at least, and the steps of one.
LATER_TURNS, LATER = 5, 9


def scripted_canaries(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the canaries will take, one after the other, to be filled; then always the same. No real core is
    asked."""
    scripted: list[float] = []
    monkeypatch.setattr(agent, "measure", lambda cpus: scripted.pop(0) if scripted else STEADY_S)
    monkeypatch.setattr(agent, "queued_s", lambda: 0.0)
    return scripted


def slow(values: list[float], *, after: int, times: Iterable[float]) -> None:
    """Script the canaries: so many steady ones, then these."""
    values.extend([*repeat(STEADY_S, after), *times])


def quiet_probes(monkeypatch: pytest.MonkeyPatch, seconds: float = STEADY_S) -> None:
    """Cores are as quick as ever while somebody looks whether they are, whatever they are once windows run."""

    def stood(order: Pause, launch_rank: int, cpus: object) -> Paused:
        return Paused(attempt=order.attempt, launch_rank=launch_rank, canary_s=seconds if order.canary else None)

    monkeypatch.setattr(agent, "stood", stood)


def sweep(tmp_path: Path, launch: Launch | None = None, **fields: Any) -> Run:
    """A sweep of world sizes 1 and 2, side by side."""
    return (launch or Launch(2)).sweep(tmp_path, **{**SIDE_BY_SIDE, "world_sizes": [1, 2], **fields})


def cell(told: Told) -> str:
    """`exchange N=2`."""
    return f"{told.task.point.kind} N={told.task.point.world_size}"


def measured(launch: Launch, round_number: int = 0) -> list[tuple[Told, RunCommand]]:
    """The commands to measure."""
    return [
        (told, told.command)
        for told in launch.told
        if isinstance(told.command, RunCommand) and told.command.measured and told.task.point.round == round_number
    ]


def blocks(launch: Launch, round_number: int = 0) -> list[list[str]]:
    """The cells of each block, each once, in the order in which they ran."""
    found: dict[int, list[str]] = {}
    for told, run in measured(launch, round_number):
        found.setdefault(run.first, []).append(cell(told))
    assert list(found) == sorted(found)
    return [list(dict.fromkeys(cells)) for cells in found.values()]


def indices(record: PointRecord) -> list[list[int]]:
    return [[window.index for window in rank.windows] for rank in record.ranks]


def disturbed(run: Run) -> list[tuple[str, int, float | None]]:
    """The windows on record that were measured again: cell, index, canary."""
    return [
        (record.point.label, window.index, window.canary_s)
        for record in run.records
        for rank in record.ranks
        for window in rank.disturbed
    ]
