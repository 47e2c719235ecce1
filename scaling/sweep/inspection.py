"""What ranks do after their measured windows that no figure counts: which points, how many steps. Pure.

Steps without an exchange take half as long as two measured windows, and every point of an exchange between real
devices has them; exchanges beside compute are as many, on GPUs, where CPU time does not split the loss; profiled
steps are asked for (`--trace`) and follow once per cell.
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
# What explains an exchange by comparison; `comm` computes nothing.
TRACED: tuple[Kind, ...] = ("exchange", "together", "solo", "each")
# Where no CPU time tells what the exchange takes beside compute.
OVERLAPPED: tuple[Device, ...] = ("cuda",)


def traced(points: Iterable[Point], records: Iterable[PointRecord]) -> frozenset[str]:
    """The keys of those points that end with profiled steps: the first of each cell that ends well."""
    wanted = {point.key: point.cell for point in points if point.kind in TRACED}
    had = {record.point.cell for record in records if isinstance(record.outcome, Finished)}
    return frozenset(key for key, cell in wanted.items() if cell not in had)


def command(state: PointState) -> Inspect | None:
    """What all ranks are told when they have done their measured windows; None where nothing is left."""
    point = state.point
    # An emulated device's steps say nothing of what a wrapper costs.
    exchanges = point.kind == "exchange" and point.world_size > 1 and point.hardware.device != "emulated"
    windows = UNSYNCED_WINDOWS if exchanges else 0
    traced_steps = TRACED_STEPS if state.ranks[0].task.is_traced else 0
    if not windows and not traced_steps:
        return None
    steps = max(1, state.ranks[0].windows[-1].steps // UNSYNCED_WINDOWS)
    beside_windows = windows if point.hardware.device in OVERLAPPED else 0
    return Inspect(windows=windows, steps=steps, traced_steps=traced_steps, beside_windows=beside_windows)
