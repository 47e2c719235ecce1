"""What devices do alone: every seat, some of them in turn, or the first for all."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import baselines
from scaling.records.run import PointRecord
from tests.support.scripted_records import STRONG, by_size, close, loss_of, mean, point, record


def turns(made: PointRecord, *ranks: int) -> PointRecord:
    return replace(made, ranks=tuple(r if r.rank in ranks else replace(r, windows=()) for r in made.ranks))


def test_efficiency_is_against_the_sum_of_the_rows_own_seats() -> None:
    """Alone 0.1 and 0.2 s: 1 / mean(10, 5) = 0.1333 s for a step of both; the first rank is against itself."""
    rows = by_size([
        record(point("each", 2), 0.1, 0.2),
        record(point("exchange", 1), 0.125),
        record(point("exchange", 2), 0.25),
    ])  # fmt: skip
    assert mean(rows[2].efficiency) == close(0.4 / 3 / 0.25)
    assert mean(rows[1].efficiency) == close(0.8)


def test_contention_is_by_seat_and_unequal_devices_straggle() -> None:
    """Beside each other 0.11 and 0.22: contention is (0.165 - 0.15) / 0.25; the slowest is 0.055 above the mean,
    and the mean of alone 0.15 - 0.4 / 3 above what both do together; comm explains the 0.03 that are left."""
    row = by_size([
        record(point("each", 2), 0.1, 0.2),
        record(point("together", 2), 0.11, 0.22),
        record(point("exchange", 2), 0.25),
        record(point("comm", 2), 0.05),
    ])[2]  # fmt: skip
    loss = loss_of(row)
    assert loss.contention == close(0.015 / 0.25)
    assert loss.straggling == close((0.055 + 0.15 - 0.4 / 3) / 0.25)
    assert loss.exposed == close(0.03 / 0.25)
    assert loss.unexplained == close(0.0)


def test_under_the_strong_rule_seats_scale_what_the_first_does_with_the_global_batch() -> None:
    """Global batch 64 in 0.2 s on the first seat; at 32 the seats take 0.1 and 0.2: both 0.4 / 3 / 0.1 as long."""
    row = by_size([
        record(point("solo", batch_size=64, **STRONG), 0.2),
        record(point("each", 2, batch_size=32), 0.1, 0.2),
        record(point("exchange", 2, batch_size=32, **STRONG), 0.25),
    ])[2]  # fmt: skip
    assert mean(row.efficiency) == close(0.2 / 2 * (0.4 / 3 / 0.1) / 0.25)


def test_a_seat_without_a_turn_is_filled_from_other_rounds() -> None:
    """The second seat is 1.5 x the first wherever both are known; the second round is 1.1 x the first."""
    records = [
        record(point("each", 2, 0), 0.1, 0.15),
        turns(record(point("each", 2, 1), 0.11, 9.9), 0),
        turns(record(point("each", 2, 2), 9.9, 0.15), 1),
        *(record(point("exchange", 2, number), 0.2) for number in range(3)),
    ]
    (found,) = baselines(records)
    # per round 2 / (1/0.1 + 1/0.15) = 0.12, 0.132, 0.12
    assert found.samples_per_s is not None and found.samples_per_s.n == 3
    assert mean(found.samples_per_s) == pytest.approx(32 / (0.12 * 1.1 ** (1 / 3)))


def test_the_nearest_each_counts_before_solo() -> None:
    rows = by_size([
        record(point("solo"), 0.5),
        record(point("each", 4), 0.1),
        record(point("each", 2), 0.12),
        record(point("exchange", 2), 0.2),
        record(point("exchange", 4), 0.2),
    ])  # fmt: skip
    assert mean(rows[2].efficiency) == close(0.6)
    assert mean(rows[4].efficiency) == close(0.5)
