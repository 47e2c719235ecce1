"""What leaving the slow nodes out brings: promised from what was measured before, then measured. Pure.

In the same rounds all nodes, those without the suspects, and those without as many healthy nodes: without this
control one node fewer would be credited to the cure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp
from statistics import fmean

from scaling.analysis.stats import Estimate, interval
from scaling.analysis.step_time import lock_step, step_time
from scaling.bisect.belief import Trial
from scaling.bisect.trials import volume
from scaling.records.point import Record
from scaling.records.run import PointRecord


class Proof(Record, frozen=True, kw_only=True):
    """Efficiencies as fractions of 1, means over rounds, of all nodes, without the suspects, and without the
    control. `gain` is the paired difference over the rounds of the second from the first, `of_control` of the
    third."""

    everyone: float
    without: float
    control: float
    gain: Estimate
    of_control: Estimate


def proof(records: Iterable[PointRecord], without: Sequence[str], control: Sequence[str]) -> Proof | None:
    """Of the records of the rounds; `without` and `control` are the hosts that took part each time. None where no
    round has all of them."""
    by_round: dict[int, dict[str, float]] = {}
    for record in records:
        time = step_time(record)
        name = {(): "everyone", tuple(without): "without", tuple(control): "control"}.get(record.point.hosts)
        if record.point.kind == "solo":
            name = "alone"
        if time is not None and name and record.point.kind in ("solo", "exchange"):
            by_round.setdefault(record.point.round, {})[name] = time.step_s
    whole = [times for times in by_round.values() if len(times) == 4]
    if not whole:
        return None
    all_of = {
        name: [times["alone"] / times[name] for times in whole] for name in ("everyone", "without", "control")
    }
    return Proof(
        everyone=fmean(all_of["everyone"]),
        without=fmean(all_of["without"]),
        control=fmean(all_of["control"]),
        gain=_difference(all_of, "without"),
        of_control=_difference(all_of, "control"),
    )


def _difference(all_of: Mapping[str, Sequence[float]], name: str) -> Estimate:
    return interval([one - other for one, other in zip(all_of[name], all_of["everyone"], strict=True)])


def promise(
    exchange: PointRecord,
    together: PointRecord,
    alone: PointRecord,
    trials: Sequence[Trial],
    slow: frozenset[int],
    nodes: Sequence[str],
) -> float | None:
    """The efficiency of the others if they exchange like the healthy groups of the search, as a fraction of 1;
    None where something that it rests on was not measured.

    A step takes what the slowest of them takes beside the others (`together`), and of the exchange what does not
    hide behind the compute: what hid of the slow one's hides of the healthy one's as well.
    """
    times = step_time(exchange), lock_step(together), step_time(alone)
    if times[0] is None or times[1] is None or times[2] is None:
        return None
    left = frozenset(nodes[index] for index in range(len(nodes)) if index not in slow)
    beside = sorted(
        seat.step_s
        for rank in together.ranks
        if rank.host in left and (seat := times[1].seats.get(rank.launch_rank)) is not None
    )
    healthy = [one.log_s for one in trials if not one.nodes & slow]
    ill = [one.log_s for one in trials if one.nodes & slow]
    compute_s = beside[-1]
    exposed_s = max(0.0, times[0].step_s - max(seat.step_s for seat in times[1].seats.values()))
    if healthy and ill:
        whole_s = exp(fmean(ill)) * volume(exchange, len(nodes))
        hidden_s = max(0.0, whole_s - exposed_s)
        exposed_s = max(0.0, exp(fmean(healthy)) * volume(exchange, len(nodes)) - hidden_s)
    return times[2].step_s / (compute_s + exposed_s)
