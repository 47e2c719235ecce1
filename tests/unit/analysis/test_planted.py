"""Planted losses are named rightly, with the right size: seeded machines through the whole analysis.

Sizes are in percent of the exchange's step; STEP_S is 0.1 s.
"""

from __future__ import annotations

import random
from statistics import fmean

import pytest
from msgspec.structs import replace

from scaling.records.run import PointRecord
from tests.support.planted import STEP_S, Plan, lost, older, run
from tests.support.scripted_records import by_size, failed, half, mean

WITHIN = 1.5


def stalls(share: float, factor: float, only: int | None = None) -> Plan:
    def stalled(rank: int, dice: random.Random) -> float:
        return factor if dice.random() < share and only in (None, rank) else 1.0

    return Plan(stall=stalled)


# What is planted, and what must be lost to which cause; all others are nothing.
PLANTED: dict[str, tuple[Plan, dict[str, float]]] = {
    "nothing": (Plan(), {}),
    # 1.2 against the harmonic mean of (1, 1, 1, 1.2), 1.0435: 13.0 of what the devices do alone
    "slow last rank": (Plan(alone=(1, 1, 1, 1.2)), {"straggling": 13.0}),
    "slow first rank": (Plan(alone=(1.2, 1, 1, 1)), {"straggling": 13.0}),
    # 1 against 4 / (3 + 1 / 0.8) = 0.941
    "fast first rank": (Plan(alone=(0.8, 1, 1, 1)), {"straggling": 5.9}),
    # one thread of four less: 4/3, against 4 / (3 + 3/4) = 1.0667
    "a thread fewer": (Plan(alone=(1, 1, 4 / 3, 1)), {"straggling": 20.0}),
    "contention": (Plan(contention=1.15), {"contention": 13.0}),
    # one busy core runs at 1.1 x the clock of all of them
    "turbo": (Plan(contention=1.1), {"contention": 9.1}),
    # 90 ms of which 60 are hidden: 30 of 130
    "comm half hidden": (Plan(wire_s=0.03, comm_s=0.09), {"waiting": 23.1}),
    "comm hidden": (Plan(wire_s=0.0, comm_s=0.09), {}),
    "wrapper": (Plan(hooks_s=0.003), {"exchange_cpu": 2.9}),
    "stolen CPU": (Plan(steals_s=0.008, comm_s=0.004), {"exchange_cpu": 7.4}),
    "stolen CPU, comm hidden": (Plan(steals_s=0.008, comm_s=0.05), {"exchange_cpu": 7.4}),
    # Threads that poll while their rank waits for the slowest take nothing from anybody.
    "polling beside straggling": (Plan(alone=(1, 1, 1, 1.2), polls=0.5), {"straggling": 13.0}),
    "polling and wrapper": (
        Plan(alone=(1, 1, 1, 1.2), hooks_s=0.003, polls=0.5),
        {"straggling": 12.7, "exchange_cpu": 2.4},
    ),
    "server beside rank 0": (Plan(server_s=0.02), {"servers": 16.7}),
    "throttling half-way": (Plan(speed=lambda number, block: 1.2 if (number, block) >= (3, 3) else 1.0), {}),
}


@pytest.mark.parametrize("turns", [True, False])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_named_with_its_size(name: str, seed: int, turns: bool) -> None:
    """Whether points took turns or were measured one after the other."""
    plan, truth = PLANTED[name]
    made = run(plan, seed)
    row, found = lost(made if turns else [replace(one, epoch=None) for one in made])
    expected = {cause: truth.get(cause, 0.0) for cause in found}
    assert found == pytest.approx(expected, abs=WITHIN)
    assert 100 * (1 - mean(row.efficiency)) == pytest.approx(sum(truth.values()), abs=WITHIN)
    assert abs(found["unexplained"]) < 0.5
    assert half(row.efficiency) < 0.02


@pytest.mark.parametrize(
    ("plan", "alone", "seed"), [(stalls(0.05, 3.0), 1.1, 0), (stalls(0.1, 2.0, only=2), 1.025, 1)]
)
def test_stalls_are_straggling(plan: Plan, alone: float, seed: int) -> None:
    """5 % of steps of four ranks x 3: a step of all takes 1 + 2 (1 - 0.95^4) = 1.371 times, alone 1.1 on average;
    10 % of one rank's steps x 2: 1.1, where the devices' mean is 1.025."""
    row, found = lost(run(plan._replace(rounds=25, blocks=40, steps=20), seed))
    together = 1 + 2 * (1 - 0.95**4) if alone == 1.1 else 1.1
    truth = 100 * (1 - alone / together)
    assert found["straggling"] == pytest.approx(truth, abs=WITHIN)
    assert max(abs(found[cause]) for cause in found if cause != "straggling") < WITHIN
    assert 100 * (1 - mean(row.efficiency)) == pytest.approx(truth, abs=WITHIN)


@pytest.mark.parametrize(
    ("plan", "alone", "together"),
    [(stalls(0.05, 3.0), 1.1, 1 + 2 * (1 - 0.95**4)), (stalls(0.1, 2.0, only=2), 1.025, 1.1)],
)
def test_rare_stalls_are_no_outliers_in_a_default_run(plan: Plan, alone: float, together: float) -> None:
    """Of windows of two steps, six a round, a run has too few stalls to be right by itself: 100 of them are on
    average."""
    found = [lost(run(plan._replace(steps=2), seed)) for seed in range(100)]
    truth = 100 * (1 - alone / together)
    assert 100 * (1 - fmean(mean(row.efficiency) for row, _ in found)) == pytest.approx(truth, abs=WITHIN)
    assert fmean(causes["straggling"] for _, causes in found) == pytest.approx(truth, abs=WITHIN)
    rate = fmean(mean(row.samples_per_s) for row, _ in found)  # over rounds geometric means, which are larger
    assert rate == pytest.approx(4 * found[0][0].workload.batch_size / (STEP_S * together), rel=0.025)


