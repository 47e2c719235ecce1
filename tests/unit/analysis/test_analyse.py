"""Rates, efficiency, baselines, comparisons and joined runs, by known answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.measured import step_time
from scaling.analysis.measured.controls import Controls
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import analyse
from scaling.analysis.table.analyse import join, joinable, rows
from scaling.analysis.table.cell_rows import Analyser
from scaling.analysis.table.comparisons import comparable, curve_keys
from scaling.records.events import Failed
from scaling.records.host import Gpu
from scaling.records.point import Hardware, Kind, Workload
from scaling.records.run import Header, PointRecord
from tests.support.inline import Launch
from tests.support.planted import Plan, run
from tests.support.points import changed
from tests.support.scripted_records import (
    STRONG,
    by_size,
    close,
    failed,
    half,
    header,
    host,
    loss_of,
    mean,
    point,
    record,
    sweep,
)

# Known answers: step times are chosen by hand, every expected number is computed in a comment.

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
    # N=4: 4 x 0.1 / 0.16 = 2.5 times, 62.5 %, the same in all rounds
    logs = [log(two) for two in (0.80, 0.82, 0.84)]
    assert table[4].efficiency == Estimate(mean=close(0.625), low=close(0.625), high=close(0.625), n=3, df=2)
    assert mean(table[4].speedup) == close(2.5)
    assert mean(table[4].samples_per_s) == close(4 * 32 / 0.16)
    # N=2: the geometric mean over rounds
    assert mean(table[2].efficiency) == close(exp(fmean(logs)))
    # t(0.975, 2) = 4.3026527
    width = 4.3026527 * sqrt(variance(logs) / 3)
    assert half(table[2].efficiency) == close(exp(fmean(logs)) * (exp(width) - exp(-width)) / 2)
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
    (found,) = analyse.analyse(
        [failed(point("solo")), failed(point("each", 2)), record(point("exchange", 2), 0.125)]
    ).baselines
    assert len(found.footnotes) == 2
    assert not any("rounds" in note for note in found.footnotes)


def test_baselines_list_the_plain_loops() -> None:
    records = [record(point("solo", number=n), 0.1) for n in range(3)]
    (found,) = analyse.analyse([*records, failed(point("solo", batch_size=64))]).baselines[:1]
    batch_size = found.workload.batch_size
    assert (found.strategy, batch_size, mean(found.samples_per_s)) == ("fake:plain", 32, close(320.0))
    lost = analyse.analyse([*records, failed(point("solo", batch_size=64))]).baselines[1]
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
        one
        for number in range(2)
        for one in (
            record(point("solo", 1, number), 0.1),
            record(point("exchange", 1, number), 0.1),
            record(point("exchange", 2, number), 0.125),
            record(point("exchange", 4, number), 0.1 / 0.6, hosts=("node1", "node2")),
        )
    ]
    assert by_size(records[:4])[4].intra_node is None  # one shared round shows no factor
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
    (found,) = analyse.analyse(contest((0.11, 0.10), (0.132, 0.12), (0.11, 0.10))).comparisons
    assert (found.best.strategy, found.other.strategy) == ("fake:b", "fake:a")
    assert mean(found.advantage) == close(0.1)
    assert half(found.advantage) == pytest.approx(0.0, abs=1e-9)
    assert found.distinguishable


def test_noise_is_not_distinguishable() -> None:
    # b against a: +10 %, -10 %, +4 %; the mean of 1.3 % is far inside the interval
    (found,) = analyse.analyse(contest((0.11, 0.10), (0.09, 0.10), (0.104, 0.10))).comparisons
    assert found.best.strategy == "fake:b"
    assert not found.distinguishable


def test_one_shared_round_has_a_difference_and_tells_nothing() -> None:
    (found,) = analyse.analyse(contest((0.11, 0.10), (0.11,))).comparisons
    assert (mean(found.advantage), mean(found.difference)) == (close(0.1), close(0.1 / 0.11 - 1))
    assert found.difference is not None and found.difference.half_width is None and not found.distinguishable


def test_each_world_size_and_each_loser_has_its_comparison() -> None:
    records = [*contest((0.11, 0.10, 0.12), (0.11, 0.10, 0.12)), *contest((0.10, 0.2), (0.10, 0.2), n=4)]
    found = [
        (one.world_size, one.best.strategy, one.other.strategy) for one in analyse.analyse(records).comparisons
    ]
    assert found == [(2, "fake:b", "fake:a"), (2, "fake:b", "fake:c"), (4, "fake:a", "fake:b")]


def test_networks_and_options_are_compared_but_not_models() -> None:
    p = point("exchange", 2)
    records = [
        record(p, 0.1),
        record(replace(p, interconnect="ib0"), 0.09),
        record(replace(p, options={"bucket_cap_mb": "10"}), 0.11),
        record(changed(p, model="resnet50"), 0.05),
    ]
    assert {(one.best.interconnect, tuple(one.other.options)) for one in analyse.analyse(records).comparisons} == {
        ("ib0", ()),
        ("ib0", ("bucket_cap_mb",)),
    }


# What makes two rates comparable: each field of the work and of the hardware, and nothing that was forgotten.

OTHER: dict[str, Any] = {
    "model": "resnet50", "data": "synthetic", "batch_rule": "strong", "batch_size": 48, "precision": "bf16",
    "memory_format": "channels_last", "compile": True, "unit": "tokens", "node_devices": 2,
    "image_size": 256, "sequence_length": 64, "optimizer": "adam", "pass_": "forward",
    "feed": "native", "feed_workers": 2, "drop_caches": True,
    "script": "train.py", "samples_per_step": 8, "in_place": True,
    "device": "cuda", "profile": "p100", "shrink": 2.0, "dilate": 3.0, "cores": 8,
}  # fmt: skip


def test_every_field_has_another_value_here() -> None:
    assert set(OTHER) == {*Workload.__struct_fields__, *Hardware.__struct_fields__}


@pytest.mark.parametrize("field", OTHER)
def test_another_value_is_another_baseline(field: str) -> None:
    exchange = point("exchange", 2)
    other = changed(exchange, **{field: OTHER[field]})
    controls = Controls([record(point("solo"), 0.1)])
    assert controls.alone(exchange, exchange.reference.batch_size) is not None
    assert controls.alone(other, other.reference.batch_size) is None


@pytest.mark.parametrize("field", OTHER)
def test_another_value_is_not_compared_and_is_another_curve_and_cell(field: str) -> None:
    exchange = point("exchange", 2)
    other = changed(exchange, **{field: OTHER[field]})
    assert comparable(other) != comparable(exchange)
    assert hash(other.workload) != hash(exchange.workload) or hash(other.hardware) != hash(exchange.hardware)
    assert len(set(curve_keys([exchange, other]).values())) == 2
    assert other.key != exchange.key


# Several runs in one table.


def test_like_runs_are_joinable() -> None:
    assert joinable([header(), header(created_unix_s=1.0, seed=2, git="other")]) == ()


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (header([host("node2")]), "hosts differ: node1 | node2"),
        (header(version="0.2.0"), "versions of scaling differ: 0.1.0 | 0.2.0"),
        (header(code="beef"), "revisions of its code differ: c0de | beef"),
        (header(mpi="MPICH 4"), "MPI libraries differ: Open MPI 5.0.11 | MPICH 4"),
        (header([host(cpu_model="Other CPU")]), "devices differ: cpu, Test CPU 2.0 GHz | cpu, Other CPU"),
        (header([host(versions={"torch": "2.12.0"})]), "versions of torch differ: 2.13.0 | 2.12.0"),
        (header([host(variables={"NCCL_ALGO": "Ring"})]), "values of NCCL_ALGO differ: none | Ring"),
        (
            header([host(variables={"NCCL_ALGO": "Ring"}), host(variables={})]),
            "values of NCCL_ALGO differ: none | Ring | unset",
        ),
        (header([host(python="3.12.1")]), "versions of Python differ: 3.11.7 | 3.12.1"),
    ],
)
def test_unlike_runs_say_what_differs(other: Header, reason: str) -> None:
    assert joinable([header([host(variables={})]), other]) == (reason,)


def test_variables_are_compared_where_all_runs_recorded_them() -> None:
    known = header([host(variables={"NCCL_ALGO": "Ring"})])
    assert joinable([header(), known]) == joinable([known, known]) == ()


def test_gpus_are_told_apart_by_name() -> None:
    def gpu(name: str) -> Header:
        made = Gpu(index=0, name=name, uuid="u", memory_bytes=1, power_limit_w=1.0, max_sm_clock_mhz=1.0)
        return header([host(gpus=(made,))], device="cuda")

    assert joinable([gpu("H100"), gpu("H200")]) == ("devices differ: cuda, H100 | cuda, H200",)


def test_joined_runs_keep_their_rounds_apart() -> None:
    """Run 1: 0.8. Run 2, on a machine twice as slow: 0.5. Each against its own baseline, then pooled."""
    joined = join([sweep(0, 0.1, {2: 0.125}), sweep(0, 0.2, {2: 0.4})])
    row = by_size(joined)[2]
    assert row.rounds == 2
    assert mean(row.efficiency) == close(sqrt(0.8 * 0.5))


def test_strategies_of_different_runs_are_not_compared() -> None:
    a = [record(point("exchange", 2, n, strategy="fake:a"), 0.1) for n in range(3)]
    b = [record(point("exchange", 2, n, strategy="fake:b"), 0.2) for n in range(3)]
    (found,) = analyse.analyse(join([a, b])).comparisons
    assert found.advantage is None


# An exchange that computes less than the plain loop, whatever samples it says that it has trained on.

PLAN = Plan(size=2, rounds=3, wire_s=0.02)


def exchanging(part: float, *, updates_all: bool = True) -> list[PointRecord]:
    return [
        replace(_running(one, part), updates_all=updates_all) if one.point.kind == "exchange" else one
        for one in run(PLAN)
    ]


def _running(made: PointRecord, part: float) -> PointRecord:
    ranks = []
    for rank in made.ranks:
        cpu = rank.telemetry.cpu
        assert cpu is not None
        threads = tuple(replace(one, run_s=one.run_s * part) for one in cpu.threads)
        ranks.append(replace(rank, telemetry=replace(rank.telemetry, cpu=replace(cpu, threads=threads))))
    return replace(made, ranks=tuple(ranks))


@pytest.mark.parametrize(("part", "is_less"), [(1.0, False), (0.9, False), (0.55, True)])
def test_less_cpu_time_than_the_plain_loop_is_an_audit(part: float, is_less: bool) -> None:
    row = by_size(exchanging(part))[2]
    assert ("AUDIT" in row.flags) is is_less
    assert (row.efficiency is None) is is_less
    said = "audit: the CPU time of a step is at most 5"
    assert any(note.startswith(said) for note in row.footnotes) is is_less


def test_ranks_that_update_a_part_of_the_parameters_may_compute_less() -> None:
    assert "AUDIT" not in by_size(exchanging(0.55, updates_all=False))[2].flags


def test_a_running_sweep_says_it_whatever_comes_first() -> None:
    """The control that tells it may end after the exchange was compared."""
    made = exchanging(0.55)
    for order in (made, made[::-1]):
        analyser = Analyser()
        for one in order:
            analyser.add(one)
            analyser.rows()
        assert analyser.rows() == rows(order)


@pytest.mark.parametrize(("step_s", "is_less"), [(0.09, False), (0.06, True)])
def test_elsewhere_the_time_of_a_step_tells_it(step_s: float, is_less: bool) -> None:
    made: Iterable[PointRecord] = (
        replace(record(point(kind, size, number, device="cuda"), seconds), updates_all=True)
        for number in range(2)
        for kind, size, seconds in (("solo", 1, 0.1), ("exchange", 2, step_s))
    )
    assert ("AUDIT" in by_size(made)[2].flags) is is_less


# What control runs say about the rows that rest on them.


def test_ranks_that_are_slow_in_turns_straggle(tmp_path: Path) -> None:
    """Seconds of two windows: rank 0 has 1 and 3, rank 1 has 3 and 1. No rank is slow on the whole (4 s
    each), but in lock-step each window would last 3 s."""
    (together,) = Launch(2).sweep(tmp_path, rounds=1).of("together", size=2)
    seconds = ((1.0, 3.0), (3.0, 1.0))
    ranks = []
    for rank, (first, second) in zip(together.ranks, seconds, strict=True):
        edges = (0.0, first, first + second)
        windows = [
            replace(window, steps=2, start_s=start, end_s=end)
            for window, start, end in zip(rank.windows[:2], edges, edges[1:], strict=False)
        ]
        ranks.append(replace(rank, windows=tuple(windows)))
    time = step_time.lock_step(replace(together, ranks=tuple(ranks)))
    assert time is not None
    assert (time.mean_s, time.step_s) == (1.0, 1.5)


def test_one_disturbed_window_without_the_exchange_does_not_count() -> None:
    made = record(point("exchange", 2), 0.16)
    ranks = [
        replace(rank, unsynced=tuple(replace(rank.windows[0], steps=2, start_s=0.0, end_s=end) for end in ends_s))
        for rank, ends_s in zip(made.ranks, ((0.20, 0.21), (0.21, 0.90)), strict=True)
    ]
    assert step_time.unsynced_s(replace(made, ranks=tuple(ranks))) == close(0.105)
    assert step_time.unsynced_s(made) is None
    assert step_time.unsynced_s(replace(failed(made.point, "crash"), ranks=tuple(ranks))) is None


def without_exchange(made: PointRecord, *by_rank: tuple[float, ...]) -> PointRecord:
    """The record of a script, with steps without exchange of these seconds."""
    ranks = tuple(
        replace(rank, unsynced=(replace(rank.windows[0], steps=len(s), start_s=0.0, end_s=sum(s), step_s=s),))
        for rank, s in zip(made.ranks, by_rank, strict=True)
    )
    point = replace(made.point, workload=replace(made.point.workload, script="train.py"))
    return replace(made, ranks=ranks, point=point)


def test_a_script_whose_ranks_are_late_in_turn_straggles() -> None:
    late = without_exchange(record(point("exchange", 2), 0.16), (0.1, 0.2, 0.1, 0.2), (0.2, 0.1, 0.2, 0.1))
    found = step_time.script_unsynced(late)
    assert found is not None and (found.first_s, found.mean_s) == (close(0.15), close(0.15))
    assert found.last_s == close(0.2)


def test_a_script_that_divides_its_batch_is_split_by_its_own_steps_without_exchange() -> None:
    # One device: 0.2 s for 32 samples, so 0.1 s each for 16. Two: 0.16 s; without exchange a mean of 0.12 s, and
    # 0.13 s for the slower of each step.
    whole = record(point("solo"), 0.2)
    both = record(point("exchange", 2, batch_rule="strong", batch_size=16), 0.16)
    both = without_exchange(both, (0.11, 0.13), (0.13, 0.11))
    whole = replace(whole, point=replace(whole.point, workload=replace(whole.point.workload, script="train.py")))
    (row,) = [row for row in rows([whole, both]) if row.world_size == 2]
    assert mean(row.efficiency) == close(0.1 / 0.16) and row.breakdown is not None
    assert row.breakdown.small_batch == close(0.02 / 0.16)
    assert row.breakdown.straggling == close(0.01 / 0.16)
    assert row.breakdown.exposed == close(0.03 / 0.16)
    assert row.breakdown.contention is None and row.breakdown.unexplained == close(0.0)


def test_controls_in_doubt_are_noted_on_the_rows_that_rest_on_them(tmp_path: Path) -> None:
    found = Launch(2).sweep(tmp_path, rounds=2)
    doubtful = [
        replace(record, settled=False) if record.point.kind == "together" else record for record in found.records
    ]
    rows = {row.world_size: row for row in analyse.rows(doubtful)}
    assert any("its together control is UNSETTLED" in note for note in rows[2].footnotes)
    assert not any("control is" in note for note in rows[1].footnotes)
    assert not any("control is" in note for row in analyse.rows(found.records) for note in row.footnotes)


@pytest.mark.parametrize("kind", ["each", "together", "comm", "feed", "held"])
def test_a_control_that_failed_is_noted_with_its_cell_cause_and_log(kind: Kind) -> None:
    """Also where the row has no efficiency, and where its split does without that control."""
    why = Failed(cause="crash(SIGKILL)", message="ended by SIGKILL", rank=1, host="node2", log="logs/7.log")
    control = replace(failed(point(kind, 2), "x"), outcome=why)
    (row,) = analyse.rows([record(point("exchange", 2), 0.16), control])
    (told,) = (note for note in row.footnotes if note.startswith("its "))
    assert told.startswith(f"its {kind} control at n2: failed: crash(SIGKILL): ended by SIGKILL")
    assert told.endswith("(rank 1 on node2; log: logs/7.log)")
