"""What an emulated row cannot know, and by how much the emulating machine may be wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.cell import Cell
from scaling.records.emulation import Emulation
from scaling.records.point import Point

# Of a step; a machine that is later than that tells networks apart that are alike, or the other way round.
MOST_LATE = 0.005


def notes(cell: Cell) -> Iterator[str]:
    """Say what of a row was not measured but assumed, and what is left out of it."""
    found = cell.emulation
    if found is not None:
        yield from _of_the_device(found, cell.point)
        yield from _of_the_exchange(found, cell.point, cell.nodes)


def _of_the_device(found: Emulation, point: Point) -> Iterator[str]:
    if found.fitted:
        work = point.workload
        yield (
            f"FITTED: nobody published {work.unit}/s of one device at batch {work.batch_size}; it sleeps by "
            f"{found.fitted}"
        )


def _of_the_exchange(found: Emulation, point: Point, nodes: int) -> Iterator[str]:
    if point.world_size == 1:
        return
    step_s = point.workload.batch_size / found.samples_per_s
    if found.error_fraction is not None and found.error_fraction > MOST_LATE * (1 + 1e-6):
        share = _percent(found.error_fraction)
        yield (
            f"the last bucket takes {_ms(found.tail_s)} here, {_ms(found.wire_s)} on the links that are emulated: "
            f"up to {share} of the step is the emulator's; give more --dilate, or leave it out"
        )
    if point.world_size > nodes and not found.inside:
        yield "not emulated: the links inside a node, whose bandwidth its profile does not know"
    elif found.inside_s > found.wire_s:
        beside = f", {_ms(found.wire_s)} of it beside the links between nodes" if found.wire_s else ""
        bucket = "the last bucket" if found.error_fraction is not None else "DDP's last bucket"
        yield (
            f"not emulated: {found.inside} inside a node, which takes {bucket} {_ms(found.inside_s)} at "
            f"least, {_percent(found.inside_s / step_s)} of a step{beside}"
        )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
