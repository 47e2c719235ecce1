"""Cells over the time of a run: percentiles of their steps, drift, throttling, link errors and failures.

Percentiles are of all steps of all rounds, also of rounds that a burn-in does not keep in full. They are read from
bins of 1 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import ceil, exp, log
from operator import itemgetter
from statistics import fmean

from scaling.analysis.measured.step_time import step_time
from scaling.analysis.measured.traffic import CONGESTION
from scaling.analysis.statistics.intervals import Estimate, least_squares, quantile, student
from scaling.analysis.table.comparisons import contender
from scaling.analysis.table.rows import Contender, shared
from scaling.records.burn_in import BIN, LinkErrors, PointSummary, Stretches, added, bin_of, counts, joined
from scaling.records.events import Failed
from scaling.records.point import EXCHANGING, Hardware, Kind, Point, Record, Workload
from scaling.records.run import PointRecord, RankRecord
from scaling.records.telemetry import POWER_CAP
from scaling.text import HOUR_S

# ---------------------------------------------------------------- summary of a point

CPU_QUOTA = "CPU quota"


def _steps_of(record: PointRecord, *, single: bool) -> Iterator[tuple[float, RankRecord]]:
    """Yield the seconds of each step, or of each window's mean step, and the rank that took so long.

    All ranks of a synchronous exchange wait for the slowest, so a step is its."""
    ranks = [rank for rank in record.ranks if rank.windows]
    waits = record.synchronous and record.point.kind in EXCHANGING
    for group in [ranks] if waits else [[rank] for rank in ranks]:
        for windows in zip(*(rank.windows for rank in group), strict=False):
            times = [window.step_s if single else (window.seconds / window.steps,) for window in windows]
            for same in zip(*times, strict=False):
                place = max(range(len(group)), key=same.__getitem__)
                yield same[place] / record.point.hardware.dilate, group[place]


def summarized(record: PointRecord, begin_s: float, end_s: float) -> PointSummary:
    """Summarise a point that ran from `begin_s` to `end_s` of the run."""
    time, point = step_time(record), record.point
    single = all(len(window.step_s) == window.steps for rank in record.ranks for window in rank.windows)
    known = [step for step in _steps_of(record, single=single) if step[0] > 0] if time else []
    worst_s, worst = max(known, key=itemgetter(0), default=(0.0, None))
    steps = max((sum(window.steps for window in rank.windows) for rank in record.ranks), default=0)
    batch = point.workload.batch_size if point.is_alone else point.global_batch_size
    readings, throttled, reasons = _throttling(record)
    # A window of ranks that run at once is repeated on all of them.
    repeated = [len(rank.disturbed) for rank in record.ranks]
    return PointSummary(
        cell=point.cell,
        first_round=point.round,
        begin_s=begin_s,
        end_s=end_s,
        measured=1 if time else 0,
        samples=batch * steps if time else 0,
        seconds=time.step_s * steps if time else 0.0,
        times=counts((bin_of(seconds), 1) for seconds, _ in known),
        of_windows=bool(time) and not single,
        worst_s=worst_s,
        worst_rank=worst.rank if worst else 0,
        worst_host=worst.host if worst else "",
        worst_round=point.round,
        readings=readings,
        throttled=throttled,
        reasons=reasons,
        repeated=sum(repeated) if point.is_alone else max(repeated, default=0),
        link_errors=added(
            LinkErrors(host=child.host, card=card.name, counter=counter, count=count)
            for child in record.children
            for card in child.telemetry.traffic
            for counter, count in card.errors.items()
            if counter not in CONGESTION
        ),
        failures={record.outcome.cause: 1} if isinstance(record.outcome, Failed) else {},
    )


def summaries(records: Iterable[PointRecord]) -> Iterator[PointSummary]:
    """Yield the summary of each record of a run without --for. Its time is the wall clock's since the start."""
    ordered = sorted(records, key=lambda record: record.started_unix_s)
    for record in ordered:
        begin_s = record.started_unix_s - ordered[0].started_unix_s
        yield summarized(record, begin_s, begin_s + record.wall_s)