def test_without_cpu_time_what_comm_explains_is_exposed() -> None:
    _, found = lost(run(Plan(wire_s=0.03, comm_s=0.09, tells_cpu=False)))
    assert found["exposed"] == pytest.approx(23.1, abs=WITHIN)
    assert found["unexplained"] == pytest.approx(0.0, abs=WITHIN)


def test_older_records_are_split_by_what_they_know() -> None:
    """They tell how much of one core each rank used, and neither threads nor who queued."""
    _, found = lost([older(one) for one in run(Plan(steals_s=0.008, wire_s=0.02))])
    assert found["exchange_cpu"] == pytest.approx(100 * 8 / 128, abs=WITHIN)
    assert found["waiting"] == pytest.approx(100 * 20 / 128, abs=WITHIN)
    assert found["unexplained"] == pytest.approx(0.0, abs=0.5)


@pytest.mark.parametrize(
    ("alone", "said"),
    [
        ((1, 1, 1, 1.2), "slow rank: rank 3 on node1 (CPU 3) takes 20."),
        ((1.2, 1, 1, 1), "slow rank: rank 0 on node1 (CPU 0) takes "),
        ((0.8, 1, 1, 1), "fast rank: rank 0 on node1 (CPU 0) takes "),
        ((1, 1, 4 / 3, 1), "slow rank: rank 2 on node1 (CPU 2) takes 33."),
    ],
)
def test_the_odd_rank_is_named(alone: tuple[float, ...], said: str) -> None:
    row, _ = lost(run(Plan(alone=alone)))
    assert [note for note in row.footnotes if " rank: " in note and note.startswith(said)]
    assert len([note for note in row.footnotes if " rank: " in note]) == 1


def test_equal_ranks_are_not_named() -> None:
    """40 machines of four: what is told apart by chance is less than is worth a note."""
    found = [lost(run(Plan(rounds=4), seed))[0].footnotes for seed in range(40)]
    assert [note for notes in found for note in notes if "rank" in note] == []


def test_the_parts_of_the_exchanges_cpu_are_told() -> None:
    row, _ = lost(run(Plan(hooks_s=0.003, steals_s=0.008)))
    assert row.exchange_cpu_parts["gloo_tcp_loop"] == pytest.approx(0.008 / 0.111, abs=0.003)
    assert row.exchange_cpu_parts["wrapper at N=1"] == pytest.approx(0.003 / 0.111, abs=0.005)


def test_the_wrapper_without_exchange_is_told_beside_that_of_a_single_rank() -> None:
    """4 ms longer than plain steps of 100, of 103 with all ranks: measured after the windows that count."""
    made = [_unsynced(one, 0.104) for one in run(Plan(hooks_s=0.003))]
    assert by_size(made)[4].exchange_cpu_parts["wrapper without exchange"] == pytest.approx(0.039, abs=0.005)


def test_parts_that_need_no_single_rank_are_told_where_none_was_measured() -> None:
    """As with --world-sizes 4."""
    made = [_unsynced(one, 0.104) for one in run(Plan(hooks_s=0.003, steals_s=0.008))]
    fewer = [one for one in made if one.point.kind != "exchange" or one.point.world_size > 1]
    whole, found = (by_size(of)[4].exchange_cpu_parts for of in (made, fewer))
    assert set(whole) == {"gloo_tcp_loop", "wrapper at N=1", "wrapper without exchange"}
    assert found == {name: part for name, part in whole.items() if name != "wrapper at N=1"}


def _unsynced(made: PointRecord, step_s: float) -> PointRecord:
    if made.point.kind != "exchange":
        return made
    steps = tuple(replace(made.ranks[0].windows[0], index=index, steps=1, start_s=0.0) for index in range(2))
    windows = tuple(replace(one, measured=False, end_s=step_s) for one in steps)
    return replace(made, ranks=tuple(replace(rank, unsynced=windows) for rank in made.ranks))


def test_the_wrapper_is_no_noise_where_it_is_told() -> None:
    """Of 40 machines whose steps vary by a sixth and whose exchange has none, its interval leaves zero in 5 %."""
    noisy = Plan(stall=lambda _rank, dice: dice.choice((1.0, 1.4)))
    found = [by_size(run(noisy, seed))[4].exchange_cpu_parts for seed in range(40)]
    assert sum("wrapper at N=1" in parts for parts in found) <= 6


def test_one_round_has_no_interval_that_could_tell_the_wrapper() -> None:
    """Threads are read from the kernel by name, and need none."""
    made = [_unsynced(one, 0.104) for one in run(Plan(hooks_s=0.003, steals_s=0.008, rounds=1))]
    assert set(by_size(made)[4].exchange_cpu_parts) == {"gloo_tcp_loop"}


def test_parts_are_means_over_the_rounds_that_tell_them() -> None:
    made = run(Plan(steals_s=0.008), seed=1)
    fewer = [failed(one.point) if one.point.kind == "together" and one.point.round > 1 else one for one in made]
    both = [by_size(of)[4].exchange_cpu_parts["gloo_tcp_loop"] for of in (made, fewer)]
    assert both == pytest.approx([0.008 / 0.108] * 2, abs=0.003)
