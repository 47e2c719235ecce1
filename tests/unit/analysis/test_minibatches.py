"""Sweeps over batches, training losses, and trainings to an accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.measured.cell import Cell
from scaling.analysis.table import accuracy
from scaling.analysis.table.analyse import analyse, rows
from scaling.analysis.table.rows import Minibatch
from scaling.records.events import Evaluated
from scaling.records.run import PointRecord
from tests.support.golden_rows import check_rows
from tests.support.scripted_records import (
    asynchronous,
    by_one_worker,
    carried,
    close,
    failed,
    mean,
    point,
    record,
    windows,
    with_losses,
)
from tests.support.training_records import training_record

# What a larger batch gains, from planted step times: against the fastest, and against twice the smaller one.

# A GTX 1080 with VGG in Addfor's study of 2017, milliseconds by batch; 16 and 32 are made up.
VGG = {16: 0.110, 32: 0.211, 64: 0.42028, 128: 0.89986}
DRIFTS = (0.998, 1.0, 1.003, 1.001)


def at(size: int, number: int, **fields: Any) -> Any:
    return point("exchange", 1, number, **{"strategy": "fake:plain", "batch_size": size, **fields})


def swept(times: Mapping[int, float], drifts: Sequence[float] = DRIFTS, **fields: Any) -> list[PointRecord]:
    return [
        record(at(size, number, **fields), drift * step_s)
        for number, drift in enumerate(drifts)
        for size, step_s in times.items()
    ]


def crowded(records: Iterable[PointRecord], *sizes: int) -> list[PointRecord]:
    return [replace(one, oversubscribed=one.point.workload.batch_size in sizes) for one in records]


def every(kinds: Sequence[tuple[str, int]], batches: Sequence[int], **fields: Any) -> list[PointRecord]:
    return [
        record(point(kind, size, number, batch_size=batch, **fields), 0.01 * batch)
        for number in range(3)
        for batch in batches
        for kind, size in kinds
    ]


def over_networks() -> list[PointRecord]:
    """The bytes of the smaller batch took another network."""
    made = [
        record(point("exchange", 2, number, batch_size=size, interconnect="ib0"), step_s, hosts=("node1", "node2"))
        for number in range(3)
        for size, step_s in {32: 0.1, 64: 0.21}.items()
    ]
    return [carried(one, "ib0" if one.point.workload.batch_size == 64 else "eth0") for one in made]


def noisy() -> list[PointRecord]:
    """128 take more than twice as long as 64, within noise."""
    off = (0.9, 1.1, 0.95, 1.05)
    return [record(at(128, n), 0.86 * by) for n, by in enumerate(off)] + swept({64: 0.42}, (1.0,) * 4)


SWEEPS: dict[str, Sequence[PointRecord]] = {
    "VGG": swept(VGG),
    "noise": noisy(),
    "a single round": swept(VGG, drifts=(1.0,)),
    # batches are compared over the one that ran out of memory
    "out of memory": [*swept({16: 0.1, 32: 0.2, 128: 0.9}), *(failed(at(64, number)) for number in range(4))],
    # 64 is the fastest as measured: the others are compared as if nobody had measured it
    "64 shares cores": crowded(swept(VGG), 64),
    "all share cores": crowded(swept(VGG), *VGG),
    "another network": over_networks(),
    # each pass is a sweep of its own, and one batch of it enough
    "passes": [*swept({32: 0.1}, pass_="forward"), *swept({32: 0.3}, pass_="backward")],
    "one batch": swept({32: 0.1}),
    "plain loops": every((("solo", 1), ("exchange", 1), ("exchange", 2)), (16, 32)),
    # under the strong rule the baselines have several batches, which nobody asked to compare
    "shared batches": [
        one
        for size in (1, 2)
        for kinds in [(("exchange", size), *((("solo", 1),) if size == 1 else (("each", 2),)))]
        for one in every(kinds, (64 // size,), batch_rule="strong")
    ],
}


def test_minibatches_are_those_of_the_golden_file() -> None:
    check_rows("minibatches", SWEEPS, ("minibatches",))


def by_batch(name: str) -> dict[int, Minibatch]:
    return {one.workload.batch_size: one for one in analyse(SWEEPS[name]).minibatches}


def test_twice_the_batch_in_more_than_twice_the_time_is_found() -> None:
    """The fastest batch is the whole, and others a part of it."""
    found = by_batch("VGG")
    assert [size for size, one in found.items() if one.is_worse] == [128]
    assert (found[128].linear, by_batch("out of memory")[128].linear) == (2.0, 4.0)
    assert mean(found[128].over_smaller) == pytest.approx(899.86 / 420.28)
    rates = {size: size / step_s for size, step_s in VGG.items()}
    efficiencies = {size: mean(one.efficiency) for size, one in found.items()}
    assert efficiencies == pytest.approx({size: rate / max(rates.values()) for size, rate in rates.items()})
    claims = {name: [size for size, one in by_batch(name).items() if one.is_worse] for name in SWEEPS}
    assert {name: sizes for name, sizes in claims.items() if sizes} == {
        "VGG": [128], "out of memory": [128], "64 shares cores": [128],
    }  # fmt: skip


# Known answers for losses after equal numbers of samples, and for staleness.

# A record of N ranks has 3 windows of 320 samples per rank.


def warmed(made: PointRecord, *losses: float | None) -> PointRecord:
    ranks = []
    for rank in made.ranks:
        before = [replace(windows(0.1, 32)[0], measured=False, loss=loss) for loss in losses]
        ranks.append(replace(rank, warmup=tuple(before)))
    return replace(made, ranks=tuple(ranks))


def made_with(*losses: float | None, size: int = 1, number: int = 0, **changes: Any) -> PointRecord:
    return with_losses(record(point("exchange", size, number, **changes), 0.1), *losses)


def measured_again() -> PointRecord:
    """The first of three windows was disturbed: block 0 is the second one."""
    made = made_with(3.0, 2.0, 1.0, size=2)
    ranks = (replace(rank, windows=rank.windows[1:], disturbed=rank.windows[:1]) for rank in made.ranks)
    return replace(made, ranks=tuple(ranks))


def uneven() -> list[PointRecord]:
    """After 2 x 640 samples: 2.0 and 2.4 in one round, 3.0 twice in the other."""
    first = made_with(3.0, 2.0, 1.0, size=2)
    second = with_losses(first, 3.0, 2.4, 1.0)
    return [replace(first, ranks=(first.ranks[0], second.ranks[1])), made_with(3.0, 3.0, 3.0, size=2, number=1)]


THREE = [made_with(3.0, 2.0, 1.5)]
# Records; the samples up to the last loss of all of them; losses after these samples.
LOSSES: list[tuple[list[PointRecord], int | None, dict[int, float | None]]] = [
    # 2 ranks x (2 + 3) windows x 320
    ([warmed(made_with(3.0, 2.0, 1.0, size=2), 9.0, 8.0)], 3200, {}),
    ([by_one_worker(made_with(3.0, 2.0, 1.0, size=2))], 1920, {}),
    ([measured_again()], 1920, {1280: 2.0}),
    # samples without a loss do not count
    ([made_with(3.0, 2.0, None)], 640, {}),
    ([made_with(None, None, None)], None, {}),
    ([failed(point("exchange")), made_with(3.0, 2.0, 1.0)], 960, {}),
    ([failed(point("exchange"))], None, {}),
    # the curve is linear between windows, also over those without a loss
    (THREE, 960, {319: None, 320: 3.0, 480: 2.5, 640: 2.0, 800: 1.75, 960: 1.5, 961: None}),
    ([made_with(3.0, None, 1.0)], 960, {640: 2.0}),
    (uneven(), 1920, {1280: (2.0 + 2.4 + 3.0 + 3.0) / 4}),
    # samples of all ranks are summed
    ([made_with(3.0, 2.0, 1.5, size=2)], 1920, {1280: 2.0}),
    ([made_with(3.0, 2.0, 1.5, size=16)], 15_360, {10_240: 2.0}),
]  # fmt: skip


@pytest.mark.parametrize(("records", "samples", "losses"), LOSSES)
def test_losses_after_equal_samples(
    records: list[PointRecord], samples: int | None, losses: dict[int, float | None]
) -> None:
    assert Cell(records).fewest_samples == samples
    for count, loss in losses.items():
        assert Cell(records).loss_after(count) == (loss if loss is None else close(loss))


def test_rows_of_a_contest_are_held_to_the_samples_that_all_have_reached() -> None:
    """a has two windows of warm-up more than b: both are shown after b's 960 samples, asynchronous or not. A round
    that reached less counts for all."""
    a = warmed(made_with(3.0, 2.0, 1.0, strategy="fake:a"), 5.0, 4.0)
    b = asynchronous(made_with(3.5, 2.5, 1.5, strategy="fake:b"))
    small = made_with(2.0, 1.0, 0.5, strategy="fake:b", batch_size=16)
    found = {(row.strategy, row.workload.batch_size): row for row in rows([a, b, small])}
    rounds = rows([made_with(3.0, 2.0, 1.0), made_with(3.0, 2.0, None, number=1)])
    told = [(row.loss_at, row.loss_at_samples) for row in (found["fake:a", 32], found["fake:b", 32], *rounds)]
    assert told == [(close(3.0), 960), (close(1.5), 960), (close(2.0), 640)]
    assert found["fake:b", 16].loss_at_samples == 480
    (row,) = rows([made_with(None, None, None)])
    assert (row.loss_at, row.loss_at_samples) == (None, None)


def test_staleness_is_the_mean_over_ranks_windows_and_rounds() -> None:
    first = asynchronous(record(point("exchange", 2), 0.1), staleness=1.0)
    second = asynchronous(record(point("exchange", 2, 1), 0.1), staleness=2.5)
    assert rows([first, second])[0].staleness == close(1.75)
    assert rows([record(point("exchange", 2), 0.1)])[0].staleness is None


# What trainings to an accuracy have come to: counts, seconds, seeds, and the batch that is too large.

TRAININGS: dict[str, Sequence[PointRecord]] = {
    # counts are summed over ranks, and the longest rank's seconds count: 2.3 of an epoch
    "four ranks": [training_record([0.5, 0.9], size=4)],
    "four ranks that do not wait": [training_record([0.5], size=4, synchronous=False)],
    # of the seeds that reach it: after 4 and after 6 s
    "seconds to the target": [
        training_record([0.5, 0.9, 0.95], target=0.9), training_record([0.4, 0.8, 0.93], seed=1, target=0.9),
        training_record([0.3, 0.6, 0.85], seed=2, target=0.9),
    ],
    "a seed that failed": [training_record([0.5, 0.9]), training_record([0.1, 0.1], seed=1, failed="nan-loss")],
    "a larger batch learns less": [
        training_record([0.99]), training_record([0.98], seed=1),
        training_record([0.97], size=2), training_record([0.985], size=2, seed=1),
        training_record([0.52], size=4, rule="linear", rate=0.4),
        training_record([0.90], size=4, rule="linear", rate=0.4, seed=1),
    ],
    **{
        f"chance explains {large}": [
            training_record([0.975]), training_record([0.98], seed=1),
            *(training_record([share], size=4, seed=seed) for seed, share in enumerate(large)),
        ]
        for large in ([0.97, 0.985], [0.95, 0.96], [0.5, 0.978])
    },
    "other tasks": [training_record([0.99, 0.99]), training_record([0.5], size=4)],
}  # fmt: skip


def test_trainings_are_those_of_the_golden_file() -> None:
    check_rows("trainings", TRAININGS, ("trainings",))


def test_known_trainings() -> None:
    whole, free, target, lost, less, *others = (accuracy.trainings(of) for of in TRAININGS.values())
    assert whole[0].top1 == pytest.approx([0.5, 0.9]) and whole[0].train_s == pytest.approx(2 * 2.3)
    assert whole[0].samples_per_s == pytest.approx(2 * 4 * 320 / 4.6)
    assert free[0].samples_per_s == pytest.approx(sum(320 / (2 + 0.1 * rank) for rank in range(4)))
    assert target[0].reached == 2 and target[0].target_s == pytest.approx((4.0 + 6.0) / 2)
    assert (lost[0].seeds, lost[0].flags) == ((0,), ("FAILED",))
    assert [row.less_than_samples for row in less] == [None, None, 32]
    assert {row.less_than_samples for found in others for row in found} == {None}


def test_counts_are_added_and_not_means_of_unequal_shards() -> None:
    parts = [Evaluated(number=0, seen=n, correct=right, start_s=0, end_s=1) for n, right in ((1, 0), (9, 9))]
    assert (accuracy.top1(parts), accuracy.top1([])) == (0.9, 0.0)
