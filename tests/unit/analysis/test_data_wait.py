"""Waiting for data, notes about feeds, and baselines of every seat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.measured import cell
from scaling.analysis.table.analyse import analyse
from scaling.analysis.table.rows import Row
from scaling.records.events import Ready
from scaling.records.run import PointRecord
from tests.support.scripted_records import (
    STRONG,
    asynchronous,
    by_size,
    close,
    failed,
    loss_of,
    mean,
    point,
    record,
)
from tests.support.scripted_records import record as recorded

# Waiting for data is told from contention; the arithmetic stands in the comments.

ALONE_S, HELD_ALONE_S, HELD_S = 0.12, 0.10, 0.104
SIZE = 4


def one_round(together_s: float, exchange_s: float, *, number: int = 0, feeds: bool = True) -> list[PointRecord]:
    """One device waits 0.02 of 0.12 s for data; feeds take 0.03 s alone and 0.05 s at once."""
    made = [
        record(point("solo", 1, number), ALONE_S),
        record(point("held", 1, number), HELD_ALONE_S),
        record(point("together", SIZE, number), together_s),
        record(point("held", SIZE, number), HELD_S),
        record(point("exchange", 1, number), ALONE_S),
        record(point("exchange", SIZE, number), exchange_s),
    ]
    fed = [record(point("feed", 1, number), 0.03), record(point("feed", SIZE, number), 0.05)]
    return [*made, *fed] if feeds else made


def parts(row: Row) -> Iterator[float]:
    found = loss_of(row)
    yield from (getattr(found, name) or 0.0 for name in found.__struct_fields__)


def test_what_waiting_for_data_has_grown_by_is_lost_and_the_rest_of_it_is_in_the_baseline() -> None:
    # together 0.144 - held 0.104 = 0.04 of data, of which 0.02 one device waits too; held 0.104 - 0.10 contention
    row = by_size(one_round(0.144, 0.16))[SIZE]
    found = loss_of(row)
    assert found.data_wait == close(0.02 / 0.16)
    assert found.contention == close(0.004 / 0.16)
    assert sum(parts(row)) == close(1 - ALONE_S / 0.16)
    assert row.data_wait is not None
    assert (row.data_wait.of_step, row.data_wait.of_alone) == (close(0.04 / 0.16), close(0.02 / 0.12))
    assert row.data_wait.feed_samples_per_s == close(SIZE * 32 / 0.05)
    assert set(row.breakdown_intervals) >= {"data_wait", "contention"}


def test_data_wait_is_at_most_the_feed_alone() -> None:
    # together 0.164 - held 0.104 = 0.06, of which feeds explain 0.05: 0.03 grown, and 0.014 is left as contention
    row = by_size(one_round(0.164, 0.18))[SIZE]
    assert loss_of(row).data_wait == close(0.03 / 0.18)
    assert loss_of(row).contention == close(0.014 / 0.18)
    assert sum(parts(row)) == close(1 - ALONE_S / 0.18)
    unbounded = by_size(one_round(0.164, 0.18, feeds=False))[SIZE]
    assert loss_of(unbounded).data_wait == close(0.04 / 0.18)
    assert unbounded.data_wait is not None and unbounded.data_wait.feed_samples_per_s is None


def test_what_holds_no_data_up_is_no_wait() -> None:
    # held is slower than together by noise: nothing is waited for, and what one device waits is gained
    row = by_size(one_round(0.103, 0.13))[SIZE]
    assert row.data_wait is not None and row.data_wait.of_step == 0.0
    assert loss_of(row).data_wait == close(-0.02 / 0.13)
    assert sum(parts(row)) == close(1 - ALONE_S / 0.13)


def test_bounds_are_of_the_mean_over_rounds_and_noise_is_no_wait() -> None:
    # together - held is 0.004 and -0.004: nothing on average, and a bound in each round would make it 0.002
    made = [*one_round(HELD_S + 0.004, 0.13, number=0), *one_round(HELD_S - 0.004, 0.13, number=1)]
    row = by_size(made)[SIZE]
    assert row.data_wait is not None and row.data_wait.of_step == close(0.0)


def test_a_single_device_loses_nothing_to_data_that_its_baseline_waits_for_too() -> None:
    row = by_size(one_round(0.144, 0.16))[1]
    assert (loss_of(row).data_wait, loss_of(row).contention) == (close(0.0), close(0.0))
    assert row.data_wait is not None
    assert (row.data_wait.of_step, row.data_wait.of_alone) == (close(0.02 / 0.12), close(0.02 / 0.12))


def test_ranks_that_do_not_wait_are_compared_by_rates() -> None:
    # The exchange's own time is of rates: so are the loops'; ranks are alike here, so that nothing else changes
    made = [asynchronous(one) if one.point.kind == "exchange" else one for one in one_round(0.144, 0.16)]
    assert loss_of(by_size(made)[SIZE]).data_wait == close(0.02 / 0.16)


@pytest.mark.parametrize("size", [1, SIZE])
def test_where_a_held_control_failed_the_row_says_so(size: int) -> None:
    lacking = point("held", size)
    made = [one for one in one_round(0.144, 0.16) if one.point != lacking]
    row = by_size([*made, failed(lacking)])[SIZE]
    assert loss_of(row).data_wait is None and row.data_wait is None
    assert loss_of(row).contention == close(0.024 / 0.16)
    assert "no held control (failed: oom): data wait counts as contention" in row.footnotes


def test_a_held_control_that_failed_in_one_round_is_told_by_the_others() -> None:
    made = [
        failed(one.point) if (one.point.round, one.point.kind) == (1, "held") else one
        for number in (0, 1)
        for one in one_round(0.144, 0.16, number=number)
    ]
    row = by_size(made)[SIZE]
    assert loss_of(row).data_wait == close(0.02 / 0.16)
    assert loss_of(row).contention == close(0.004 / 0.16)
    note, *_ = [note for note in row.footnotes if "held" in note]
    assert note == "no held control in 1 of 2 rounds (failed: oom); from the other rounds: data wait"


def test_each_cause_is_the_mean_of_the_rounds_that_have_it() -> None:
    # data: 0.04 and 0.02 in round 0 alone; contention with it: 0.144 - 0.12 in both
    lacking = {(0, "comm"), (1, "held")}
    made = [
        failed(one.point) if (one.point.round, one.point.kind) in lacking else one
        for number in (0, 1)
        for one in (*one_round(0.144, 0.16, number=number), record(point("comm", SIZE, number), 0.01))
    ]
    row = by_size(made)[SIZE]
    assert loss_of(row).data_wait == close(0.02 / 0.16)
    assert loss_of(row).contention == close(0.004 / 0.16)
    assert loss_of(row).exposed == close(0.01 / 0.16)
    assert sum(parts(row)) == close(1 - ALONE_S / 0.16)


def test_without_held_controls_nothing_is_said_of_data() -> None:
    made = [one for one in one_round(0.144, 0.16) if one.point.kind not in ("held", "feed")]
    row = by_size(made)[SIZE]
    assert loss_of(row).data_wait is None and row.data_wait is None
    assert not [note for note in row.footnotes if "data" in note]


# What a row says of its feed: how long ranks were blocked in it, where its files came from.

READY = Ready(import_s=1.0, build_s=1.0, parameters=1, gradient_bytes=4, device_name="cpu")


def fed(record: PointRecord, waited_s: float | None, **ready: Any) -> PointRecord:
    ranks = [
        replace(
            rank,
            ready=replace(READY, **ready),
            windows=tuple(replace(window, waited_s=waited_s) for window in rank.windows),
        )
        for rank in record.ranks
    ]
    return replace(record, ranks=tuple(ranks))


def test_how_long_a_rank_is_blocked_in_a_step() -> None:
    record = recorded(point(), 0.1)
    steps = record.ranks[0].windows[0].steps
    assert cell.waited_s([fed(record, 0.5 * steps), fed(record, 1.5 * steps)]) == 1.0
    assert cell.waited_s([fed(record, None)]) is None
    assert list(cell.feed_notes([fed(record, None)])) == []


def test_where_its_files_came_from() -> None:
    record = recorded(point(), 0.1)
    (pipeline, cached) = cell.feed_notes(
        [fed(record, 1.0, fed_by="tf.data, 2 threads a rank", read_from="page cache")]
    )
    assert pipeline == "native feed: tf.data, 2 threads a rank"
    assert cached.startswith("files come from the page cache")
    dropped = [fed(record, 1.0, read_from="disk", cached_fraction=part) for part in (0.0, 0.125)]
    assert list(cell.feed_notes(dropped[:1])) == ["files were dropped from the page cache before each point"]
    assert next(cell.feed_notes(dropped)).endswith("; up to 12 % stayed there")
    (unknown,) = cell.feed_notes([fed(record, 1.0, read_from="disk")])
    assert "cannot see" in unknown


# What devices do alone: every seat, some of them in turn, or the first for all.


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
    (found,) = analyse(records).baselines
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
