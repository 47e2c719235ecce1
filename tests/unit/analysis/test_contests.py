"""Who competes with whom; asynchronous ranks; curves, rivals and servers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import analyse, rows
from scaling.analysis.table.comparisons import curve_keys
from scaling.analysis.table.rows import Row, Standing
from scaling.records.run import PointRecord
from tests.support.scripted_records import (
    STRONG,
    asynchronous,
    by_one_worker,
    by_size,
    carried,
    close,
    failed,
    loss_of,
    mean,
    point,
    record,
    served,
    sweep,
    with_losses,
    with_window,
)

# Who competes with whom, and what is claimed: in a framework, among frameworks, of stale and crowded ranks.

ROUNDS = 4
# Noise of round and rival that does not cancel: hundredths of a step.
NOISE = ((0.0, 0.4, -0.4), (0.3, -0.5, 0.2), (-0.4, 0.1, 0.5), (0.1, 0.2, -0.3))


def contest(steps_s: Mapping[str, float], rounds: int = ROUNDS) -> list[PointRecord]:
    return [
        record(point("exchange", 2, number, strategy=name), step_s * (1 + NOISE[number][index % 3] / 100))
        for number in range(rounds)
        for index, (name, step_s) in enumerate(steps_s.items())
    ]


def by_name(records: Iterable[PointRecord]) -> dict[str, Row]:
    return {row.strategy: row for row in rows(records)}


def verdict(standing: Standing | None) -> str | None:
    return None if standing is None else standing.verdict


def verdicts(records: Iterable[PointRecord]) -> dict[str, tuple[str | None, str | None]]:
    found = by_name(records)
    return {name: (verdict(row.standing), verdict(row.framework_standing)) for name, row in found.items()}


# ---------------------------------------------------------------- who competes


def test_exchanges_compete_inside_their_framework_and_the_fastest_among_frameworks() -> None:
    records = contest({"torch:a": 0.1, "torch:b": 0.12, "mxnet:a": 0.07, "mxnet:b": 0.0701, "tensorflow:a": 0.09})
    assert verdicts(records) == {
        "torch:a": ("best", "slower"),
        "torch:b": ("slower", None),
        "mxnet:a": ("leading", "best"),
        "mxnet:b": ("not separated", None),
        "tensorflow:a": (None, "slower"),
    }


def test_the_fastest_is_so_by_the_rate_of_its_row() -> None:
    """Rounds at 865 and 457 samples/s have a geometric mean of 629, though an arithmetic one of 661."""
    wavering = [record(point("exchange", 2, n, strategy="a:b"), 0.14 if n % 2 else 0.074) for n in range(ROUNDS)]
    found = by_name([*wavering, *(record(point("exchange", 2, n, strategy="a:a"), 0.1) for n in range(ROUNDS))])
    assert mean(found["a:a"].samples_per_s) > mean(found["a:b"].samples_per_s)
    assert found["a:a"].standing is not None and found["a:a"].standing.difference is None
    assert found["a:b"].standing is not None and mean(found["a:b"].standing.difference) < 0


def test_pairs_are_of_one_framework_or_of_the_fastest_of_two() -> None:
    records = contest({"torch:a": 0.1, "torch:b": 0.12, "mxnet:a": 0.07, "mxnet:b": 0.08})
    found = [(one.framework, one.best.strategy, one.other.strategy) for one in analyse(records).comparisons]
    assert found == [("mxnet", "mxnet:a", "mxnet:b"), ("torch", "torch:a", "torch:b"), ("", "mxnet:a", "torch:a")]


@pytest.mark.parametrize(
    ("plains", "framework"),
    [((), "my.own"), (("torch:plain",), "torch"), (("torch:plain", "mxnet:plain"), "my.own")],
)
def test_a_strategy_from_outside_is_of_its_baselines_framework(plains: tuple[str, ...], framework: str) -> None:
    records = contest({"torch:a": 0.1, "my.own:way": 0.1})
    records += [record(point("solo", 1, strategy=name), 0.09) for name in plains]
    found = by_name(records)
    assert found["my.own:way"].framework == framework
    assert (found["my.own:way"].standing is not None) == (framework == "torch")
    assert (found["my.own:way"].framework_standing is not None) == (framework != "torch")


def test_oversubscribed_rows_claim_no_speedup_and_take_no_part() -> None:
    records = contest({"fake:a": 0.1, "fake:b": 0.12, "fake:c": 0.05})
    records = [replace(one, oversubscribed=one.point.strategy == "fake:c") for one in records]
    records += [record(point("solo", 1, number), 0.09) for number in range(ROUNDS)]
    found = by_name(records)
    crowded = found["fake:c"]
    assert (crowded.speedup, crowded.efficiency, crowded.standing) == (None, None, None)
    assert crowded.samples_per_s is not None and found["fake:a"].speedup is not None
    assert verdict(found["fake:a"].standing) == "best"


def test_mislabelled_rows_are_compared_with_nobody() -> None:
    """Its bytes took the first one's network: what is measured is not what the row is called."""
    records = []
    for number in range(3):
        records.append(record(point("solo", 1, number), 0.1))
        for network, step_s in (("ib0", 0.13), ("eth0", 0.12), ("ib1", 0.14)):
            made = record(point("exchange", 2, number, interconnect=network), step_s, hosts=("node1", "node2"))
            records.append(carried(made, "ib0" if network == "eth0" else network))
    found = {row.interconnect: row for row in rows(records)}
    assert "MISLABELLED" in found["eth0"].flags and found["eth0"].standing is None
    assert found["eth0"].efficiency is not None
    standings = [found[name].standing for name in ("ib0", "ib1")]
    assert [standing.best for standing in standings if standing] == [True, False]
    assert {(pair.best.interconnect, pair.other.interconnect) for pair in analyse(records).comparisons} == {
        ("ib0", "ib1")
    }


