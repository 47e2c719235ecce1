"""Known answers: step times are chosen by hand, every expected number is computed in a comment."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log, sqrt
from statistics import fmean

import pytest
from msgspec.structs import replace

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.analyse import baselines, comparisons, rows
from scaling.records.run import PointRecord
from tests.support.points import changed
from tests.support.scripted_records import (
    STRONG,
    by_size,
    close,
    failed,
    half,
    loss_of,
    mean,
    point,
    record,
    sweep,
)

# ---------------------------------------------------------------- rates, speedup, efficiency, interval


def weak_rounds() -> Iterator[PointRecord]:
    """Solo 0.1 s; N=2 at efficiencies 0.80, 0.82, 0.84; N=4 at 0.625; N=1 at 0.1/0.104."""
    for number, two in enumerate((0.80, 0.82, 0.84)):
        yield from sweep(number, 0.1, {1: 0.104, 2: 0.1 / two, 4: 0.16})


def test_images_per_s_is_the_longest_ranks() -> None:
    # 2 ranks x 32 images / 0.125 s of the slower rank
    (row,) = rows([record(point("exchange", 2), 0.1, 0.125)])
    assert mean(row.samples_per_s) == close(512.0)


def test_efficiency_speedup_and_their_intervals_under_the_weak_rule() -> None:
    table = by_size(weak_rounds())
    # N=4: 4 x 0.1 / 0.16 = 2.5 times, 62.5 %, the same in all rounds; but of the six cells of the layout (solo,
    # three exchanges, two together) N=2 alone varies: ln of its step times is d = -ln(0.80, 0.82, 0.84) less their
    # mean, of which 5/6 stay when the means of rounds (d/6) are taken off: a sum of squares of 5/6 sum(d^2) over
    # df = 5 x 2. A contrast of two cells has twice that; N=4's own of 0 is three fifths of its variance.
    logs = [log(two) for two in (0.80, 0.82, 0.84)]
    squares = sum((one - fmean(logs)) ** 2 for one in logs) * 5 / 6
    # t(0.975, 10) = 2.2281389
    width = 2.2281389 * sqrt(2 * squares / 10 * 0.4 / 3)
    assert table[4].efficiency == Estimate(
        mean=close(0.625), low=close(0.625 * exp(-width)), high=close(0.625 * exp(width)), n=3, df=10
    )
    assert mean(table[4].speedup) == close(2.5)
    assert mean(table[4].samples_per_s) == close(4 * 32 / 0.16)
    # N=2: the geometric mean over rounds
    assert mean(table[2].efficiency) == close(exp(fmean(logs)))
    assert half(table[2].speedup) == pytest.approx(2 * half(table[2].efficiency), abs=1e-12)
    # N=1: what the strategy costs alone
    assert mean(table[1].efficiency) == close(0.1 / 0.104)
    assert [row.rounds for row in table.values()] == [3, 3, 3]


def test_efficiency_is_formed_inside_a_round() -> None:
    """The machine drifts by 20 % over the rounds, the ratio does not."""
    records = [one for n, solo in enumerate((0.10, 0.11, 0.12)) for one in sweep(n, solo, {2: solo / 0.8})]
    assert half(by_size(records)[2].efficiency) == pytest.approx(0.0, abs=1e-12)
    assert half(by_size(records)[2].samples_per_s) > 10


def test_one_round_has_no_interval() -> None:
    row = by_size(sweep(0, 0.1, {2: 0.125}))[2]
    assert row.efficiency == Estimate(mean=close(0.8), low=None, high=None, n=1)


def test_second_baseline_is_the_strategys_own_rank() -> None:
    table = by_size(weak_rounds())
    # N=4 against N=1 of the same strategy: 0.104 / 0.16
    assert mean(table[4].strategy_efficiency) == close(0.65)
    assert mean(table[1].strategy_efficiency) == close(1.0)


def test_strong_rule() -> None:
    """Global batch 64. t(1) = 0.2 s at 64; N=2 takes 0.125 s at 32 each, alone 0.11 s at 32.

    ideal 0.1: efficiency 0.1/0.125 = 0.8, speedup 0.2/0.125 = 1.6; small batch (0.11-0.1)/0.125 = 0.08;
    together 0.112, 0.114: contention (0.113-0.11)/0.125 = 0.024, straggling 0.001/0.125 = 0.008;
    exposed (0.125-0.114)/0.125 = 0.088 (comm 0.05 allows it); the sum is 0.2, nothing is unexplained.
    """
    records = [
        record(point("solo", batch_size=64, **STRONG), 0.2),
        record(point("solo", batch_size=32, **STRONG), 0.11),
        record(point("exchange", 1, batch_size=64, **STRONG), 0.25),
        record(point("exchange", 2, batch_size=32, **STRONG), 0.125),
        record(point("together", 2, batch_size=32, **STRONG), 0.112, 0.114),
        record(point("comm", 2, batch_size=32, **STRONG), 0.05),
    ]
    row = by_size(records)[2]
    assert (row.workload.batch_rule, row.workload.batch_size, row.global_batch_size) == ("strong", 32, 64)
    assert mean(row.efficiency) == close(0.8)
    assert mean(row.speedup) == close(1.6)
    # against its own rank: 0.25 / (2 x 0.125)
    assert mean(row.strategy_efficiency) == close(1.0)
    loss = loss_of(row)
    assert loss.small_batch == close(0.08)
    assert loss.contention == close(0.024)
    assert loss.straggling == close(0.008)
    assert loss.exposed == close(0.088)
    assert loss.unexplained == close(0.0)


def test_strong_rule_without_the_small_solo() -> None:
    records = [
        record(point("solo", batch_size=64, **STRONG), 0.2),
        record(point("exchange", 2, batch_size=32, **STRONG), 0.125),
        record(point("together", 2, batch_size=32, **STRONG), 0.112, 0.114),
        record(point("comm", 2, batch_size=32, **STRONG), 0.05),
    ]
    row = by_size(records)[2]
    assert loss_of(row).small_batch is None and loss_of(row).contention is None
    # 0.2 less straggling 0.008 and exposed 0.088
    assert loss_of(row).unexplained == close(0.104)
    assert any("no solo control" in note for note in row.footnotes)


# ---------------------------------------------------------------- baselines and what is missing


def test_no_baseline_means_no_efficiency() -> None:
    (row,) = rows([record(point("exchange", 2), 0.125)])
    assert (row.efficiency, row.speedup, row.breakdown) == (None, None, None)
    assert mean(row.samples_per_s) == close(512.0)
    assert row.footnotes == ("no efficiency: the baseline fake:plain at batch 32 was not measured",)


def test_a_baseline_that_failed_in_one_round() -> None:
    records = [*sweep(0, 0.1, {2: 0.125}), *sweep(1, 0.1, {2: 0.2})]
    records = [failed(one.point) if one.point.key == point("solo", number=1).key else one for one in records]
    row = by_size(records)[2]
    assert row.efficiency == Estimate(mean=close(0.8), low=None, high=None, n=1)
    assert row.samples_per_s is not None and row.samples_per_s.n == 2
    note = "no efficiency in 1 of 2 rounds: the baseline fake:plain at batch 32 failed: oom"
    assert note in row.footnotes


def test_a_failed_baseline_of_one_round_counts_one_round() -> None:
    """Its records are those of two points, alone and seat by seat."""
    (found,) = baselines([failed(point("solo")), failed(point("each", 2)), record(point("exchange", 2), 0.125)])
    assert len(found.footnotes) == 2
    assert not any("rounds" in note for note in found.footnotes)


def test_a_baseline_at_another_batch_does_not_count() -> None:
    records = [record(point("solo", batch_size=64), 0.1), record(point("exchange", 2), 0.125)]
    assert by_size(records)[2].efficiency is None


def test_controls_of_another_precision_do_not_count() -> None:
    records = [record(point("solo", precision="bf16"), 0.1), record(point("exchange", 2), 0.125)]
    assert by_size(records)[2].efficiency is None


def test_baselines_list_the_plain_loops() -> None:
    records = [record(point("solo", number=n), 0.1) for n in range(3)]
    (found,) = baselines([*records, failed(point("solo", batch_size=64))])[:1]
    batch_size = found.workload.batch_size
    assert (found.strategy, batch_size, mean(found.samples_per_s)) == (
        "fake:plain",
        32,
        close(320.0),
    )
    lost = baselines([*records, failed(point("solo", batch_size=64))])[1]
    assert lost.samples_per_s is None
    assert lost.footnotes == ("failed: oom: out of memory (rank 1 on node1; log: logs/a.log)",)


def test_a_strategy_from_outside_uses_the_only_plain_loop() -> None:
    records = [
        record(point("solo", strategy="torch:plain"), 0.1),
        record(point("exchange", 2, strategy="my.module:ring"), 0.125),
    ]
    assert mean(by_size(records)[2].efficiency) == close(0.8)


def test_another_frameworks_plain_loop_is_no_baseline() -> None:
    """Of a round that was broken off, or goes on."""
    made = [
        record(point("solo", strategy="torch:plain"), 0.1),
        record(point("exchange", 2, strategy="mxnet:dist_sync"), 0.05),
    ]
    (row,) = rows(made)
    assert row.efficiency is None
    assert "no efficiency: the baseline mxnet:plain at batch 32 was not measured" in row.footnotes


def test_the_last_record_of_a_key_counts() -> None:
    again = record(point("exchange", 2), 0.125)
    records = [record(point("solo"), 0.1), failed(point("exchange", 2)), again]
    assert mean(by_size(records)[2].efficiency) == close(0.8)
    assert by_size(records)[2].rounds_tried == 1
    (row,) = rows([again, failed(point("exchange", 2))])
    assert row.failed is not None


# ---------------------------------------------------------------- nodes, training, order


def test_intra_and_inter_node() -> None:
    """Two ranks a node: N=2 on one node at 0.8, N=4 on two at 0.6, so crossing nodes leaves 0.75."""
    records = [
        record(point("solo"), 0.1),
        record(point("exchange", 1), 0.1),
        record(point("exchange", 2), 0.125),
        record(point("exchange", 4), 0.1 / 0.6, hosts=("node1", "node2")),
    ]
    table = by_size(records)
    assert [table[n].nodes for n in (1, 2, 4)] == [1, 1, 2]
    assert table[4].intra_node == close(0.8)
    assert table[4].inter_node == close(0.75)
    assert (table[1].intra_node, table[2].intra_node, table[2].inter_node) == (None, None, None)


def test_one_node_has_no_factors() -> None:
    assert all(row.intra_node is None and row.nodes == 1 for row in rows(sweep(0, 0.1, {1: 0.1, 2: 0.125})))


def test_training_loss_spans_warm_up_and_windows() -> None:
    made = record(point("exchange", 1), 0.1)  # windows: 2.0, 1.5, 1.0
    first = replace(made.ranks[0].windows[0], measured=False, loss=2.4)
    blind = replace(first, loss=None)
    warm = replace(made, ranks=(replace(made.ranks[0], warmup=(blind, first)),))
    (row,) = rows([made, replace(warm, point=point("exchange", 1, 1))])
    assert row.first_loss == close((2.0 + 2.4) / 2)
    assert row.last_loss == close(1.0)
    assert rows([failed(point("exchange", 1))])[0].first_loss is None


def test_rows_are_sorted() -> None:
    points = [
        point("exchange", n, strategy=strategy, interconnect=network)
        for n in (4, 1)
        for strategy in ("fake:b", "fake:a")
        for network in ("ib0", "eth0")
    ]
    found = [
        (row.interconnect, row.strategy, row.world_size) for row in rows([record(one, 0.1) for one in points])
    ]
    assert found == sorted(found) and len(found) == 8


# ---------------------------------------------------------------- comparisons


def contest(*rounds_of_steps: tuple[float, ...], n: int = 2) -> list[PointRecord]:
    return [
        record(point("exchange", n, number, strategy=f"fake:{name}"), step_s)
        for number, steps in enumerate(rounds_of_steps)
        for name, step_s in zip("abc", steps, strict=False)
    ]


def test_the_best_is_faster() -> None:
    # b against a, per round: 0.11/0.10, 0.132/0.12, 0.11/0.10, always 10 %
    (found,) = comparisons(contest((0.11, 0.10), (0.132, 0.12), (0.11, 0.10)))
    assert (found.best.strategy, found.other.strategy) == ("fake:b", "fake:a")
    assert mean(found.advantage) == close(0.1)
    assert half(found.advantage) == pytest.approx(0.0, abs=1e-9)
    assert found.distinguishable


def test_noise_is_not_distinguishable() -> None:
    # b against a: +10 %, -10 %, +4 %; the mean of 1.3 % is far inside the interval
    (found,) = comparisons(contest((0.11, 0.10), (0.09, 0.10), (0.104, 0.10)))
    assert found.best.strategy == "fake:b"
    assert not found.distinguishable


def test_one_shared_round_has_a_difference_and_tells_nothing() -> None:
    (found,) = comparisons(contest((0.11, 0.10), (0.11,)))
    assert (mean(found.advantage), mean(found.difference)) == (close(0.1), close(0.1 / 0.11 - 1))
    assert found.difference is not None and found.difference.half_width is None and not found.distinguishable


def test_each_world_size_and_each_loser_has_its_comparison() -> None:
    records = [*contest((0.11, 0.10, 0.12), (0.11, 0.10, 0.12)), *contest((0.10, 0.2), (0.10, 0.2), n=4)]
    found = [(one.world_size, one.best.strategy, one.other.strategy) for one in comparisons(records)]
    assert found == [(2, "fake:b", "fake:a"), (2, "fake:b", "fake:c"), (4, "fake:a", "fake:b")]


def test_networks_and_options_are_compared_but_not_models() -> None:
    p = point("exchange", 2)
    records = [
        record(p, 0.1),
        record(replace(p, interconnect="ib0"), 0.09),
        record(replace(p, options={"bucket_cap_mb": "10"}), 0.11),
        record(changed(p, model="resnet50"), 0.05),
    ]
    assert {(one.best.interconnect, tuple(one.other.options)) for one in comparisons(records)} == {
        ("ib0", ()),
        ("ib0", ("bucket_cap_mb",)),
    }
