"""The summary of a point for the times of a burn-in: its single steps, throttling, link errors, failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from scaling.analysis.measured.step_time import step_time
from scaling.records.burn_in import LinkErrors, PointSummary, added, bin_of, counts
from scaling.records.events import Failed, Window
from scaling.records.point import EXCHANGING
from scaling.records.run import HelperRecord, PointRecord, RankRecord
from scaling.records.telemetry import POWER_CAP, Telemetry

CPU_QUOTA = "CPU quota"


class Step(NamedTuple):
    """Seconds of a step and the rank that took so long."""

    seconds: float
    rank: RankRecord


class Steps(NamedTuple):
    """The steps of a point; means of windows if single steps are not timed."""

    steps: tuple[Step, ...]
    of_windows: bool


def steps_of(record: PointRecord) -> Steps:
    """Return the steps of a point. All ranks of a synchronous exchange wait for the slowest, so a step is its."""
    ranks = [rank for rank in record.ranks if rank.windows]
    waits = record.synchronous and record.point.kind in EXCHANGING
    groups = [ranks] if waits else [[rank] for rank in ranks]
    single = all(len(window.step_s) == window.steps for rank in ranks for window in rank.windows)
    dilate = record.point.hardware.dilate
    found = (step for group in groups for step in _slowest(group, single=single))
    return Steps(tuple(step._replace(seconds=step.seconds / dilate) for step in found), of_windows=not single)


def _slowest(ranks: Sequence[RankRecord], *, single: bool) -> Iterator[Step]:
    for windows in zip(*(rank.windows for rank in ranks), strict=False):
        for same in zip(*(_times(window, single=single) for window in windows), strict=False):
            yield max((Step(seconds, rank) for seconds, rank in zip(same, ranks, strict=True)), key=_seconds)


def _seconds(step: Step) -> float:
    return step.seconds


def _times(window: Window, *, single: bool) -> Sequence[float]:
    return window.step_s if single else (window.seconds / window.steps,)


def summarized(record: PointRecord, begin_s: float, end_s: float) -> PointSummary:
    """Summarise a point that ran from `begin_s` to `end_s` of the run."""
    time = step_time(record)
    found = steps_of(record) if time else Steps((), of_windows=False)
    known = [step for step in found.steps if step.seconds > 0]
    worst = max(known, key=_seconds, default=None)
    point = record.point
    steps = max((sum(window.steps for window in rank.windows) for rank in record.ranks), default=0)
    batch = point.workload.batch_size if point.is_alone else point.global_batch_size
    readings, throttled, reasons = _throttling(record)
    return PointSummary(
        cell=point.cell,
        first_round=point.round,
        begin_s=begin_s,
        end_s=end_s,
        measured=1 if time else 0,
        samples=batch * steps if time else 0,
        seconds=time.step_s * steps if time else 0.0,
        times=counts((bin_of(step.seconds), 1) for step in known),
        of_windows=found.of_windows,
        worst_s=worst.seconds if worst else 0.0,
        worst_rank=worst.rank.rank if worst else 0,
        worst_host=worst.rank.host if worst else "",
        worst_round=point.round,
        readings=readings,
        throttled=throttled,
        reasons=reasons,
        repeated=_repeated(record),
        link_errors=added(_link_errors(record)),
        failures={record.outcome.cause: 1} if isinstance(record.outcome, Failed) else {},
    )


def summaries(records: Iterable[PointRecord]) -> Iterator[PointSummary]:
    """Yield the summary of each record of a run without --for. Its time is the wall clock's since the start."""
    ordered = sorted(records, key=lambda record: record.started_unix_s)
    for record in ordered:
        begin_s = record.started_unix_s - ordered[0].started_unix_s
        yield summarized(record, begin_s, begin_s + record.wall_s)


def _repeated(record: PointRecord) -> int:
    """A window of ranks that run at once is repeated on all of them."""
    found = [len(rank.disturbed) for rank in record.ranks]
    return sum(found) if record.point.is_alone else max(found, default=0)


def _throttling(record: PointRecord) -> tuple[int, int, tuple[str, ...]]:
    """Return readings, throttled ones, and reasons: of GPUs, else the periods of CPU quotas."""
    told = [child.telemetry for child in _children(record)]
    samples = [sample for one in told for sample in one.samples]
    if samples:
        reasons = [set(sample.throttle) - {POWER_CAP} for sample in samples]
        return len(samples), sum(map(bool, reasons)), tuple(sorted(set().union(*reasons)))
    return _quota(told)


def _quota(told: Iterable[Telemetry]) -> tuple[int, int, tuple[str, ...]]:
    known = [one.cpu for one in told if one.cpu is not None]
    throttled = sum(cpu.throttled_periods for cpu in known)
    return sum(cpu.periods for cpu in known), throttled, (CPU_QUOTA,) if throttled else ()


def _link_errors(record: PointRecord) -> Iterator[LinkErrors]:
    for child in _children(record):
        for card in child.telemetry.traffic:
            for counter, count in card.errors.items():
                yield LinkErrors(host=child.host, card=card.name, counter=counter, count=count)


def _children(record: PointRecord) -> tuple[RankRecord | HelperRecord, ...]:
    return (*record.ranks, *record.helpers)
