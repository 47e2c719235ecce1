"""A run's records -> what a prediction stands on: rows, controls, exchanges alone, the network. Pure.

Taxes and straggling come from the controls, exchange times from `comm`, and the noise of each point is the run's
own interval over rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import hypot, log, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from scaling.analysis.analyse import analyse, kept
from scaling.analysis.controls import Controls
from scaling.analysis.curves import exchanges
from scaling.analysis.rounds import rounds
from scaling.analysis.rows import Baseline, Row
from scaling.analysis.stats import Estimate
from scaling.errors import UsageError
from scaling.predict.case import Case, Measured
from scaling.predict.installation import accumulation, device, devices_per_node, setting_of
from scaling.predict.known import Exchange, Known, Share
from scaling.predict.setting import At, Observed
from scaling.records.point import Point
from scaling.records.run import Header, PointRecord

# What disqualifies a row as input, and how much unexplained loss does.
MARKS = ("FAILED", "AUDIT", "OVERSUBSCRIBED", "ASYNC", "UNSETTLED", "THROTTLED", "MISLABELLED")
MOST_UNEXPLAINED = 0.10
# No interval: one round. And what no number of rounds makes smaller, and no scatter of them larger.
ONE_ROUND, LEAST_NOISE, MOST_NOISE = 0.02, 0.004, 0.2
COMM_NOISE, SHARE_NOISE = 0.05, 0.01
NORMAL_95 = 1.96


class Wanted(NamedTuple):
    """Which curve of a run: words of the command line, empty where any will do, or that of a point `like` it. One
    of this `model` and `batch_size` is taken before others, where several devices ran it."""

    strategy: str = ""
    interconnect: str = ""
    up_to: int | None = None
    like: Point | None = None
    model: str = ""
    batch_size: int | None = None


ANY = Wanted()


def case(header: Header, records: Sequence[PointRecord], wanted: Wanted = ANY) -> Case:
    """The curve that was asked for, else the fastest at the largest world size. Raises UsageError, with what would
    mend it."""
    analysis = analyse(records)
    curve = _curve(analysis.rows, wanted)
    row = curve[0]
    _weak(row)
    known = [one for one in curve if wanted.up_to is None or one.world_size <= wanted.up_to]
    sound, left_out = _sound(known)
    baseline = _baseline(analysis.baselines, row)
    if baseline is None or baseline.samples_per_s is None or not sound:
        raise _too_little(row, wanted, left_out)
    rate = baseline.samples_per_s.mean
    anchor = At(world_size=1, nodes=1, accumulation=accumulation(row))
    observed = tuple(
        Observed(at=_at(one), value=one.efficiency.mean, noise=_noise(one)) for one in sound if one.efficiency
    )
    return Case(
        title=_title(row),
        setting=setting_of(header, records, row, rate),
        known=Known(
            anchor,
            observed,
            _exchanges(records, row, wanted.up_to, _spread(baseline.samples_per_s)),
            _shares(sound),
        ),
        rate=rate,
        batch_size=row.workload.batch_size,
        unit=row.workload.unit,
        units_per_sample=row.workload.units_per_sample,
        devices_per_node=devices_per_node(header),
        accumulation=accumulation(row),
        measured=(
            _alone(rate),
            *(_measured(one) for one in curve if one.efficiency and one.world_size > 1),
        ),
        largest=sound[-1].world_size,
        rates=_rates(analysis.baselines, row),
        model=row.workload.model,
        strategy=row.strategy,
        interconnect=row.interconnect,
        options=row.options,
        emulated=bool(row.hardware.profile),
        device=row.hardware.profile or device(header),
        notes=left_out,
        command=_command(row),
    )


def _too_little(row: Row, wanted: Wanted, left_out: Sequence[str]) -> UsageError:
    """What is needed at least, with the command that measures it."""
    again = f"mpirun -np 2 {_command(row)} --batch-size {row.workload.batch_size} --world-sizes 1,2"
    why = f" ({'; '.join(left_out)})" if left_out else ""
    whose = "RUN" if wanted.up_to is None else f"--up-to {wanted.up_to}"
    return UsageError(f"{whose}: one device alone and one sound exchange of several are needed{why}: {again}")


def _curve(rows: Iterable[Row], wanted: Wanted) -> list[Row]:
    curves: dict[int, list[Row]] = {}
    for row in rows:
        named = not wanted.strategy or row.strategy == wanted.strategy
        if wanted.like is not None and not _is_of(wanted.like, row):
            continue
        if named and (not wanted.interconnect or row.interconnect == wanted.interconnect):
            curves.setdefault(row.curve, []).append(row)
    if not curves:
        like = wanted.like
        strategy = like.strategy if like else wanted.strategy
        interconnect = like.interconnect if like else wanted.interconnect
        flags = (("--strategy", strategy), ("--interconnect", interconnect))
        asked = " ".join(f"{flag} {word}" for flag, word in flags if word)
        known = sorted({f"{row.strategy} over {row.interconnect}" for row in rows})
        raise UsageError(f"{asked or 'RUN'}: the run has no such exchange; it has {', '.join(known) or 'none'}")
    same = [curve for curve in curves.values() if _asked(wanted, curve)]
    return max(same or curves.values(), key=_standing)


def _asked(wanted: Wanted, curve: Sequence[Row]) -> bool:
    work = curve[0].workload
    alike = (wanted.model or work.model, wanted.batch_size or work.batch_size) == (work.model, work.batch_size)
    return alike and any(row.world_size > 1 and not _unsound(row) for row in curve)


def _is_of(point: Point, row: Row) -> bool:
    """Whether a point of any world size would stand on the row's curve."""
    return _same(point, row) and (point.placement, point.server_hosts) == (row.placement, row.server_hosts)


