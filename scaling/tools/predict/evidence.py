"""A run's records -> what a prediction stands on: rows, controls, exchanges alone, the network. Pure.

Taxes and straggling come from the controls, exchange times from `comm`, and the noise of each point is the run's
own interval over rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import hypot, log, sqrt
from statistics import fmean, stdev

from scaling.analysis.analyse import analyse, kept
from scaling.analysis.controls import Controls
from scaling.analysis.curves import exchanges
from scaling.analysis.rounds import rounds
from scaling.analysis.rows import Baseline, Row
from scaling.analysis.stats import Estimate
from scaling.errors import UsageError
from scaling.records.run import Header, PointRecord
from scaling.tools.predict import curve
from scaling.tools.predict.case import Case, Measured
from scaling.tools.predict.curve import ANY, Wanted
from scaling.tools.predict.installation import accumulation, device, devices_per_node, setting_of
from scaling.tools.predict.known import Exchange, Known, Share
from scaling.tools.predict.setting import At, Observed

# No interval: one round. And what no number of rounds makes smaller, and no scatter of them larger.
ONE_ROUND, LEAST_NOISE, MOST_NOISE = 0.02, 0.004, 0.2
COMM_NOISE, SHARE_NOISE = 0.05, 0.01
NORMAL_95 = 1.96


def case(header: Header, records: Sequence[PointRecord], wanted: Wanted = ANY) -> Case:
    """The curve that was asked for, else the fastest at the largest world size. Raises UsageError, with what would
    mend it."""
    analysis = analyse(records)
    rows = curve.chosen(analysis.rows, wanted)
    row = rows[0]
    known = [one for one in rows if wanted.up_to is None or one.world_size <= wanted.up_to]
    sound, left_out = curve.sound(known)
    baseline = _baseline(analysis.baselines, row)
    if baseline is None or baseline.samples_per_s is None or not sound:
        raise _too_little(row, wanted, left_out)
    alone = baseline.samples_per_s
    return _unmeasured(header, records, row, alone.mean)._replace(
        known=Known(
            At(world_size=1, nodes=1, accumulation=accumulation(row)),
            _observed(sound),
            _exchanges(records, row, wanted.up_to, _spread(alone)),
            _shares(sound),
        ),
        measured=_measured(rows, alone.mean),
        largest=sound[-1].world_size,
        rates=_rates(analysis.baselines, row),
        notes=left_out,
    )


def _unmeasured(header: Header, records: Sequence[PointRecord], row: Row, rate: float) -> Case:
    """The setting of the row's curve and its words, before anything that was measured of several devices."""
    work, together = row.workload, accumulation(row)
    return Case(
        title=_title(row),
        setting=setting_of(header, records, row, rate),
        known=Known(At(world_size=1, nodes=1, accumulation=together)),
        rate=rate,
        batch_size=work.batch_size,
        unit=work.unit,
        units_per_sample=work.units_per_sample,
        devices_per_node=devices_per_node(header),
        accumulation=together,
        model=work.model,
        strategy=row.strategy,
        interconnect=row.interconnect,
        options=row.options,
        emulated=bool(row.hardware.profile),
        device=row.hardware.profile or device(header),
        command=curve.command(row),
    )


def _too_little(row: Row, wanted: Wanted, left_out: Sequence[str]) -> UsageError:
    """What is needed at least, with the command that measures it."""
    again = f"mpirun -np 2 {curve.command(row)} --batch-size {row.workload.batch_size} --world-sizes 1,2"
    why = f" ({'; '.join(left_out)})" if left_out else ""
    whose = "RUN" if wanted.up_to is None else f"--up-to {wanted.up_to}"
    return UsageError(f"{whose}: one device alone and one sound exchange of several are needed{why}: {again}")


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


def _observed(sound: Iterable[Row]) -> tuple[Observed, ...]:
    return tuple(
        Observed(at=_at(one), value=one.efficiency.mean, noise=_noise(one)) for one in sound if one.efficiency
    )


def _measured(rows: Iterable[Row], rate: float) -> tuple[Measured, ...]:
    """One device alone, and each row of several that has an efficiency."""
    alone = Measured(at=At(world_size=1, nodes=1), samples_per_s=rate, efficiency=1.0)
    several = (
        Measured(
            at=_at(row),
            samples_per_s=row.samples_per_s.mean if row.samples_per_s else 0.0,
            efficiency=row.efficiency.mean,
        )
        for row in rows
        if row.efficiency and row.world_size > 1
    )
    return alone, *several


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
        if curve.same_exchange(point, row) and 1 < point.world_size <= (up_to or point.world_size):
            told = [one.comm_s for one in rounds(cell, controls) if one.comm_s]
            if told:
                at = At(world_size=point.world_size, nodes=cell.nodes)
                found.append(Exchange(at, fmean(told), hypot(_comm_noise(told), step_spread)))
    return tuple(found)


def _comm_noise(seconds: Sequence[float]) -> float:
    own = stdev([log(one) for one in seconds]) / sqrt(len(seconds)) if len(seconds) > 1 else COMM_NOISE
    return max(COMM_NOISE, own)


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
