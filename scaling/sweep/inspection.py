"""Uncounted steps after the measured windows: which points run them, and how many.

* Steps without exchange: two windows of half length, for every exchange between real devices.
* Exchanges during compute: as many, on GPUs, where CPU time does not split the loss.
* Profiled steps: once per cell, with `--trace`.
"""

from __future__ import annotations

from collections.abc import Iterable

from scaling.records.events import Finished
from scaling.records.point import Device, Kind, Point
from scaling.records.run import PointRecord
from scaling.records.task import Inspect
from scaling.sweep.state import PointState

UNSYNCED_WINDOWS = 2
TRACED_STEPS = 5
# Kinds that explain an exchange by comparison; `comm` computes nothing.
TRACED: tuple[Kind, ...] = ("exchange", "together", "solo", "each")
OVERLAPPED: tuple[Device, ...] = ("cuda",)


def traced(points: Iterable[Point], records: Iterable[PointRecord]) -> frozenset[str]:
    """Return the keys of points that end with profiled steps: those of cells without a successful record."""
    wanted = {point.key: point.cell for point in points if point.kind in TRACED}
    had = {record.point.cell for record in records if isinstance(record.outcome, Finished)}
    return frozenset(key for key, cell in wanted.items() if cell not in had)


def command(state: PointState) -> Inspect | None:
    """Return the uncounted steps of all ranks after their measured windows; None if there are none."""
    point = state.point
    # Steps of an emulated device do not show what a wrapper costs.
    exchanges = point.kind == "exchange" and point.world_size > 1 and point.hardware.device != "emulated"
    windows = UNSYNCED_WINDOWS if exchanges else 0
    traced_steps = TRACED_STEPS if state.ranks[0].task.is_traced else 0
    if not windows and not traced_steps:
        return None
    steps = max(1, state.ranks[0].windows[-1].steps // UNSYNCED_WINDOWS)
    beside_windows = windows if point.hardware.device in OVERLAPPED else 0
    return Inspect(windows=windows, steps=steps, traced_steps=traced_steps, beside_windows=beside_windows)
