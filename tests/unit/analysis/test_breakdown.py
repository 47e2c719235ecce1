"""Known answers for the loss by cause; the arithmetic stands in the comments."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from scaling.records.run import PointRecord
from tests.support.scripted_records import by_size, close, failed, loss_of, mean, point, record, sweep


def one_round(step_s: float, together: tuple[float, ...], comm_s: float, *, n: int = 0) -> list[PointRecord]:
    n = n or len(together)
    made = [record(point("solo"), 0.1), record(point("exchange", n), step_s)]
    made += [record(point("together", n), *together)] if together else []
    return [*made, record(point("comm", n), comm_s)] if comm_s else made


def test_loss_by_cause_exactly() -> None:
    # solo 0.1; together mean 0.115, max 0.13; exchange 0.16, of which 0.03 after the slowest; comm 0.01
    loss = loss_of(by_size(one_round(0.16, (0.11, 0.11, 0.11, 0.13), 0.01))[4])
    assert loss.contention == close(0.015 / 0.16)
    assert loss.straggling == close(0.015 / 0.16)
    assert loss.exposed == close(0.01 / 0.16)  # no more than the communication takes alone
    assert loss.small_batch == close(0.0)
    assert loss.unexplained == close(0.02 / 0.16)


def beside_compute(records: list[PointRecord], *seconds: float) -> list[PointRecord]:
    """The same, with exchanges of so many seconds on each rank while the devices compute."""
    *others, comm = records
    exchange = next(one for one in others if one.point.kind == "exchange")
    ranks = tuple(
        replace(rank, beside=(replace(rank.windows[0], steps=1, samples=0, start_s=0.0, end_s=each),))
        for rank, each in zip(exchange.ranks, seconds, strict=True)
    )
    return [*(replace(one, ranks=ranks) if one is exchange else one for one in others), comm]


@pytest.mark.parametrize(("beside_s", "exposed_s"), [(0.018, 0.018), (0.05, 0.03)])
def test_exposed_is_at_most_what_the_exchange_takes_beside_compute(beside_s: float, exposed_s: float) -> None:
    # The 0.03 after the slowest loop are exchange, though alone it takes 0.01: it is slower beside compute.
    records = beside_compute(one_round(0.16, (0.11, 0.13), 0.01), 0.012, beside_s)
    loss = loss_of(by_size(records)[2])
    assert loss.exposed == close(exposed_s / 0.16)
    assert loss.unexplained == close((0.03 - exposed_s) / 0.16)


def test_compute_that_slows_the_exchange_down_is_noted() -> None:
    """Where the rounds tell it."""
    rounds = [
        beside_compute([numbered(one, number) for one in one_round(0.16, (0.11, 0.13), 0.01)], 0.014, 0.0141)
        for number in range(4)
    ]
    note = "communication takes 1.4 times as long beside compute as alone"
    assert note in by_size([one for records in rounds for one in records])[2].footnotes
    assert note not in by_size(rounds[0])[2].footnotes


def numbered(record: PointRecord, number: int) -> PointRecord:
    return replace(record, point=replace(record.point, round=number))


def test_exposed_is_what_compute_does_not_hide() -> None:
    # 0.125 - 0.108 = 0.017 of 0.05 communication
    loss = loss_of(by_size(one_round(0.125, (0.104, 0.108), 0.05))[2])
    assert loss.exposed == close(0.017 / 0.125)
    assert loss.unexplained == close(0.0)


@pytest.mark.parametrize(
    ("exchanges", "comm_s", "exposed"),
    [
        # 0.004 / 0.114 and -0.004 / 0.106: nothing on average, where a bound in each round would make it 1.8 %
        ((0.114, 0.106), 0.05, 0.0),
        # 0.02 / 0.13 and 0: less than comm on average, where a bound in each round would make it half of that
        ((0.13, 0.11), 0.01, 0.02 / 0.13 / 2),
    ],
)
def test_exposed_is_bounded_over_rounds_and_not_in_each(
    exchanges: tuple[float, float], comm_s: float, exposed: float
) -> None:
    rounds = [
        numbered(one, number)
        for number, step_s in enumerate(exchanges)
        for one in one_round(step_s, (0.11, 0.11), comm_s)
    ]
    assert loss_of(by_size(rounds)[2]).exposed == close(exposed)


def test_all_causes_are_of_the_rounds_that_tell_all_of_them() -> None:
    """Round 1 has contention of 0.03 s and no comm: what is told is of round 0."""
    first = one_round(0.125, (0.11, 0.11), 0.05)
    other = [numbered(one, 1) for one in one_round(0.145, (0.13, 0.13), 0.05)]
    loss = loss_of(by_size([*first, *(one for one in other if one.point.kind != "comm")])[2])
    assert loss.contention == close(0.01 / 0.125)
    assert loss.exposed == close(0.015 / 0.125)


def test_unexplained_may_be_negative() -> None:
    # The exchange is as fast as one device although the loops beside each other were slower:
    # contention 0.005/0.1, straggling 0.005/0.1, nothing exposed, efficiency 1
    row = by_size(one_round(0.1, (0.10, 0.11), 0.05))[2]
    assert loss_of(row).contention == close(0.05)
    assert loss_of(row).exposed == close(0.0)
    assert loss_of(row).unexplained == close(-0.1)


def test_overhead_of_a_single_rank() -> None:
    # Without a comm control at N=1 it is unexplained, with one it is exposed communication.
    records = [record(point("solo"), 0.1), record(point("exchange"), 0.125)]
    bare = by_size(records)[1]
    assert loss_of(bare).exposed is None and loss_of(bare).unexplained == close(0.2)
    assert bare.footnotes == ()
    told = by_size([*records, record(point("comm"), 0.03)])[1]
    assert loss_of(told).exposed == close(0.2) and loss_of(told).unexplained == close(0.0)
    assert (loss_of(told).contention, loss_of(told).straggling) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("together", "comm_s", "none", "rest", "note"),
    [
        ((), 0.05, ("contention", "straggling", "exposed"), 0.2, "no together control"),
        ((0.104, 0.108), 0.0, ("exposed",), 0.2 - 0.048 - 0.016, "no comm control; counted in the rest"),
    ],
)
def test_a_missing_control_is_not_invented(
    together: tuple[float, ...], comm_s: float, none: tuple[str, ...], rest: float, note: str
) -> None:
    # contention 0.006/0.125 = 0.048, straggling 0.002/0.125 = 0.016 where `together` ran
    row = by_size(one_round(0.125, together, comm_s, n=2))[2]
    assert all(getattr(loss_of(row), cause) is None for cause in none)
    assert loss_of(row).unexplained == close(rest)
    assert any(note in text for text in row.footnotes)


def test_a_control_missing_in_one_round_is_told_by_the_others() -> None:
    records = [*sweep(0, 0.1, {2: 0.125}), *sweep(1, 0.1, {2: 0.125})]
    records = [failed(one.point) if (one.point.kind, one.point.round) == ("comm", 1) else one for one in records]
    row = by_size(records)[2]
    # together: mean 0.103, max 0.104; exposed 0.021/0.125 in the round that knows it
    assert loss_of(row).exposed == close(0.021 / 0.125)
    assert loss_of(row).unexplained == close(0.0)
    assert row.footnotes == (
        "no comm control in 1 of 2 rounds (failed: oom); from the others: exposed communication",
        "its comm control at n2: 1 of 2 rounds failed: oom: out of memory (rank 1 on node1; log: logs/a.log)",
        "slow rank: rank 1 on node1 (CPU 1) takes 2.0 % longer beside the others than its fellows",
    )


def test_the_parts_always_add_up() -> None:
    rng = random.Random(3)
    for _ in range(50):
        records = [one for n in range(3) for one in sweep(n, rng.uniform(0.1, 0.2), {2: rng.uniform(0.1, 0.3)})]
        kept = [one for one in records if one.point.kind in ("exchange", "solo") or rng.random() < 0.6]
        row = by_size(kept)[2]
        parts = (getattr(loss_of(row), cause) or 0.0 for cause in loss_of(row).__struct_fields__)
        assert sum(parts) == pytest.approx(1 - mean(row.efficiency), abs=1e-12)


def test_a_rest_that_only_means_leave_is_not_told_from_zero() -> None:
    # Efficiencies of 0.1 / 0.16 and 0.1 / 0.11: each round adds up, but efficiencies have a geometric mean.
    slow, fast = (one_round(step_s, (step_s - 0.01,) * 2, 0.1) for step_s in (0.16, 0.11))
    records = [
        replace(one, point=replace(one.point, round=number))
        for number, made in enumerate((slow, fast, slow, fast))
        for one in made
    ]
    rest = by_size(records)[2].breakdown_intervals["unexplained"]
    assert abs(rest.mean) > 0.005 and rest.holds_zero


def test_controls_of_another_placement_do_not_count() -> None:
    records = sweep(0, 0.1, {2: 0.125})
    spread = [
        replace(one, point=replace(one.point, placement="spread")) if one.point.kind == "together" else one
        for one in records
    ]
    assert loss_of(by_size(records)[2]).contention is not None
    assert loss_of(by_size(spread)[2]).contention is None
