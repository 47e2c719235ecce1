"""What trainings to an accuracy have come to: top-1 epoch by epoch, seconds, and which batch is too large. Pure.

    top-1            correct / seen of what is held out, both summed over ranks
    seconds          of an epoch, the longest rank's; evaluation is timed apart and in no other figure
    to the target    the epochs' seconds up to the first whose top-1 reaches it, mean over the seeds that do
    samples/s        samples of all ranks / the seconds of all epochs, the first included; where ranks do not wait,
                     the sum of their own rates

Seeds are repetitions: everything is a mean over them, and what a seed makes of it stands beside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import sqrt
from operator import truediv
from statistics import fmean

from msgspec.structs import replace

from scaling.analysis.measured import audit
from scaling.analysis.table.rows import Contender, Training
from scaling.records.events import Evaluated, Failed
from scaling.records.point import Point
from scaling.records.run import PointRecord

Key = tuple[object, ...]
# Of the standard error of a difference: beyond it a larger batch has learnt less.
ERRORS = 3.0


def top1(evaluations: Iterable[Evaluated]) -> float:
    """Of one evaluation on all ranks; 0 where nothing is held out."""
    found = list(evaluations)
    seen = sum(one.seen for one in found)
    return sum(one.correct for one in found) / seen if seen else 0.0


def trainings(records: Iterable[PointRecord]) -> tuple[Training, ...]:
    """A row for each training, its seeds in one; the smaller updates before the larger."""
    by_row: dict[Key, list[PointRecord]] = defaultdict(list)
    for record in records:
        if record.point.regime is not None:
            by_row[_row_key(record.point)].append(record)
    made = sorted((_training(of) for of in by_row.values()), key=_order)
    return tuple(_beside(made))


def _row_key(point: Point) -> Key:
    assert point.regime is not None
    return (replace(point, regime=replace(point.regime, seed=0), round=0).cell,)


def _order(one: Training) -> Key:
    return (*map(repr, _task(one)), one.regime.lr_scale != "none", one.regime.lr_scale, one.update_samples)


def _task(one: Training) -> Key:
    """What trainings share that differ in the size of their updates alone, and what is made of that."""
    who = one.contender
    regime = replace(one.regime, lr_scale="none", rate=0.0, base_batch=0)
    work = one.workload.alone(0)
    return who.strategy, sorted(who.options.items()), who.interconnect, who.servers, work, one.hardware, regime


# ---------------------------------------------------------------- one row


def _training(records: Sequence[PointRecord]) -> Training:
    first = records[0]
    point, regime = first.point, first.point.regime
    assert regime is not None
    well = [record for record in records if not isinstance(record.outcome, Failed) and record.ranks]
    seeds = tuple(record.point.regime.seed for record in well if record.point.regime)
    curves = tuple(tuple(_curve(record)) for record in well)
    seconds = [_epochs_s(record) for record in well]
    reached = [
        s for s in map(lambda one, s: _target_s(one, s, regime.target_top1), curves, seconds) if s is not None
    ]
    rates = [rate for record in well if (rate := _samples_per_s(record)) is not None]
    return Training(
        contender=Contender(
            strategy=point.strategy, interconnect=point.interconnect, options=point.options,
            servers=point.servers, server_hosts=point.server_hosts,
        ),
        workload=point.workload,
        hardware=point.hardware,
        world_size=point.world_size,
        regime=replace(regime, seed=0),
        synchronous=first.synchronous,
        update_samples=point.global_batch_size if first.synchronous else point.workload.batch_size,
        flags=_flags(records, synchronous=first.synchronous),
        seeds=seeds,
        held_out=max((_seen(record) for record in well), default=0),
        data_samples=data_samples(records),
        top1=tuple(_means(curves)),
        top1_by_seed=curves,
        train_s=_mean(sum(each) for each in seconds),
        evaluate_s=_mean(map(_evaluation_s, well)),
        target_s=_mean(reached),
        reached=len(reached),
        samples_per_s=_mean(rates),
        confusion=_confusion(well),
        failed=next((record.outcome for record in records if isinstance(record.outcome, Failed)), None),
        warnings=tuple(dict.fromkeys(one.text for record in records for one in record.warnings)),
    )  # fmt: skip


def _flags(records: Sequence[PointRecord], *, synchronous: bool) -> tuple[str, ...]:
    flags = {
        "FAILED": any(isinstance(record.outcome, Failed) for record in records),
        "OVERSUBSCRIBED": audit.oversubscribed(records),
        "ASYNC": not synchronous,
    }
    return tuple(flag for flag, holds in flags.items() if holds)


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None


def _curve(record: PointRecord) -> Iterator[float]:
    """Top-1 after each epoch that every rank has evaluated."""
    return map(top1, zip(*(rank.evaluations for rank in record.ranks), strict=False))


def _means(curves: Sequence[Sequence[float]]) -> Iterator[float]:
    """By epoch, over the seeds that came to it."""
    for number in range(max(map(len, curves), default=0)):
        yield fmean(curve[number] for curve in curves if number < len(curve))


def _epochs_s(record: PointRecord) -> list[float]:
    by_epoch = zip(*(rank.windows for rank in record.ranks), strict=False)
    return [max(window.seconds for window in windows) for windows in by_epoch]


def _target_s(curve: Sequence[float], seconds: Sequence[float], target: float | None) -> float | None:
    """Until the first epoch that reaches it; None where none does."""
    if target is None:
        return None
    passed = zip(curve, accumulate(seconds), strict=False)
    return next((until_s for reached, until_s in passed if reached >= target), None)


def _evaluation_s(record: PointRecord) -> float:
    by_epoch = zip(*(rank.evaluations for rank in record.ranks), strict=False)
    return float(sum(max(one.end_s - one.start_s for one in of) for of in by_epoch))


def _samples_per_s(record: PointRecord) -> float | None:
    """Of all ranks, over the longest rank's epochs; where ranks do not wait, the sum of their own rates."""
    samples = [sum(window.samples for window in rank.windows) for rank in record.ranks]
    if record.synchronous:
        whole_s = sum(_epochs_s(record))
        return sum(samples) / whole_s if whole_s > 0 else None
    own_s = [rank.measured_s for rank in record.ranks]
    return sum(map(truediv, samples, own_s)) if min(own_s, default=0) > 0 else None