def test_a_failed_row_takes_no_part() -> None:
    lost = [failed(point("exchange", 2, number, strategy="fake:c")) for number in range(ROUNDS)]
    found = by_name([*contest({"fake:a": 0.1, "fake:b": 0.12}), *lost])
    assert found["fake:c"].standing is None and verdict(found["fake:a"].standing) == "best"


# ---------------------------------------------------------------- what is claimed


def test_best_differs_from_all_and_leading_does_not() -> None:
    near = contest({"fake:a": 0.1, "fake:b": 0.1003, "fake:c": 0.12})
    assert {name: inside for name, (inside, _) in verdicts(near).items()} == {
        "fake:a": "leading", "fake:b": "tied", "fake:c": "slower",
    }  # fmt: skip
    far = contest({"fake:a": 0.1, "fake:b": 0.11, "fake:c": 0.12})
    assert {name: inside for name, (inside, _) in verdicts(far).items()} == {
        "fake:a": "best", "fake:b": "slower", "fake:c": "slower",
    }  # fmt: skip


def test_the_first_leads_where_one_shares_no_round_with_it() -> None:
    records = contest({"fake:a": 0.1, "fake:b": 0.12})
    records.append(record(point("exchange", 2, ROUNDS, strategy="fake:c"), 0.2))
    found = by_name(records)
    assert [verdict(row.standing) for row in found.values()] == ["leading", "slower", "not compared"]


def test_rounds_that_another_lacks_still_count_for_a_pair() -> None:
    whole = contest({"fake:a": 0.1, "fake:b": 0.11, "fake:c": 0.12})
    less = [one for one in whole if one.point.strategy != "fake:c" or one.point.round == 0]
    found = by_name(less)
    standing = found["fake:b"].standing
    assert standing is not None and standing.difference is not None and standing.difference.n == ROUNDS
    assert standing.verdict == "slower"
    alone = found["fake:c"].standing
    assert alone is not None and alone.difference is not None and alone.difference.low is None
    assert alone.difference.mean < -0.15


def test_a_difference_is_the_geometric_mean_over_rounds() -> None:
    times = ((0.1, 0.2), (0.1, 0.1))
    records = [
        record(point("exchange", 2, number, strategy=f"fake:{name}"), time)
        for number, pair in enumerate(times)
        for name, time in zip("ab", pair, strict=True)
    ]
    (found,) = analyse(records).comparisons
    assert mean(found.difference) == pytest.approx(2**-0.5 - 1)
    assert mean(found.advantage) == pytest.approx(2**0.5 - 1)


