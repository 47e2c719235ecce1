"""Known answers where ranks do not wait for each other, and where one worker drives all devices."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import comparisons, rows
from scaling.records.run import PointRecord
from tests.support.scripted_records import (
    STRONG,
    asynchronous,
    by_one_worker,
    by_size,
    close,
    failed,
    loss_of,
    mean,
    point,
    record,
    sweep,
    with_window,
)

# ---------------------------------------------------------------- rates


def test_images_per_s_is_the_sum_of_the_ranks_own_rates() -> None:
    # 32 / 0.1 + 32 / 0.2 = 320 + 160; waiting for each other it would be 2 x 32 / 0.2 = 320
    made = record(point("exchange", 2), 0.1, 0.2)
    assert mean(rows([made])[0].samples_per_s) == close(320.0)
    (row,) = rows([asynchronous(made)])
    assert mean(row.samples_per_s) == close(480.0)
    assert (row.synchronous, row.flags) == (False, ("ASYNC",))


def test_efficiency_and_speedup_follow_from_the_rates() -> None:
    # 480 images/s against 320 of one device: speedup 1.5, efficiency 0.75
    row = by_size([record(point("solo"), 0.1), asynchronous(record(point("exchange", 2), 0.1, 0.2))])[2]
    assert (mean(row.speedup), mean(row.efficiency)) == (close(1.5), close(0.75))


@pytest.mark.parametrize(
    ("size", "said", "waiting"),
    [(4, "fast rank: ", ", and waits for them"), (3, "slow and fast ranks: ", "; the fast ones wait")],
)
def test_a_fast_rank_waits_for_nobody(size: int, said: str, waiting: str) -> None:
    """Of three the slow ones, too, are apart from the median of the others."""
    steps_s = (0.1, *(0.12,) * (size - 1))
    exchange = record(point("exchange", size), *steps_s)
    for told, waits in ((exchange, True), (asynchronous(exchange), False)):
        made = [
            replace(one, point=replace(one.point, round=number))
            for number in range(3)
            for one in (record(point("each", size), *steps_s), told)
        ]
        (note,) = [note for row in rows(made) for note in row.footnotes if note.startswith(said)]
        assert note.endswith(waiting) == waits


def test_the_strong_rule_is_no_exception() -> None:
    """Global batch 64 in 0.2 s on one device, 320 images/s; two ranks with 32 each: 32/0.125 + 32/0.2 = 416."""
    records = [
        record(point("solo", batch_size=64, **STRONG), 0.2),
        asynchronous(record(point("exchange", 2, batch_size=32, **STRONG), 0.125, 0.2)),
    ]
    row = by_size(records)[2]
    assert mean(row.samples_per_s) == close(416.0)
    assert (mean(row.speedup), mean(row.efficiency)) == (close(1.3), close(0.65))


def test_loss_by_cause_without_straggling() -> None:
    """Alone 0.1; beside each other 0.1 and 0.15, as rates on average 0.12 a step; exchanging 0.12 and 0.2,
    0.15: of 0.15, contention 0.02 and exposed 0.03 (the communication alone takes 0.04); nothing is left."""
    records = [
        record(point("solo"), 0.1),
        record(point("together", 2), 0.1, 0.15),
        asynchronous(record(point("exchange", 2), 0.12, 0.2)),
        asynchronous(record(point("comm", 2), 0.04)),
    ]
    loss = loss_of(by_size(records)[2])
    assert loss.contention == close(0.02 / 0.15)
    assert loss.straggling is None
    assert loss.exposed == close(0.03 / 0.15)
    assert loss.unexplained == close(0.0)


def test_communication_alone_is_by_rates_too() -> None:
    # 1 / mean(1/0.01, 1/0.03) = 0.015 of the 0.03 that the exchange takes longer
    records = [
        record(point("solo"), 0.1),
        record(point("together", 2), 0.1),
        asynchronous(record(point("exchange", 2), 0.13)),
        asynchronous(record(point("comm", 2), 0.01, 0.03)),
    ]
    assert loss_of(by_size(records)[2]).exposed == close(0.015 / 0.13)


def test_the_parts_add_up() -> None:
    rng = random.Random(5)
    for _ in range(50):
        records = []
        for number in range(3):
            found = sweep(number, rng.uniform(0.1, 0.2), {2: rng.uniform(0.1, 0.3)})
            slow = asynchronous(record(point("exchange", 2, number), rng.uniform(0.1, 0.3), rng.uniform(0.1, 0.3)))
            records += [slow if one.point.kind == "exchange" else one for one in found]
        kept = [one for one in records if one.point.kind in ("exchange", "solo") or rng.random() < 0.6]
        row = by_size(kept)[2]
        loss = loss_of(row)
        assert loss.straggling is None
        parts = (getattr(loss, cause) or 0.0 for cause in loss.__struct_fields__)
        assert sum(parts) == pytest.approx(1 - mean(row.efficiency), abs=1e-12)


def test_what_a_missing_control_hides() -> None:
    row = by_size([record(point("solo"), 0.1), asynchronous(record(point("exchange", 2), 0.125))])[2]
    note = "no together control; counted in the rest: contention and exposed communication"
    assert row.footnotes == (note,)
    assert loss_of(row).unexplained == close(0.2)


def test_its_controls_are_not_in_doubt_for_being_asynchronous() -> None:
    records = [
        asynchronous(one) if one.point.kind in ("exchange", "comm") else one for one in sweep(0, 0.1, {2: 0.2})
    ]
    assert by_size(records)[2].footnotes == ()


# ---------------------------------------------------------------- audit


def test_lingering_is_no_defect() -> None:
    """The first rank is done in half of the time; what it goes on doing is in no window."""
    made = asynchronous(record(point("exchange", 2), 0.1, 0.2))
    assert rows([made])[0].flags == ("ASYNC",)


@pytest.mark.parametrize(("samples", "flagged"), [(310, False), (300, True)])
def test_audit_counts_each_ranks_own_samples(samples: int, flagged: bool) -> None:
    # 2 ranks x 3 windows x 320 = 1920
    (row,) = rows([with_window(asynchronous(record(point("exchange", 2), 0.1, 0.2)), 0, 1, samples=samples)])
    assert ("AUDIT" in row.flags) is flagged


def test_audit_counts_the_steps_that_each_rank_did() -> None:
    """Rank 1 did half of the windows' steps with half of the samples: right where ranks do not wait."""
    made = record(point("exchange", 2), 0.1)
    for index in range(3):
        made = with_window(made, 1, index, steps=5, samples=160)
    assert "AUDIT" in rows([made])[0].flags
    assert rows([asynchronous(made)])[0].flags == ("ASYNC",)