def _seen(record: PointRecord) -> int:
    return sum(rank.evaluations[-1].seen for rank in record.ranks if rank.evaluations)


def data_samples(records: Iterable[PointRecord]) -> dict[str, int]:
    """What the data of trainings has, by split; {} where no rank came to say so."""
    ready = (rank.ready for record in records for rank in record.ranks if rank.ready)
    return next((one.data_samples for one in ready if one.data_samples), {})


def _confusion(records: Sequence[PointRecord]) -> tuple[tuple[int, ...], ...]:
    """After the last epoch, summed over ranks and seeds."""
    last = [rank.evaluations[-1].confusion for record in records for rank in record.ranks if rank.evaluations]
    if () in last or len(set(map(len, last))) != 1:
        return ()
    return tuple(tuple(map(sum, zip(*rows, strict=True))) for rows in zip(*last, strict=True))


# ---------------------------------------------------------------- beside each other


def _beside(found: Sequence[Training]) -> Iterator[Training]:
    """Each with the smallest update of its task that it has learnt less than, beyond what chance explains."""
    by_task: dict[str, list[Training]] = defaultdict(list)
    for one in found:
        by_task[repr(_task(one))].append(one)
    for one in found:
        smaller = [each for each in by_task[repr(_task(one))] if each.update_samples < one.update_samples]
        better = next(
            (each for each in sorted(smaller, key=lambda each: each.update_samples) if _is_less(one, each)), None
        )
        yield replace(one, less_than_samples=better.update_samples if better else None)


def _is_less(one: Training, other: Training) -> bool:
    """Whether every seed ended below every seed of the other, and the means differ by more than `ERRORS` standard
    errors of two shares of as many held-out samples: seeds share these, so that they make no more of them."""
    mine, theirs = ([curve[-1] for curve in each.top1_by_seed if curve] for each in (one, other))
    if other.update_samples >= one.update_samples or not mine or not theirs or max(mine) >= min(theirs):
        return False
    low, high = fmean(mine), fmean(theirs)
    error = sqrt((low * (1 - low) + high * (1 - high)) / max(1, min(one.held_out, other.held_out)))
    return high - low > ERRORS * error


def best(found: Sequence[Training]) -> Mapping[str, Training]:
    """By strategy, the training of the largest world size whose last top-1 is the highest."""
    chosen: dict[str, Training] = {}
    for one in found:
        name = one.contender.strategy
        if one.top1 and (name not in chosen or _rank(one) > _rank(chosen[name])):
            chosen[name] = one
    return chosen


def last_top1(one: Training) -> float:
    """The mean over seeds of where each ended: those that reached the target early have no later epochs."""
    return fmean(curve[-1] for curve in one.top1_by_seed if curve)


def _rank(one: Training) -> tuple[int, float]:
    return one.world_size, last_top1(one)
