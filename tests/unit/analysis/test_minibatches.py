"""Sweeps over batches, training losses, and trainings to an accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.measured.cell import Cell
from scaling.analysis.table import accuracy
from scaling.analysis.table.analyse import analyse, rows
from scaling.analysis.table.rows import Minibatch, Training
from scaling.records.events import Evaluated
from scaling.records.run import PointRecord
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
from tests.support.training_records import HELD_OUT, training_record

# What a larger batch gains, from planted step times: against the fastest, and against twice the smaller one.

# A GTX 1080 with VGG in Addfor's study of 2017, milliseconds by batch; 16 and 32 are made up.
VGG = {16: 0.110, 32: 0.211, 64: 0.42028, 128: 0.89986}
DRIFTS = (0.998, 1.0, 1.003, 1.001)


def swept(times: Mapping[int, float], drifts: Sequence[float] = DRIFTS, **fields: object) -> list[PointRecord]:
    return [
        record(point("exchange", 1, number, strategy="fake:plain", batch_size=size, **fields), drift * step_s)
        for number, drift in enumerate(drifts)
        for size, step_s in times.items()
    ]


def by_batch(records: Sequence[PointRecord]) -> dict[int, Minibatch]:
    found = analyse(records).minibatches
    assert [one.workload.batch_size for one in found] == sorted(one.workload.batch_size for one in found)
    return {one.workload.batch_size: one for one in found}


def test_twice_the_batch_in_more_than_twice_the_time_is_found() -> None:
    """The fastest batch is the whole, and others a part of it."""
    found = by_batch(swept(VGG))
    assert [size for size, one in found.items() if one.is_worse] == [128]
    assert mean(found[128].over_smaller) == pytest.approx(899.86 / 420.28)
    assert (found[128].smaller_batch_size, found[128].linear) == (64, 2.0)
    assert mean(found[128].step_s) == pytest.approx(0.89986, rel=1e-2)
    assert found[16].over_smaller is None and mean(found[64].efficiency) == 1.0
    rates = {size: size / step_s for size, step_s in VGG.items()}
    efficiencies = {size: mean(one.efficiency) for size, one in found.items()}
    assert efficiencies == pytest.approx({size: rate / max(rates.values()) for size, rate in rates.items()})


def test_what_noise_explains_and_a_single_round_are_not_claimed() -> None:
    noisy = [
        record(point("exchange", 1, number, strategy="fake:plain", batch_size=size), step_s)
        for number, off in enumerate((0.9, 1.1, 0.95, 1.05))
        for size, step_s in ((64, 0.42), (128, 0.86 * off))
    ]
    found = by_batch(noisy)
    assert mean(found[128].over_smaller) > 2 and not found[128].is_worse
    single = by_batch(swept(VGG, drifts=(1.0,)))
    assert not any(one.is_worse for one in single.values())
    assert single[128].over_smaller is not None and single[128].over_smaller.low is None


def test_batches_are_compared_over_one_that_ran_out_of_memory() -> None:
    lost = [
        failed(point("exchange", 1, number, strategy="fake:plain", batch_size=64)) for number in range(len(DRIFTS))
    ]
    found = by_batch([*swept({16: 0.1, 32: 0.2, 128: 0.9}), *lost])
    assert found[64].failed is not None and found[64].failed.cause == "oom"
    assert found[64].efficiency is None
    assert (found[128].smaller_batch_size, found[128].linear) == (32, 4.0)
    assert found[128].is_worse


def test_a_batch_whose_ranks_share_cores_is_compared_with_none() -> None:
    """64 is the fastest as measured: the others are compared as if nobody had measured it."""
    made = swept(VGG)
    shared = [replace(one, oversubscribed=one.point.workload.batch_size == 64) for one in made]
    found = by_batch(shared)
    assert found[64].flags == ("OVERSUBSCRIBED",)
    assert (found[64].efficiency, found[64].over_smaller, found[64].is_worse) == (None, None, False)
    assert mean(found[64].samples_per_s) == pytest.approx(64 / 0.42028, rel=1e-2)
    assert mean(found[64].step_s) == pytest.approx(0.42028, rel=1e-2)
    del found[64]
    assert found == by_batch([one for one in made if one.point.workload.batch_size != 64])
    assert mean(found[32].efficiency) == 1.0


def test_a_sweep_whose_ranks_all_share_cores_claims_nothing() -> None:
    found = by_batch([replace(one, oversubscribed=True) for one in swept(VGG)])
    shared = (None, None, ("OVERSUBSCRIBED",))
    assert {(one.efficiency, one.over_smaller, one.flags) for one in found.values()} == {shared}


def test_a_batch_whose_bytes_took_another_network_is_compared_with_none() -> None:
    asked = [
        record(point("exchange", 2, number, batch_size=size, interconnect="ib0"), step_s, hosts=("node1", "node2"))
        for number in range(3)
        for size, step_s in {32: 0.1, 64: 0.21}.items()
    ]
    found = by_batch([carried(one, "ib0" if one.point.workload.batch_size == 64 else "eth0") for one in asked])
    assert (found[32].flags, found[32].efficiency) == (("MISLABELLED",), None)
    assert (found[64].flags, mean(found[64].efficiency), found[64].over_smaller) == ((), 1.0, None)


def test_each_pass_is_a_sweep_of_its_own_and_one_batch_of_it_enough() -> None:
    found = analyse([*swept({32: 0.1}, pass_="forward"), *swept({32: 0.3}, pass_="backward")]).minibatches
    assert [(one.workload.pass_, one.over_smaller) for one in found] == [("forward", None), ("backward", None)]
    assert all(mean(one.efficiency) == 1.0 for one in found)
    assert analyse(swept({32: 0.1})).minibatches == ()


def test_plain_loops_are_swept_beside_the_exchanges_that_rest_on_them() -> None:
    records = [
        record(point(kind, size, number, batch_size=batch), 0.01 * batch)
        for number in range(3)
        for batch in (16, 32)
        for kind, size in (("solo", 1), ("exchange", 1), ("exchange", 2))
    ]
    found = analyse(records).minibatches
    assert [(one.alone, one.world_size, one.workload.batch_size) for one in found] == [
        (False, 1, 16), (False, 1, 32), (False, 2, 16), (False, 2, 32), (True, 1, 16), (True, 1, 32),
    ]  # fmt: skip


def test_shared_batches_are_no_sweep() -> None:
    """Under the strong rule the baselines have several batches, which nobody asked to compare."""
    strong = [
        record(point(kind, size, number, batch_rule="strong", batch_size=64 // size), 0.1)
        for number in range(2)
        for kind, size in (("solo", 1), ("exchange", 1), ("exchange", 2), ("each", 2))
    ]
    assert analyse(strong).minibatches == ()


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


# What trainings to an accuracy have come to, by hand: counts, seconds, seeds, and the batch that is too large.


def accuracy_rows(*records: PointRecord) -> tuple[Training, ...]:
    return accuracy.trainings(records)


def test_counts_are_summed_over_ranks_and_the_longest_rank_s_seconds_count() -> None:
    (row,) = accuracy_rows(training_record([0.5, 0.9], size=4))
    assert row.top1 == pytest.approx([0.5, 0.9])
    assert row.held_out == HELD_OUT
    assert row.train_s == pytest.approx(2 * 2.3)
    assert row.evaluate_s == pytest.approx(2.0)
    assert row.samples_per_s == pytest.approx(2 * 4 * 320 / 4.6)
    assert row.confusion == ((360, 40), (0, 0))


def test_counts_are_added_and_not_means_of_unequal_shards() -> None:
    parts = [Evaluated(number=0, seen=n, correct=right, start_s=0, end_s=1) for n, right in ((1, 0), (9, 9))]
    assert (accuracy.top1(parts), accuracy.top1([])) == (0.9, 0.0)


def test_seeds_are_one_row_and_seconds_to_the_target_those_of_the_seeds_that_reach_it() -> None:
    (row,) = accuracy_rows(
        training_record([0.5, 0.9, 0.95], target=0.9), training_record([0.4, 0.8, 0.93], seed=1, target=0.9),
        training_record([0.3, 0.6, 0.85], seed=2, target=0.9),
    )  # fmt: skip
    assert row.seeds == (0, 1, 2)
    assert row.top1 == pytest.approx([0.4, 2.3 / 3, 2.73 / 3], abs=0.002)
    assert row.reached == 2
    assert row.target_s == pytest.approx((4.0 + 6.0) / 2)


def test_a_seed_that_failed_is_said_and_not_averaged() -> None:
    (row,) = accuracy_rows(training_record([0.5, 0.9]), training_record([0.1, 0.1], seed=1, failed="nan-loss"))
    assert (row.seeds, row.flags) == ((0,), ("FAILED",))
    assert row.top1 == pytest.approx([0.5, 0.9])
    assert row.failed is not None


def test_a_larger_batch_that_learns_less_is_told_the_smallest_that_learns_more() -> None:
    found = accuracy_rows(
        training_record([0.99]), training_record([0.98], seed=1),
        training_record([0.97], size=2), training_record([0.985], size=2, seed=1),
        training_record([0.52], size=4, rule="linear", rate=0.4),
        training_record([0.90], size=4, rule="linear", rate=0.4, seed=1),
    )  # fmt: skip
    assert [(row.world_size, row.less_than_samples) for row in found] == [(1, None), (2, None), (4, 32)]


@pytest.mark.parametrize("large", [[0.97, 0.985], [0.95, 0.96], [0.5, 0.99]])
def test_what_chance_explains_is_not_said(large: list[float]) -> None:
    small = [training_record([0.975]), training_record([0.98], seed=1)]
    found = accuracy_rows(
        *small, *(training_record([share], size=4, seed=seed) for seed, share in enumerate(large))
    )
    assert [row.less_than_samples for row in found] == [None, None]


def test_trainings_of_other_tasks_are_not_held_against_each_other() -> None:
    longer = training_record([0.99, 0.99])
    assert [row.less_than_samples for row in accuracy_rows(longer, training_record([0.5], size=4))] == [None, None]


def test_ranks_that_do_not_wait_are_marked_and_update_by_their_own_batch() -> None:
    (row,) = accuracy_rows(training_record([0.5], size=4, synchronous=False))
    assert (row.update_samples, row.flags) == (32, ("ASYNC",))
    assert row.samples_per_s == pytest.approx(sum(320 / (2 + 0.1 * rank) for rank in range(4)))