def _standing(curve: Sequence[Row]) -> tuple[bool, int, float]:
    last = curve[-1]
    rate = last.samples_per_s.mean if last.samples_per_s else 0.0
    return last.synchronous, last.world_size, rate


def _weak(row: Row) -> None:
    if row.workload.is_strong:
        raise UsageError(
            f"RUN: its batch rule is {row.workload.batch_rule}, and only the weak one is predicted: "
            f"{_command(row)} --batch-rule weak --batch-size B"
        )


def _sound(curve: Sequence[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """The rows of several devices that may be learned from, and why the others may not."""
    sound, left_out = [], []
    for row in curve:
        if row.world_size == 1:
            continue
        why = _unsound(row)
        if why:
            left_out.append(f"N={row.world_size} is left out: {why}")
        else:
            sound.append(row)
    return sound, tuple(left_out)


def _unsound(row: Row) -> str:
    marks = [mark for mark in MARKS if mark in row.flags]
    if marks or row.efficiency is None:
        return ", ".join(marks) or "no efficiency"
    if row.servers and row.servers != row.nodes:
        return f"{row.servers} parameter servers on {row.nodes} nodes: one per node is predicted"
    rest = _unexplained(row)
    if rest > MOST_UNEXPLAINED:
        return f"{100 * rest:.0f} points of its loss are unexplained"
    return ""


def _unexplained(row: Row) -> float:
    """What controls do not tell although all are there: without `comm` the exchange itself is in the rest."""
    lost = row.breakdown
    told = lost is not None and (lost.exposed is not None or lost.waiting is not None)
    return lost.unexplained if lost is not None and told else 0.0


def _at(row: Row) -> At:
    return At(world_size=row.world_size, nodes=row.nodes, accumulation=accumulation(row))


def _noise(row: Row) -> float:
    one = row.efficiency
    if one is None or one.low is None or one.high is None:
        return ONE_ROUND
    if one.low <= 0:  # wider than itself: nothing is known of it
        return MOST_NOISE
    return min(max(LEAST_NOISE, log(one.high / one.low) / 2 / NORMAL_95), MOST_NOISE)


def _spread(one: Estimate) -> float:
    """The standard deviation of its logarithm that the interval over rounds tells, as far as there is one."""
    return 0.0 if one.half_width is None else min(one.half_width / one.mean / NORMAL_95, MOST_NOISE)


def _title(row: Row) -> str:
    emulated = f", EMULATED {row.hardware.profile}" if row.hardware.profile else ""
    work = row.workload
    return f"{row.strategy} over {row.interconnect}, {work.model}, batch {work.batch_size} per device{emulated}"


def _alone(rate: float) -> Measured:
    return Measured(at=At(world_size=1, nodes=1), samples_per_s=rate, efficiency=1.0)


def _measured(row: Row) -> Measured:
    rate, efficiency = row.samples_per_s, row.efficiency
    return Measured(
        at=_at(row),
        samples_per_s=rate.mean if rate else 0.0,
        efficiency=efficiency.mean if efficiency else 0.0,
    )


def _baseline(baselines: Iterable[Baseline], row: Row) -> Baseline | None:
    framework, work = row.strategy.partition(":")[0], row.workload
    return next(
        (
            one
            for one in baselines
            if one.strategy.partition(":")[0] == framework
            and one.workload == work.reference(1)
            and one.hardware == row.hardware
        ),
        None,
    )


def _rates(baselines: Iterable[Baseline], row: Row) -> tuple[tuple[str, int, float], ...]:
    """What one device alone does, by model and batch size."""
    framework = row.strategy.partition(":")[0]
    return tuple(
        (one.workload.model, one.workload.batch_size, one.samples_per_s.mean)
        for one in baselines
        if one.strategy.partition(":")[0] == framework and one.hardware == row.hardware and one.samples_per_s
    )


def _command(row: Row) -> str:
    device = f"emulated:{row.hardware.profile}" if row.hardware.profile else row.hardware.device
    return f"python -m scaling.run --strategy {row.strategy} --model {row.workload.model} --device {device}"


# ---------------------------------------------------------------- what controls tell


def _exchanges(
    records: Sequence[PointRecord], row: Row, up_to: int | None, step_spread: float
) -> tuple[Exchange, ...]:
    """The exchange alone (`comm`) of each world size, over rounds; the step that it is held against has its own
    `step_spread`."""
    latest = kept(records)
    controls, found = Controls(latest), []
    for cell in exchanges(latest):
        point = cell.point
        if _same(point, row) and 1 < point.world_size <= (up_to or point.world_size):
            told = [one.comm_s for one in rounds(cell, controls) if one.comm_s]
            if told:
                at = At(world_size=point.world_size, nodes=cell.nodes)
                found.append(Exchange(at, fmean(told), hypot(_comm_noise(told), step_spread)))
    return tuple(found)


def _comm_noise(seconds: Sequence[float]) -> float:
    own = stdev([log(one) for one in seconds]) / sqrt(len(seconds)) if len(seconds) > 1 else COMM_NOISE
    return max(COMM_NOISE, own)


def _same(point: Point, row: Row) -> bool:
    same = (point.strategy, point.interconnect, point.workload, point.hardware, point.options)
    return same == (row.strategy, row.interconnect, row.workload, row.hardware, row.options)


def _shares(rows: Iterable[Row]) -> tuple[Share, ...]:
    return tuple(share for row in rows for share in _told(row))


def _told(row: Row) -> Iterator[Share]:
    """Contention and straggling of a row over what a device takes alone."""
    if row.breakdown is None or row.efficiency is None:
        return
    for part in ("contention", "straggling"):
        value: float | None = getattr(row.breakdown, part)
        if value is not None:
            half = row.breakdown_intervals[part].half_width if part in row.breakdown_intervals else None
            noise = max(SHARE_NOISE, (half or ONE_ROUND) / NORMAL_95) / row.efficiency.mean
            yield Share(_at(row), part, value / row.efficiency.mean, noise)
