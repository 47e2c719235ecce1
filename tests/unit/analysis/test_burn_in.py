"""Cells over the time of a run, by values computed by hand."""

from __future__ import annotations

import random
from math import log
from statistics import quantiles
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.table.burn_in import MANY_ROUNDS, drift, over_time, percentile, summarized
from scaling.records.burn_in import LinkErrors, bin_of, counts
from scaling.records.run import PointRecord
from scaling.records.telemetry import CpuTime, Sample, Telemetry, Traffic
from tests.support.scripted_records import (
    UNIX_S,
    asynchronous,
    failed,
    mean,
    point,
    record,
    with_window,
)


def stepped(made: PointRecord, *step_s: float) -> PointRecord:
    """The record whose ranks timed each step of their windows: the first ones as given."""
    for rank in made.ranks:
        for window in rank.windows:
            usual_s = window.seconds / window.steps
            times = (*step_s, *[usual_s] * (window.steps - len(step_s)))
            made = with_window(made, rank.rank, window.index, step_s=times)
    return made


# ---------------------------------------------------------------- steps


def of_emulated_device() -> PointRecord:
    return record(point(device="emulated", profile="p100", dilate=4.0), 0.4)


@pytest.mark.parametrize(
    ("made", "times_s", "of_windows", "rate"),
    [
        # a step of a synchronous exchange takes as long as on its slowest rank
        (stepped(record(point(world_size=2), 0.1, 0.2)), {0.2: 30}, False, 2 * 32 / 0.2),
        (stepped(asynchronous(record(point(world_size=2), 0.1, 0.2))), {0.1: 30, 0.2: 30}, False, 480),
        # the rate of ranks that ran alone is of one device
        (stepped(record(point("each", 2), 0.1, 0.2)), {0.1: 30, 0.2: 30}, False, 32 / (0.4 / 3)),
        (record(point(), 0.1), {0.1: 3}, True, 320),
        # times of the emulated cluster
        (of_emulated_device(), {0.1: 3}, True, 320),
    ],
)
def test_the_steps_of_a_point(made: PointRecord, times_s: dict[float, int], of_windows: bool, rate: float) -> None:
    found = summarized(made, 0.0, 1.0)
    near = dict.fromkeys(times_s, 0)
    for place, count in found.times:
        near[min(near, key=lambda second: abs(bin_of(second) - place))] += count
    assert near == times_s and found.of_windows is of_windows
    assert found.worst_s == pytest.approx(max(times_s))
    assert found.samples / found.seconds == pytest.approx(rate)


def test_a_summary_names_the_longest_step_and_its_place() -> None:
    made = stepped(record(point(world_size=2, number=7), 0.1, hosts=("node1", "node2")))
    stalled = with_window(made, 1, 2, step_s=(*[0.1] * 9, 5.0))
    found = summarized(stalled, 100.0, 110.0)
    assert (found.worst_s, found.worst_rank, found.worst_host, found.worst_round) == (5.0, 1, "node2", 7)
    assert sum(number for _, number in found.times) == 30
    assert found.samples / found.seconds == pytest.approx(2 * 32 / 0.1)
    assert (found.begin_s, found.end_s, found.measured, found.of_windows) == (100.0, 110.0, 1, False)


def test_a_failed_point_has_a_cause_and_no_times() -> None:
    found = summarized(failed(point(), "hang", "no event"), 0.0, 1.0)
    assert (found.failures, found.measured, found.times, found.samples) == ({"hang": 1}, 0, (), 0)


# ---------------------------------------------------------------- throttling, link errors


LIMITED = Sample(unix_s=UNIX_S, throttle=("sw power cap",))
QUOTA = CpuTime(steps=1, wall_s=1.0, kernel_s=0.0, minor_faults=0, major_faults=0, periods=50, throttled_periods=5)
CARD = Traffic(name="mlx5_0/1", received_bytes=1, sent_bytes=1, errors={"symbol_error": 3})


@pytest.mark.parametrize(
    ("telemetry", "readings", "reasons"),
    [
        # the power limit is no throttling
        (
            Telemetry(samples=(LIMITED, replace(LIMITED, throttle=("sw power cap", "hw thermal")))),
            (2, 1),
            ("hw thermal",),
        ),
        # periods of a CPU quota count without GPUs
        (Telemetry(cpu=QUOTA), (50, 5), ("CPU quota",)),
    ],
)
def test_throttled_readings(telemetry: Telemetry, readings: tuple[int, int], reasons: tuple[str, ...]) -> None:
    made = record(point(), 0.1)
    found = summarized(replace(made, ranks=(replace(made.ranks[0], telemetry=telemetry),)), 0.0, 1.0)
    assert (found.readings, found.throttled) == readings and found.reasons == reasons