def test_a_resolution_per_contest() -> None:
    stale = map(asynchronous, contest({"fake:c": 0.1, "fake:d": 0.1}))
    records = [*contest({"fake:a": 0.1, "fake:b": 0.11}), *stale]
    found = analyse(records).resolutions
    assert [(one.world_size, one.synchronous, one.rivals) for one in found] == [(2, True, 2), (2, False, 2)]
    assert all(one.rounds == ROUNDS and one.more_rounds == 10 for one in found)
    assert analyse(contest({"fake:a": 0.1, "fake:b": 0.11}, rounds=1)).resolutions == ()


# ---------------------------------------------------------------- stale images


def beside(losses: Iterable[float], others: Iterable[float]) -> Row:
    """An asynchronous row whose rounds end at `losses`, beside a synchronous one's."""
    made = []
    for number, (own, other) in enumerate(zip(losses, others, strict=True)):
        waits, runs = (point("exchange", 2, number, strategy=f"fake:{name}") for name in ("a", "stale"))
        made += [with_losses(record(waits, 0.1), 2.0, 1.5, other)]
        made += [asynchronous(with_losses(record(runs, 0.05), 2.0, 1.5, own))]
    return by_name(made)["fake:stale"]


@pytest.mark.parametrize(
    ("losses", "others", "learnt_less"),
    [
        ((1.2, 1.21, 1.19), (1.0, 1.01, 0.98), True),
        ((1.2, 0.9, 1.0), (1.0, 1.01, 0.98), False),  # above, but by no more than rounds differ
        ((0.9, 0.91, 0.9), (1.0, 1.01, 0.98), False),
        ((1.2,), (1.0,), False),  # one round tells nothing
    ],
)
def test_stale_ranks_that_learnt_less_say_so(losses: Any, others: Any, learnt_less: bool) -> None:
    assert beside(losses, others).learnt_less is learnt_less


def test_less_is_less_than_all_synchronous_rows() -> None:
    made = []
    for number in range(3):
        for name, loss in (("a", 1.0), ("b", 1.4), ("stale", 1.2)):
            one = with_losses(record(point("exchange", 2, number, strategy=f"fake:{name}"), 0.1), 2.0, 1.5, loss)
            made.append(asynchronous(one) if name == "stale" else one)
    assert not by_name(made)["fake:stale"].learnt_less


def test_without_synchronous_rows_nobody_learnt_less() -> None:
    records = [asynchronous(one) for one in contest({"fake:a": 0.1, "fake:b": 0.1})]
    assert not any(row.learnt_less for row in rows(records))


# Known answers where ranks do not wait for each other, and where one worker drives all devices.

# ---------------------------------------------------------------- rates


def test_images_per_s_is_the_sum_of_the_ranks_own_rates() -> None:
    # 32 / 0.1 + 32 / 0.2 = 320 + 160; waiting for each other it would be 2 x 32 / 0.2 = 320
    made = record(point("exchange", 2), 0.1, 0.2)
    assert mean(rows([made])[0].samples_per_s) == close(320.0)
    (row,) = rows([asynchronous(made)])
    assert mean(row.samples_per_s) == close(480.0)
    assert (row.synchronous, row.flags) == (False, ("ONE-ROUND", "ASYNC"))


def test_efficiency_and_speedup_follow_from_the_rates() -> None:
    # 480 images/s against 320 of one device: speedup 1.5, efficiency 0.75
    row = by_size([record(point("solo"), 0.1), asynchronous(record(point("exchange", 2), 0.1, 0.2))])[2]
    assert (mean(row.speedup), mean(row.efficiency)) == (close(1.5), close(0.75))