def _throttling(record: PointRecord) -> tuple[int, int, tuple[str, ...]]:
    """Return readings, throttled ones, and reasons: of GPUs, else the periods of CPU quotas."""
    told = [child.telemetry for child in record.children]
    samples = [sample for one in told for sample in one.samples]
    if samples:
        reasons = [set(sample.throttle) - {POWER_CAP} for sample in samples]
        return len(samples), sum(map(bool, reasons)), tuple(sorted(set().union(*reasons)))
    known = [one.cpu for one in told if one.cpu is not None]
    throttled = sum(cpu.throttled_periods for cpu in known)
    return sum(cpu.periods for cpu in known), throttled, (CPU_QUOTA,) if throttled else ()


# Fewest rounds of a run without --for whose report shows times.
MANY_ROUNDS = 30
# Stretches of the table for people.
OUTLINE = 12
SHOWN: tuple[Kind, ...] = ("exchange", "each", "solo")

# ---------------------------------------------------------------- what is found


class StepTimes(Record, frozen=True, kw_only=True):
    """Step times in seconds, over a stretch of rounds from `first_round` on; None without a result.

    `rounds`: those with a result. `samples_per_s`: of all devices, or of one if ranks ran alone.
    `throttled`: share of the readings of GPUs (or of periods of CPU quotas); None without any.
    `repeated`: disturbed windows that were repeated, which are in no time.
    """

    first_round: int
    begin_s: float
    end_s: float
    rounds: int
    samples_per_s: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    worst_s: float | None
    throttled: float | None
    repeated: int
    link_errors: int
    failures: int


class OverTime(Record, frozen=True, kw_only=True):
    """One cell over the time of a run. `alone`: a plain loop on one device at a time.

    `of_windows`: single steps are not timed: all times are means of windows. `steps`: the number of times.
    `worst_rank`, `worst_host`, `worst_round`: the place of the longest step; rounds count from 0.
    `drift`: change of the rate from the start to the end of the run, a fraction, by a straight line.
    `drift_per_hour`: the same per hour. Both are None for fewer than five rounds.
    `drifts`: the drift is significant and large enough to be reported.
    `stretches`: at most 200, of as many rounds each; `outline`: at most 12.
    """

    contender: Contender
    alone: bool
    kind: Kind
    workload: Workload
    hardware: Hardware
    world_size: int
    whole: StepTimes
    steps: int
    of_windows: bool
    worst_rank: int
    worst_host: str
    worst_round: int
    drift: Estimate | None
    drift_per_hour: Estimate | None
    drifts: bool
    throttle_reasons: tuple[str, ...] = ()
    link_errors: tuple[LinkErrors, ...] = ()
    failures: dict[str, int] = {}
    stretches: tuple[StepTimes, ...] = ()
    outline: tuple[StepTimes, ...] = ()


# ---------------------------------------------------------------- percentiles


def percentile(times: Sequence[tuple[int, int]], share: float) -> float:
    """Return the time below which this share of the binned times is, to 0.5 %."""
    wanted = max(1, ceil(share * sum(number for _, number in times)))
    for place, number in times:
        wanted -= number
        if wanted <= 0:
            return exp((place + 0.5) * BIN)
    raise ValueError("no times")


def _steps(one: PointSummary) -> StepTimes:
    times = [pair for pair in one.times if pair[1]]
    p50_s, p95_s, p99_s = (
        min(percentile(times, share), one.worst_s) if times else None for share in (0.5, 0.95, 0.99)
    )
    return StepTimes(
        first_round=one.first_round,
        begin_s=one.begin_s,
        end_s=one.end_s,
        rounds=one.measured,
        samples_per_s=one.samples / one.seconds if one.seconds else None,
        p50_s=p50_s,
        p95_s=p95_s,
        p99_s=p99_s,
        worst_s=one.worst_s or None,
        throttled=one.throttled / one.readings if one.readings else None,
        repeated=one.repeated,
        link_errors=sum(error.count for error in one.link_errors),
        failures=sum(one.failures.values()),
    )


