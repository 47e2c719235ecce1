"""Trainings to an accuracy: top-1 by epoch, seconds, and batches that are too large.

    top-1          correct / seen of the held-out samples, both summed over ranks
    seconds        of an epoch, the longest rank's, without evaluation
    to the target  seconds up to the first epoch that reaches it, mean over the seeds that do
    samples/s      samples of all ranks / seconds of all epochs; asynchronous: the sum of the ranks' own rates

Seeds are repetitions: values are means over them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf, sqrt
from operator import truediv
from statistics import fmean

from msgspec.structs import replace

from scaling.analysis.statistics.intervals import known_mean
from scaling.analysis.table.comparisons import contender
from scaling.analysis.table.rows import Training, shared
from scaling.quiet import notes
from scaling.records.events import Evaluated, Failed
from scaling.records.run import PointRecord

Key = tuple[object, ...]
# A larger batch is worse if the difference exceeds this number of standard errors.
ERRORS = 3.0


def top1(evaluations: Iterable[Evaluated]) -> float:
    """Return top-1 of one evaluation on all ranks; 0 without held-out samples."""
    found = list(evaluations)
    seen = sum(one.seen for one in found)
    return sum(one.correct for one in found) / seen if seen else 0.0


def trainings(records: Iterable[PointRecord]) -> tuple[Training, ...]:
    """Return one row per training over its seeds, smaller updates first."""
    by_row: dict[str, list[PointRecord]] = defaultdict(list)
    for record in records:
        if record.point.regime is not None:
            of = replace(record.point, regime=replace(record.point.regime, seed=0), round=0)
            by_row[of.cell].append(record)
    made = sorted((_training(of) for of in by_row.values()), key=_order)
    return tuple(_beside(made))


def _order(one: Training) -> Key:
    return (*map(repr, _task(one)), one.regime.lr_scale != "none", one.regime.lr_scale, one.update_samples)


def _task(one: Training) -> Key:
    """Key of trainings that differ only in the size of their updates."""
    who = one.contender
    regime = replace(one.regime, lr_scale="none", rate=0.0, base_batch=0)
    work = one.workload.alone(0)
    return who.strategy, sorted(who.options.items()), who.interconnect, who.servers, work, one.hardware, regime


def _training(records: Sequence[PointRecord]) -> Training:
    first = records[0]
    point, regime = first.point, first.point.regime
    assert regime is not None
    well = [record for record in records if not isinstance(record.outcome, Failed) and record.ranks]
    seeds = tuple(record.point.regime.seed for record in well if record.point.regime)
    curves = tuple(
        tuple(map(top1, zip(*(rank.evaluations for rank in record.ranks), strict=False))) for record in well
    )
    seconds = [_epochs_s(record) for record in well]
    by_epoch = (zip(*(rank.evaluations for rank in record.ranks), strict=False) for record in well)
    evaluated = [[max(one.end_s - one.start_s for one in of) for of in epochs] for epochs in by_epoch]
    # Seconds up to the first epoch that reaches the target.
    target = inf if regime.target_top1 is None else regime.target_top1
    passed = (zip(curve, accumulate(of), strict=False) for curve, of in zip(curves, seconds, strict=True))
    reached = [until for of in passed for until in [s for value, s in of if value >= target][:1]]
    flags = {
        "FAILED": any(isinstance(record.outcome, Failed) for record in records),
        "OVERSUBSCRIBED": any(record.oversubscribed for record in records),
        "ASYNC": not first.synchronous,
    }
    return Training(
        **shared(Training, replace(point, regime=replace(regime, seed=0))),
        contender=contender(point),
        synchronous=first.synchronous,
        update_samples=point.global_batch_size if first.synchronous else point.workload.batch_size,
        flags=tuple(flag for flag, holds in flags.items() if holds),
        seeds=seeds,
        held_out=max(
            (sum(rank.evaluations[-1].seen for rank in record.ranks if rank.evaluations) for record in well),
            default=0,
        ),
        data_samples=data_samples(records),
        top1=tuple(
            fmean(curve[number] for curve in curves if number < len(curve))
            for number in range(max(map(len, curves), default=0))
        ),
        top1_by_seed=curves,
        train_s=known_mean(sum(each) for each in seconds),
        evaluate_s=known_mean(sum(each) for each in evaluated),
        target_s=known_mean(reached),
        reached=len(reached),
        samples_per_s=known_mean(map(_samples_per_s, well)),
        confusion=_confusion(well),
        failed=next((record.outcome for record in records if isinstance(record.outcome, Failed)), None),
        warnings=tuple(dict.fromkeys(one.text for record in records for one in notes.warned(record))),
    )  # fmt: skip


def _epochs_s(record: PointRecord) -> list[float]:
    by_epoch = zip(*(rank.windows for rank in record.ranks), strict=False)
    return [max(window.seconds for window in windows) for windows in by_epoch]


def _samples_per_s(record: PointRecord) -> float | None:
    samples = [sum(window.samples for window in rank.windows) for rank in record.ranks]
    if record.synchronous:
        whole_s = sum(_epochs_s(record))
        return sum(samples) / whole_s if whole_s > 0 else None
    own_s = [rank.measured_s for rank in record.ranks]
    return sum(map(truediv, samples, own_s)) if min(own_s, default=0) > 0 else None


def data_samples(records: Iterable[PointRecord]) -> dict[str, int]:
    """Return the samples of the trainings' data by split; {} if no rank was ready."""
    ready = (rank.ready for record in records for rank in record.ranks if rank.ready)
    return next((one.data_samples for one in ready if one.data_samples), {})


def _confusion(records: Sequence[PointRecord]) -> tuple[tuple[int, ...], ...]:
    last = [rank.evaluations[-1].confusion for record in records for rank in record.ranks if rank.evaluations]
    if () in last or len(set(map(len, last))) != 1:
        return ()
    return tuple(tuple(map(sum, zip(*rows, strict=True))) for rows in zip(*last, strict=True))


# ---------------------------------------------------------------- sizes of updates


def _beside(found: Sequence[Training]) -> Iterator[Training]:
    """Each with the smallest update of its task that is significantly better."""
    by_task: dict[str, list[Training]] = defaultdict(list)
    for one in sorted(found, key=lambda one: one.update_samples):
        by_task[repr(_task(one))].append(one)
    for one in found:
        better = next((other for other in by_task[repr(_task(one))] if _is_less(one, other)), None)
        yield replace(one, less_than_samples=better.update_samples if better else None)


def _is_less(one: Training, other: Training) -> bool:
    """Every seed is worse, and the means differ by over `ERRORS` standard errors. Seeds share held-out samples."""
    mine, theirs = ([curve[-1] for curve in each.top1_by_seed if curve] for each in (one, other))
    if other.update_samples >= one.update_samples or not mine or not theirs or max(mine) >= min(theirs):
        return False
    low, high = fmean(mine), fmean(theirs)
    error = sqrt((low * (1 - low) + high * (1 - high)) / max(1, min(one.held_out, other.held_out)))
    return high - low > ERRORS * error


def best(found: Sequence[Training]) -> Mapping[str, Training]:
    """Return by strategy the training of the largest world size with the highest last top-1."""
    well = [one for one in found if one.top1]
    return {
        name: max(
            (one for one in well if one.contender.strategy == name),
            key=lambda one: (one.world_size, last_top1(one)),
        )
        for name in dict.fromkeys(one.contender.strategy for one in well)
    }


def last_top1(one: Training) -> float:
    """Return the mean over seeds of their last top-1; seeds that reach the target early end earlier."""
    return fmean(curve[-1] for curve in one.top1_by_seed if curve)