@pytest.mark.parametrize(
    ("size", "said", "waiting"),
    [(4, "fast rank: ", "; it waits for the others"), (3, "slow and fast ranks: ", "; the fast ranks wait")],
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
    assert rows([made])[0].flags == ("ONE-ROUND", "ASYNC")


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
    assert rows([asynchronous(made)])[0].flags == ("ONE-ROUND", "ASYNC")


# ---------------------------------------------------------------- one worker for all devices


@pytest.mark.parametrize("waits", [True, False])
def test_a_single_worker_counts_for_all_devices(waits: bool) -> None:
    # 4 devices x 32 images / 0.125 s
    made = by_one_worker(record(point("exchange", 4), 0.125, hosts=("node1", "node2")))
    (row,) = rows([made if waits else asynchronous(made)])
    assert mean(row.samples_per_s) == close(1024.0)
    assert row.nodes == 2
    assert row.flags == ("ONE-ROUND", *(() if waits else ("ASYNC",)))


def test_audit_of_a_single_worker_that_feeds_one_device_alone() -> None:
    made = by_one_worker(record(point("exchange", 4), 0.125))
    (row,) = rows([with_window(made, 0, 0, samples=320)])  # 3 x 1280 less 960
    assert "audit: images/s x time gives 3840 samples, but the ranks fed 2880" in row.footnotes


# ---------------------------------------------------------------- never ranked against synchronous ones


def asynchronous_contest(number: int, **steps_s: float) -> list[PointRecord]:
    """Strategies at N=2; those whose name begins with `async` are asynchronous."""
    made = [record(point("exchange", 2, number, strategy=f"fake:{name}"), time) for name, time in steps_s.items()]
    return [asynchronous(one) if ":async" in one.point.strategy else one for one in made]


def rounds_of(**steps_s: float) -> list[PointRecord]:
    return [one for number in range(3) for one in asynchronous_contest(number, **steps_s)]


def test_comparisons_are_among_equals() -> None:
    found = analyse(rounds_of(a=0.1, b=0.11, async_c=0.05, async_d=0.06)).comparisons
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
    assert analyse(records).comparisons == ()
    assert all(row.standing is None for row in rows(records))


def test_one_shared_round_is_no_standing() -> None:
    records = [*asynchronous_contest(0, a=0.1, b=0.2), *asynchronous_contest(1, a=0.1)]
    found = {row.strategy: row.standing for row in rows(records)}
    first, other = found["fake:a"], found["fake:b"]
    assert first is not None and other is not None and other.difference is not None
    assert (mean(other.difference), other.difference.low) == (close(-0.5), None)
    assert (first.verdict, other.verdict) == ("not compared", "not compared")


def test_a_cell_of_which_no_round_was_measured_says_as_much_as_its_records() -> None:
    lost = replace(failed(point("exchange", 2)), synchronous=False)
    assert rows([lost])[0].flags == ("FAILED", "ASYNC")


# Which rows are one curve, which are rivals, and what their servers used.


def curves_of(*cells: tuple[int, int], **changes: Any) -> int:
    points = [point("exchange", n, servers=servers, **changes) for n, servers in cells]
    return len(set(curve_keys(points).values()))


# ---------------------------------------------------------------- curves


def test_servers_that_grow_with_the_nodes_are_one_curve() -> None:
    assert curves_of((1, 1), (2, 1), (4, 2), (8, 4)) == 1
    assert curves_of((1, 2), (2, 2), (4, 2)) == 1
    assert curves_of((1, 0), (2, 0)) == 1


def test_several_numbers_of_servers_at_one_size_are_several_curves() -> None:
    cells = ((1, 1), (2, 1), (1, 2), (2, 2))
    keys = curve_keys([point("exchange", n, servers=servers) for n, servers in cells])
    one, two = ([key for cell, key in keys.items() if f"{count} servers" in cell] for count in (1, 2))
    assert len(set(one)) == len(set(two)) == 1 and one[0] != two[0]


def test_servers_on_nodes_of_their_own_are_another_curve() -> None:
    points = [point("exchange", 2, servers=1), point("exchange", 4, servers=2, server_hosts="dedicated")]
    assert len(set(curve_keys(points).values())) == 2


def test_rows_of_a_curve_share_its_number() -> None:
    cells = [("fake:b", 1, 1), ("fake:a", 1, 0), ("fake:b", 2, 2), ("fake:a", 2, 0)]
    records = [record(point("exchange", n, strategy=name, servers=servers), 0.1) for name, n, servers in cells]
    assert [(row.strategy, row.curve) for row in rows(records)] == [
        ("fake:a", 0), ("fake:a", 0), ("fake:b", 1), ("fake:b", 1),
    ]  # fmt: skip


def test_a_strategys_own_rank_is_found_with_other_servers() -> None:
    records = sweep(0, 0.1, {1: 0.104}, servers=1)
    records += sweep(0, 0.1, {2: 0.16}, servers=2)
    assert mean(by_size(records)[2].strategy_efficiency) == close(0.65)


def test_comm_is_that_of_the_same_servers() -> None:
    records = [*sweep(0, 0.1, {2: 0.2}, servers=1), *sweep(0, 0.1, {2: 0.15}, servers=2)]
    quick = record(point("comm", 2, servers=2), 0.01)
    records = [quick if one.point.key == quick.point.key else one for one in records]
    found = {row.servers: loss_of(row).exposed for row in rows(records)}
    # together 0.104; the slower one may take 0.05 alone, the other 0.01
    assert found == {1: close(0.05 / 0.2), 2: close(0.01 / 0.15)}


# ---------------------------------------------------------------- rivals


def test_numbers_of_servers_are_rivals() -> None:
    cells = ((1, "shared", 0.2), (2, "shared", 0.1), (2, "dedicated", 0.08))
    records = [
        record(point("exchange", 2, number, servers=servers, server_hosts=hosts), step_s)
        for number in range(3)
        for servers, hosts, step_s in cells
    ]
    found = analyse(records).comparisons
    assert {(one.best.servers, one.best.server_hosts) for one in found} == {(2, "dedicated")}
    assert {(one.other.servers, one.other.server_hosts) for one in found} == {(1, "shared"), (2, "shared")}


def test_difference_is_the_advantage_from_the_other_side() -> None:
    # b / a - 1 = 25 % in each round, a / b - 1 = -20 %
    times = (("a", 0.125), ("b", 0.1))
    records = [record(point("exchange", 2, n, strategy=f"fake:{name}"), t) for n in range(3) for name, t in times]
    (found,) = analyse(records).comparisons
    assert (mean(found.advantage), mean(found.difference)) == (close(0.25), close(-0.2))
    work = found.workload
    assert (found.placement, work.batch_rule, work.batch_size, found.synchronous) == ("pack", "weak", 32, True)


# ---------------------------------------------------------------- the servers' use


def with_servers(number: int, *cpu_percent: float | None) -> PointRecord:
    at = point("exchange", 2, number, servers=2)
    return served(record(at, 0.1), *cpu_percent, hosts=("node1", "node2"))


def test_servers_have_a_place_and_a_use() -> None:
    (row,) = rows([with_servers(0, 30.0, 50.0), with_servers(1, 40.0, 60.0)])
    assert [(one.name, one.host, one.cpu_percent) for one in row.server_use] == [
        ("server-0", "node1", 35.0), ("server-1", "node2", 55.0),
    ]  # fmt: skip
    assert (row.servers, row.server_cpu_percent) == (2, 45.0)  # the scheduler is no server


def test_servers_whose_use_is_not_known() -> None:
    (row,) = rows([with_servers(0, None, None)])
    assert [one.cpu_percent for one in row.server_use] == [None, None]
    assert row.server_cpu_percent is None
    assert rows([record(point("exchange"), 0.1)])[0].server_use == ()


def test_servers_of_failed_rounds_do_not_count() -> None:
    lost = replace(failed(point("exchange", 2, 1, servers=2)), helpers=with_servers(1, 5.0, 5.0).helpers)
    (row,) = rows([with_servers(0, 30.0, 50.0), lost])
    assert row.server_cpu_percent == 40.0


# ---------------------------------------------------------------- nodes


def test_factors_across_nodes_are_over_the_rounds_that_have_both() -> None:
    """N=2 on one node at 0.8 and 0.9, N=4 on two at 0.6 and, in a round that lacks N=2, at 0.1."""
    records = []
    for number, inside, across in ((0, 0.8, 0.6), (1, 0.9, None), (2, None, 0.1), (3, 0.8, 0.6)):
        records.append(record(point("solo", 1, number), 0.1))
        for size, value in ((2, inside), (4, across)):
            if value is not None:
                hosts = ("node1",) if size == 2 else ("node1", "node2")
                records.append(record(point("exchange", size, number), 0.1 / value, hosts=hosts))
    row = by_size(records)[4]
    assert (row.intra_node, row.inter_node) == (close(0.8), close(0.75))


def test_without_a_shared_round_there_are_no_factors() -> None:
    records = [
        record(point("solo", 1, 0), 0.1),
        record(point("solo", 1, 1), 0.1),
        record(point("exchange", 2, 0), 0.1),
        record(point("exchange", 4, 1), 0.1, hosts=("node1", "node2")),
    ]
    assert by_size(records)[4].intra_node is None
