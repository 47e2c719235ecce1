"""What a cluster would do without one of its nodes, if the others are as they were measured. Pure.

Ranks that exchange gradients wait for the slowest: what its node costs all of them is how much slower its ranks
were beside the others (`together`) than the slowest of those. A node slow in its exchange alone is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from scaling.analysis.analyse import kept
from scaling.analysis.cell import Cell
from scaling.analysis.controls import Controls
from scaling.analysis.curves import exchanges
from scaling.errors import UsageError, near
from scaling.predict.case import Case
from scaling.records.run import PointRecord


class Relief(NamedTuple):
    """`world_size` is what is left without the node, `share` the part of a step that nobody would wait then."""

    node: str
    world_size: int
    share: float

    @property
    def factor(self) -> float:
        """By how much the others' rate grows."""
        return 1 / (1 - self.share)


def without(node: str, case: Case, records: Sequence[PointRecord]) -> Relief:
    """What leaving `node` out changes at the largest measured world size. Raises UsageError."""
    latest = kept(records)
    cell = next((one for one in exchanges(latest) if _is_largest(one, case)), None)
    if cell is None:
        raise UsageError(f"--without {node}: no exchange of {case.largest} devices is left: {case.command}")
    host = {rank: said.partition(" on ")[2].split()[0].rstrip(",") for rank, said in cell.where.items()}
    if node not in host.values():
        raise UsageError(f"--without {node}: the run has no such node; {near(node, set(host.values()))}")
    ours = {rank for rank, name in host.items() if name == node}
    if len(ours) == len(host):
        raise UsageError(f"--without {node}: no other node took part")
    together = Controls(latest).together(cell.point)
    shares = [] if together is None else [_share(cell, together, number, ours) for number in together.times]
    told = [share for share in shares if share is not None]
    if not told:
        raise UsageError(f"--without {node}: needs `together`: {case.command} --kinds exchange,solo,together")
    return Relief(node, case.largest - len(ours), max(0.0, fmean(told)))


def _is_largest(cell: Cell, case: Case) -> bool:
    return cell.point.world_size == case.largest and cell.point.strategy == case.strategy


def _share(cell: Cell, together: Cell, number: int, ours: set[int]) -> float | None:
    """How much of the exchange's step the node makes others wait, in one round."""
    time, seats = cell.times.get(number), together.times[number].seats
    theirs = [seat.step_s for rank, seat in seats.items() if rank not in ours]
    own = [seat.step_s for rank, seat in seats.items() if rank in ours]
    if time is None or not theirs or not own:
        return None
    return min(0.9, (max(own) - max(theirs)) / time.step_s)
