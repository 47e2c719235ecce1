"""Known answers for losses after equal numbers of samples, and for staleness."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.measured import cell
from scaling.analysis.table.analyse import rows
from scaling.records.run import PointRecord
from tests.support.scripted_records import (
    asynchronous,
    by_one_worker,
    close,
    failed,
    point,
    record,
    windows,
    with_losses,
)

# A record of N ranks has 3 windows of 320 samples per rank.


def warmed(made: PointRecord, *losses: float | None) -> PointRecord:
    ranks = []
    for rank in made.ranks:
        before = [replace(windows(0.1, 32)[0], measured=False, loss=loss) for loss in losses]
        ranks.append(replace(rank, warmup=tuple(before)))
    return replace(made, ranks=tuple(ranks))


def made_with(*losses: float | None, size: int = 1, number: int = 0, **changes: Any) -> PointRecord:
    return with_losses(record(point("exchange", size, number, **changes), 0.1), *losses)


def test_samples_are_of_all_ranks_with_the_warm_up() -> None:
    # 2 ranks x (2 + 3) windows x 320
    assert cell.trained_samples(warmed(made_with(3.0, 2.0, 1.0, size=2), 9.0, 8.0)) == 3200
    assert cell.trained_samples(by_one_worker(made_with(3.0, 2.0, 1.0, size=2))) == 1920


def test_windows_that_were_measured_again_trained_too() -> None:
    # The first of three was disturbed: block 0 is the second one.
    made = made_with(3.0, 2.0, 1.0, size=2)
    ranks = [replace(rank, windows=rank.windows[1:], disturbed=rank.windows[:1]) for rank in made.ranks]
    again = replace(made, ranks=tuple(ranks))
    assert cell.trained_samples(again) == 1920
    assert cell.loss_after([again], 1280) == close(2.0)


def test_samples_without_a_loss_do_not_count() -> None:
    assert cell.trained_samples(made_with(3.0, 2.0, None)) == 640
    assert cell.trained_samples(made_with(None, None, None)) == 0
    assert cell.equal_samples([[failed(point("exchange"))], [made_with(3.0, 2.0, 1.0)]]) == 960
    assert cell.equal_samples([[failed(point("exchange"))]]) is None


@pytest.mark.parametrize(
    ("count", "loss"),
    [(319, None), (320, 3.0), (480, 2.5), (640, 2.0), (800, 1.75), (960, 1.5), (961, None)],
)
def test_the_curve_is_linear_between_windows(count: int, loss: float | None) -> None:
    assert cell.loss_after([made_with(3.0, 2.0, 1.5)], count) == (loss if loss is None else close(loss))


def test_windows_without_a_loss_are_bridged() -> None:
    assert cell.loss_after([made_with(3.0, None, 1.0)], 640) == close(2.0)


def test_loss_after_is_the_mean_over_ranks_and_rounds() -> None:
    first = made_with(3.0, 2.0, 1.0, size=2)
    second = with_losses(first, 3.0, 2.4, 1.0)
    uneven = replace(first, ranks=(first.ranks[0], second.ranks[1]))
    again = made_with(3.0, 3.0, 3.0, size=2, number=1)
    # after 2 x 640: 2.0 and 2.4 in one round, 3.0 twice in the other
    assert cell.loss_after([uneven, again], 1280) == close((2.0 + 2.4 + 3.0 + 3.0) / 4)


def test_rows_of_a_contest_are_held_to_what_all_have_reached() -> None:
    """a has two windows of warm-up more than b: both are told after b's 960 samples, asynchronous or not."""
    a = warmed(made_with(3.0, 2.0, 1.0, strategy="fake:a"), 5.0, 4.0)
    b = asynchronous(made_with(3.5, 2.5, 1.5, strategy="fake:b"))
    other = made_with(2.0, 1.0, 0.5, strategy="fake:b", batch_size=16)
    by_strategy = {(row.strategy, row.workload.batch_size): row for row in rows([a, b, other])}
    first, second = by_strategy["fake:a", 32], by_strategy["fake:b", 32]
    assert (first.loss_at, first.loss_at_samples) == (close(3.0), 960)
    assert (second.loss_at, second.loss_at_samples) == (close(1.5), 960)
    assert by_strategy["fake:b", 16].loss_at_samples == 480


def test_a_round_that_reached_less_counts_for_all() -> None:
    short = made_with(3.0, 2.0, None, number=1)
    (row,) = rows([made_with(3.0, 2.0, 1.0), short])
    assert (row.loss_at, row.loss_at_samples) == (close(2.0), 640)


@pytest.mark.parametrize("size", [2, 16])
def test_the_samples_of_all_ranks_are_summed_once_a_record(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[PointRecord] = []
    totals = cell._totals

    def counted(one: PointRecord) -> list[int]:
        summed.append(one)
        return totals(one)

    monkeypatch.setattr(cell, "_totals", counted)
    made = made_with(3.0, 2.0, 1.5, size=size)
    assert cell.loss_after([made], size * 640) == close(2.0)
    assert summed == [made]
    assert cell.trained_samples(made) == size * 960
    assert summed == [made, made]


def test_rows_without_a_loss_have_none() -> None:
    (row,) = rows([made_with(None, None, None)])
    assert (row.loss_at, row.loss_at_samples) == (None, None)


def test_staleness_is_the_mean_over_ranks_windows_and_rounds() -> None:
    first = asynchronous(record(point("exchange", 2), 0.1), staleness=1.0)
    second = asynchronous(record(point("exchange", 2, 1), 0.1), staleness=2.5)
    assert rows([first, second])[0].staleness == close(1.75)
    assert rows([record(point("exchange", 2), 0.1)])[0].staleness is None
