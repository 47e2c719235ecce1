"""Waiting for data is told from contention; the arithmetic stands in the comments."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scaling.analysis.table.rows import Row
from scaling.records.run import PointRecord
from tests.support.scripted_records import asynchronous, by_size, close, failed, loss_of, point, record

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


def test_a_feed_by_itself_is_the_most_that_is_waited_for() -> None:
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
    made = [
        *one_round(HELD_S + 0.004, 0.13, number=0),
        *one_round(HELD_S - 0.004, 0.13, number=1),
    ]
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
    assert "no held control (failed: oom): what ranks wait for data counts as contention" in row.footnotes


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
    assert note == "no held control in 1 of 2 rounds (failed: oom); from the others: what ranks wait for data"


def test_where_no_round_tells_all_causes_each_is_the_mean_of_the_rounds_that_tell_it() -> None:
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
