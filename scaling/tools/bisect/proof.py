"""What leaving the slow nodes out brings, as measured. Pure.

In the same rounds all nodes, those without the suspects, and those without as many healthy nodes: without this
control one node fewer would be credited to the cure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from scaling.analysis.stats import Estimate, interval
from scaling.analysis.step_time import step_time
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
