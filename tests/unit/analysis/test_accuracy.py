"""What trainings to an accuracy have come to, by hand: counts, seconds, seeds, and the batch that is too large."""

from __future__ import annotations

import pytest

from scaling.analysis.table import accuracy
from scaling.analysis.table.rows import Training
from scaling.records.events import Evaluated
from scaling.records.run import PointRecord
from tests.support.training_records import HELD_OUT, training_record


def rows(*records: PointRecord) -> tuple[Training, ...]:
    return accuracy.trainings(records)


def test_counts_are_summed_over_ranks_and_the_longest_rank_s_seconds_count() -> None:
    (row,) = rows(training_record([0.5, 0.9], size=4))
    assert row.top1 == pytest.approx([0.5, 0.9])
    assert row.held_out == HELD_OUT
    assert row.train_s == pytest.approx(2 * 2.3)
    assert row.evaluate_s == pytest.approx(2.0)
    assert row.samples_per_s == pytest.approx(2 * 4 * 320 / 4.6)
    assert row.confusion == ((360, 40), (0, 0))


def test_counts_travel_and_not_means_of_unequal_shards() -> None:
    parts = [
        Evaluated(number=0, seen=seen, correct=correct, start_s=0, end_s=1) for seen, correct in ((1, 0), (9, 9))
    ]
    assert accuracy.top1(parts) == 0.9
    assert accuracy.top1([]) == 0.0


def test_seeds_are_one_row_and_seconds_to_the_target_those_of_the_seeds_that_reach_it() -> None:
    (row,) = rows(
        training_record([0.5, 0.9, 0.95], target=0.9), training_record([0.4, 0.8, 0.93], seed=1, target=0.9),
        training_record([0.3, 0.6, 0.85], seed=2, target=0.9),
    )  # fmt: skip
    assert row.seeds == (0, 1, 2)
    assert row.top1 == pytest.approx([0.4, 2.3 / 3, 2.73 / 3], abs=0.002)
    assert row.reached == 2
    assert row.target_s == pytest.approx((4.0 + 6.0) / 2)


def test_a_seed_that_failed_is_said_and_not_averaged() -> None:
    (row,) = rows(training_record([0.5, 0.9]), training_record([0.1, 0.1], seed=1, failed="nan-loss"))
    assert (row.seeds, row.flags) == ((0,), ("FAILED",))
    assert row.top1 == pytest.approx([0.5, 0.9])
    assert row.failed is not None


def test_a_larger_batch_that_learns_less_is_told_the_smallest_that_learns_more() -> None:
    found = rows(
        training_record([0.99]), training_record([0.98], seed=1),
        training_record([0.97], size=2), training_record([0.985], size=2, seed=1),
        training_record([0.52], size=4, rule="linear", rate=0.4),
        training_record([0.90], size=4, rule="linear", rate=0.4, seed=1),
    )  # fmt: skip
    assert [(row.world_size, row.less_than_samples) for row in found] == [(1, None), (2, None), (4, 32)]


@pytest.mark.parametrize("large", [[0.97, 0.985], [0.95, 0.96], [0.5, 0.99]])
def test_what_chance_explains_is_not_said(large: list[float]) -> None:
    small = [training_record([0.975]), training_record([0.98], seed=1)]
    found = rows(*small, *(training_record([share], size=4, seed=seed) for seed, share in enumerate(large)))
    assert [row.less_than_samples for row in found] == [None, None]


def test_trainings_of_other_tasks_are_not_held_against_each_other() -> None:
    longer = training_record([0.99, 0.99])
    assert [row.less_than_samples for row in rows(longer, training_record([0.5], size=4))] == [None, None]


def test_ranks_that_do_not_wait_are_marked_and_update_by_their_own_batch() -> None:
    (row,) = rows(training_record([0.5], size=4, synchronous=False))
    assert (row.update_samples, row.flags) == (32, ("ASYNC",))
    assert row.samples_per_s == pytest.approx(sum(320 / (2 + 0.1 * rank) for rank in range(4)))