# ---------------------------------------------------------------- one worker for all devices


@pytest.mark.parametrize("waits", [True, False])
def test_a_single_worker_counts_for_all_devices(waits: bool) -> None:
    # 4 devices x 32 images / 0.125 s
    made = by_one_worker(record(point("exchange", 4), 0.125, hosts=("node1", "node2")))
    (row,) = rows([made if waits else asynchronous(made)])
    assert mean(row.samples_per_s) == close(1024.0)
    assert row.nodes == 2
    assert row.flags == (() if waits else ("ASYNC",))


def test_audit_of_a_single_worker_that_feeds_one_device_alone() -> None:
    made = by_one_worker(record(point("exchange", 4), 0.125))
    (row,) = rows([with_window(made, 0, 0, samples=320)])  # 3 x 1280 less 960
    assert "audit: images/s x time is 3840 samples, the ranks fed 2880" in row.footnotes


# ---------------------------------------------------------------- never ranked against synchronous ones


def contest(number: int, **steps_s: float) -> list[PointRecord]:
    """Strategies at N=2; those whose name begins with `async` are asynchronous."""
    made = [record(point("exchange", 2, number, strategy=f"fake:{name}"), time) for name, time in steps_s.items()]
    return [asynchronous(one) if ":async" in one.point.strategy else one for one in made]


def rounds_of(**steps_s: float) -> list[PointRecord]:
    return [one for number in range(3) for one in contest(number, **steps_s)]


def test_comparisons_are_among_equals() -> None:
    found = comparisons(rounds_of(a=0.1, b=0.11, async_c=0.05, async_d=0.06))
    pairs = [(one.best.strategy, one.other.strategy, one.synchronous) for one in found]
    assert pairs == [("fake:a", "fake:b", True), ("fake:async_c", "fake:async_d", False)]


def test_standings_are_among_equals() -> None:
    found = {row.strategy: row.standing for row in rows(rounds_of(a=0.1, b=0.125, async_c=0.05, async_d=0.08))}
    assert found["fake:a"] is not None and found["fake:a"].best
    assert found["fake:async_c"] is not None and found["fake:async_c"].best
    # 0.1 / 0.125 - 1 and 0.05 / 0.08 - 1
    for name, difference in (("fake:b", -0.2), ("fake:async_d", -0.375)):
        standing = found[name]
        assert standing is not None and not standing.best and standing.distinguishable
        assert mean(standing.difference) == close(difference)


@pytest.mark.parametrize("steps_s", [{"a": 0.1}, {"a": 0.1, "async_b": 0.05}])
def test_without_a_rival_of_its_kind_nothing_is_ranked(steps_s: dict[str, Any]) -> None:
    records = rounds_of(**steps_s)
    assert comparisons(records) == ()
    assert all(row.standing is None for row in rows(records))


def test_one_shared_round_is_no_standing() -> None:
    records = [*contest(0, a=0.1, b=0.2), *contest(1, a=0.1)]
    found = {row.strategy: row.standing for row in rows(records)}
    first, other = found["fake:a"], found["fake:b"]
    assert first is not None and other is not None and other.difference is not None
    assert (mean(other.difference), other.difference.low) == (close(-0.5), None)
    assert (first.verdict, other.verdict) == ("not compared", "not compared")


def test_a_cell_of_which_no_round_was_measured_says_as_much_as_its_records() -> None:
    lost = replace(failed(point("exchange", 2)), synchronous=False)
    assert rows([lost])[0].flags == ("FAILED", "ASYNC")
