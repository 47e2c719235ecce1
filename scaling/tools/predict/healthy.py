"""Predicts a cluster without one of its nodes.

Ranks wait for the slowest. A node's cost is how much slower its ranks are than the slowest of the others, in
`together`. So a node that is slow only in its exchange is not detected. Measured efficiencies are converted to
those without waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, harmonic_mean
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis.measured.cell import Cell
from scaling.analysis.measured.controls import Controls
from scaling.analysis.table.analyse import kept
from scaling.analysis.table.comparisons import exchanges
from scaling.errors import UsageError, near
from scaling.records.run import PointRecord
from scaling.tools.predict.forecast import Case


class Relief(NamedTuple):
    """The effect of leaving out a node. `share` is the part of a step that the others wait for it. `faster` is how
    much faster the others are alone than all devices."""

    node: str
    world_size: int
    share: float
    faster: float = 1.0

    @property
    def factor(self) -> float:
        """Factor on the efficiency: the step and the baseline both become shorter."""
        return 1 / (1 - self.share) / self.faster

    @property
    def words(self) -> str:
        saved = f"{100 * self.share:.1f} % of a step"
        apart = abs(self.faster - 1) >= 0.001
        alone = f"; alone, the other devices are {100 * (self.faster - 1):+.1f} % faster than all" if apart else ""
        return f"without {self.node}: the others wait {saved} for its ranks (`together`){alone}"


def without(node: str, case: Case, records: Sequence[PointRecord]) -> tuple[Relief, Case]:
    """Return the effect of leaving out `node` at the largest world size, and the converted case. Raises
    UsageError."""
    latest = kept(records)
    cells = {one.point.world_size: one for one in exchanges(latest) if _is_of(one, case)}
    if case.largest not in cells:
        raise UsageError(f"--without {node}: the run has no exchange of {case.largest} devices: {case.command}")
    hosts = set(_hosts(cells[case.largest]).values())
    if node not in hosts:
        raise UsageError(f"--without {node}: the run has no such node; {near(node, hosts)}")
    if len(hosts) == 1:
        raise UsageError(f"--without {node}: no other node took part")
    controls = Controls(latest)
    found = {size: relief for size, cell in cells.items() if (relief := _relief(cell, node, controls))}
    if case.largest not in found:
        raise UsageError(f"--without {node}: needs `together`: {case.command} --kinds exchange,solo,together")
    return found[case.largest], _healthy(case, found)


def _is_of(cell: Cell, case: Case) -> bool:
    point = cell.point
    work = (point.workload.model, point.workload.batch_size)
    own = (case.strategy, case.interconnect, case.options, (case.model, case.batch_size))
    return (point.strategy, point.interconnect, point.options, work) == own


def _hosts(cell: Cell) -> dict[int, str]:
    return {rank.launch_rank: rank.host for record in cell.records for rank in record.ranks}


def _relief(cell: Cell, node: str, controls: Controls) -> Relief | None:
    hosts, together = _hosts(cell), controls.together(cell.point)
    ours = {rank for rank, name in hosts.items() if name == node}
    shares = [] if together is None else [_share(cell, together, number, ours) for number in together.times]
    told = [share for share in shares if share is not None]
    if not told:
        return None
    alone = controls.times_alone(cell, cell.point.workload.batch_size).values()
    faster = fmean([_faster(one.seats, ours) for one in alone]) if alone else 1.0
    return Relief(node, cell.point.world_size - len(ours), max(0.0, fmean(told)), faster)


def _share(cell: Cell, together: Cell, number: int, ours: set[int]) -> float | None:
    time, seats = cell.times.get(number), together.times[number].seats
    theirs = [seat.step_s for rank, seat in seats.items() if rank not in ours]
    own = [seat.step_s for rank, seat in seats.items() if rank in ours]
    if time is None or not theirs:
        return None
    return min(0.9, (max(own) - max(theirs)) / time.step_s) if own else 0.0


def _faster(seats: Mapping[int, float], ours: set[int]) -> float:
    """1 if not each device was measured alone"""
    theirs = [seconds for rank, seconds in seats.items() if rank not in ours]
    return harmonic_mean(list(seats.values())) / harmonic_mean(theirs) if theirs else 1.0


def _healthy(case: Case, found: Mapping[int, Relief]) -> Case:
    """Controls of converted world sizes include the waiting, so they are dropped."""
    largest = found[case.largest]
    factors = {size: one.factor for size, one in found.items()}
    observed = tuple(
        replace(one, value=one.value * factors.get(one.at.world_size, 1.0)) for one in case.known.observed
    )
    waited = {size for size, factor in factors.items() if factor != 1}
    shares = tuple(one for one in case.known.shares if one.at.world_size not in waited)
    return case._replace(
        known=case.known._replace(observed=observed, shares=shares),
        setting=replace(case.setting, step_s=case.setting.step_s / largest.faster),
        rate=case.rate * largest.faster,
        rates=tuple((model, batch, rate * largest.faster) for model, batch, rate in case.rates),
        without=largest.node,
    )