def test_errors_of_cards_are_named_by_host_and_counter() -> None:
    made = record(point(world_size=2), 0.1, hosts=("node1", "node2"))
    ranks = (made.ranks[0], replace(made.ranks[1], telemetry=Telemetry(traffic=(CARD,))))
    found = summarized(replace(made, ranks=ranks), 0.0, 1.0)
    assert found.link_errors == (LinkErrors(host="node2", card="mlx5_0/1", counter="symbol_error", count=3),)


# ---------------------------------------------------------------- percentiles


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_percentiles_of_bins_are_within_one_percent(share: float) -> None:
    draw = random.Random(1)
    times = [0.1 * draw.lognormvariate(0, 0.2) for _ in range(20_000)]
    exact = quantiles(times, n=1000, method="inclusive")[round(1000 * share) - 1]
    assert percentile(counts((bin_of(one), 1) for one in times), share) == pytest.approx(exact, rel=0.01)


# ---------------------------------------------------------------- drift


def noisy(slope: float, *, seed: int, count: int = 150, noise: float = 0.01) -> list[tuple[float, float]]:
    draw = random.Random(seed)
    return [(float(at), slope * at + draw.gauss(0, noise)) for at in range(count)]


def test_the_interval_of_no_drift_contains_zero_in_95_of_100_runs() -> None:
    found = [drift(noisy(0.0, seed=seed)) for seed in range(200)]
    assert 180 <= sum(one is not None and one.holds_zero for one in found) <= 199


@pytest.mark.parametrize("points", [[], [(0.0, 1.0)] * 4, [(3.0, 1.0)] * 9])
def test_too_few_points_have_no_drift(points: list[tuple[float, float]]) -> None:
    assert drift(points) is None


# ---------------------------------------------------------------- cells


def run(rounds: int, slower: float = 0.0, **changes: Any) -> list[PointRecord]:
    """Rounds of a minute each; the exchange becomes slower by `slower` of its step in all."""
    made = []
    for number in range(rounds):
        at_s = UNIX_S + 60.0 * number
        step_s = 0.11 * (1 + slower * number / rounds)
        made += [
            replace(record(point("each", 2, number), 0.1), started_unix_s=at_s),
            replace(record(point("exchange", 2, number), step_s), started_unix_s=at_s, **changes),
            replace(record(point("comm", 2, number), 0.01), started_unix_s=at_s),
        ]
    return made


def test_exchanges_and_plain_loops_of_many_rounds_are_shown_over_time() -> None:
    assert over_time(run(MANY_ROUNDS - 1)) == ()
    exchange, alone = over_time(run(MANY_ROUNDS))
    assert (exchange.kind, exchange.world_size, alone.kind, alone.alone) == ("exchange", 2, "each", True)
    assert exchange.whole.rounds == len(exchange.stretches) == MANY_ROUNDS
    assert len(exchange.outline) == 8, "30 rounds, four a stretch"
    assert exchange.whole.samples_per_s == pytest.approx(2 * 32 / 0.11)
    assert exchange.whole.p99_s is not None and exchange.whole.p99_s <= (exchange.whole.worst_s or 0)
    assert not exchange.drifts and mean(exchange.drift) == pytest.approx(0, abs=1e-9)


def test_a_run_that_becomes_slower_drifts() -> None:
    exchange, alone = over_time(run(60, slower=0.06))
    assert exchange.drifts and not alone.drifts
    assert mean(exchange.drift) == pytest.approx(-log(1.06), rel=0.05)
    assert mean(exchange.drift_per_hour) == pytest.approx(-log(1.06), rel=0.05)


def test_a_control_run_is_shown_if_it_failed() -> None:
    records = [*run(MANY_ROUNDS), failed(point("together", 2), "hang", "no event")]
    assert [one.kind for one in over_time(records)] == ["exchange", "each", "together"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": 0.0}, {"samples": 0}, {"times": ((0, 0),)}, {"times": ()}, {"worst_s": 0.0}, {"measured": 0},
        {"times": ((-4000, 1), (4000, 2**53))}, {"cell": "of no record"}, {"first_round": 2**31}, {"end_s": 0.0},
    ],
)  # fmt: skip
def test_a_summary_that_somebody_has_written_breaks_nothing(wrong: dict[str, Any]) -> None:
    records = run(6)
    told = [summarized(one, 60.0 * one.point.round, 60.0 * (one.point.round + 1)) for one in records]
    found = over_time(records, [replace(one, **wrong) for one in told])
    assert all(one.whole.failures == 0 for one in found)