# ---------------------------------------------------------------- drift
#
# A straight line through the logarithm of the rate over time. Noise of a machine lasts for several rounds, so the
# units are means of consecutive rounds (batch means: Law & Kelton, "Simulation Modeling and Analysis", ch. 9).

MOST_BATCHES, LEAST_BATCHES = 30, 5
# Chance of a false report per run; least change worth one, as a fraction.
ERROR, LEAST = 0.01, 0.005


def drift(points: Sequence[tuple[float, float]]) -> Estimate | None:
    """Return the slope of (time, logarithm) by least squares with Student's interval; None for too few points."""
    batches = [*_batches(points)]
    if len(batches) < LEAST_BATCHES or batches[0][0] == batches[-1][0]:
        return None
    line, df = least_squares(batches), len(batches) - 2
    rest = sum((value - line.level - line.slope * (at - line.middle)) ** 2 for at, value in batches) / df
    return student(line.slope, rest / line.squares, len(batches), df)


def _batches(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    count = min(len(points), MOST_BATCHES)
    for first, end in pairwise(len(points) * number // count for number in range(count + 1)) if count else ():
        part = points[first:end]
        yield fmean(at for at, _ in part), fmean(value for _, value in part)


def _is_told(found: Estimate | None, among: int) -> bool:
    if found is None or found.half_width is None or found.df is None:
        return False
    error = found.half_width / quantile(found.df)
    return abs(found.mean) > max(LEAST, quantile(found.df, 1 - ERROR / among) * error)


# ---------------------------------------------------------------- cells


def over_time(records: Iterable[PointRecord], told: Sequence[PointSummary] = ()) -> tuple[OverTime, ...]:
    """Return each exchange and plain loop over time, and other cells that failed. `told`: summaries of a burn-in;
    without them a run of many rounds has its own. Empty for fewer rounds."""
    every = list(records)
    if not told and len({record.point.round for record in every}) < MANY_ROUNDS:
        return ()
    points = {record.point.cell: record.point for record in every}
    by_cell: dict[str, list[PointSummary]] = {
        one.cell: []
        for one in sorted(
            points.values(),
            key=lambda one: (one.kind not in EXCHANGING, one.strategy, one.interconnect, one.world_size, one.cell),
        )
    }
    for one in told or Stretches(summaries(every)).all():
        if one.cell in by_cell:
            by_cell[one.cell].append(one)
    shown = {
        cell: found
        for cell, found in by_cell.items()
        if (found and points[cell].kind in SHOWN and not points[cell].hosts) or any(one.failures for one in found)
    }
    return tuple(_over_time(points[cell], found, len(shown)) for cell, found in shown.items())


def _over_time(point: Point, found: Sequence[PointSummary], among: int) -> OverTime:
    whole = joined(*found)
    lasted_s = whole.end_s - whole.begin_s
    ages = [((one.begin_s + one.end_s) / 2, one) for one in found if one.samples and one.seconds]
    slope = drift([(age_s, log(one.samples / one.seconds)) for age_s, one in ages])
    changed = slope.times(lasted_s) if slope else None
    return OverTime(
        **shared(OverTime, point),
        **shared(OverTime, whole),
        contender=contender(point),
        alone=point.is_alone,
        whole=_steps(whole),
        steps=sum(number for _, number in whole.times),
        drift=changed,
        drift_per_hour=slope.times(HOUR_S) if slope else None,
        drifts=_is_told(changed, among),
        throttle_reasons=whole.reasons,
        stretches=tuple(map(_steps, found)),
        outline=tuple(map(_steps, Stretches(found, OUTLINE).all())),
    )
