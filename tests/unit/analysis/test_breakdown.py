"""The loss by cause: known answers, and planted sweeps with CPU time."""

from __future__ import annotations

import random
from statistics import fmean

import pytest
from msgspec.structs import replace

from scaling.records.events import Finished
from scaling.records.run import HelperRecord, PointRecord
from scaling.records.telemetry import Telemetry
from tests.support.planted import STEP_S, Plan, lost, older, run
from tests.support.scripted_records import (
    by_one_worker,
    by_size,
    close,
    failed,
    half,
    loss_of,
    mean,
    point,
    record,
    served,
    sweep,
)

# Known answers for the loss by cause; the arithmetic stands in the comments.


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
    note = "communication takes 1.4 times as long during compute as alone"
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
        "no comm control in 1 of 2 rounds (failed: oom); from the other rounds: exposed communication",
        "its comm control at n2: 1 of 2 rounds failed: oom: out of memory (rank 1 on node1; log: logs/a.log)",
        "slow rank: rank 1 on node1 (CPU 1) takes 2.0 % longer than the others when all run",
    )


def test_the_parts_always_add_up() -> None:
    rng = random.Random(3)
    for _ in range(50):
        records = [one for n in range(3) for one in sweep(n, rng.uniform(0.1, 0.2), {2: rng.uniform(0.1, 0.3)})]
        kept = [one for one in records if one.point.kind in ("exchange", "solo") or rng.random() < 0.6]
        row = by_size(kept)[2]
        parts = (getattr(loss_of(row), cause) or 0.0 for cause in loss_of(row).__struct_fields__)
        assert sum(parts) == pytest.approx(1 - mean(row.efficiency), abs=1e-12)


def test_a_rest_within_noise_is_not_significant() -> None:
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


# What the CPU time of ranks, helpers and servers tells of lost efficiency: planted.

WITHIN = 1.5
SPARE: dict[str, tuple[Plan, dict[str, float]]] = {
    "comm half hidden": (Plan(wire_s=0.03, comm_s=0.09), {"waiting": 23.1}),
    "wrapper": (Plan(hooks_s=0.003), {"exchange_cpu": 2.9}),
    "stolen CPU": (Plan(steals_s=0.008), {"exchange_cpu": 7.4}),
    "server beside rank 0": (Plan(server_s=0.02), {"servers": 16.7}),
    # What polls for the wire has a CPU of its own, and nobody queues for it.
    "polling beside the wire": (Plan(wire_s=0.03, polls=0.9), {"waiting": 23.1}),
}


@pytest.mark.parametrize("name", SPARE)
def test_with_hardware_threads_to_spare_only_what_computing_threads_lose_is_the_exchanges_cpu(name: str) -> None:
    plan, truth = SPARE[name]
    _, found = lost([_with_spare_cpus(one) for one in run(plan)])
    assert found == pytest.approx({cause: truth.get(cause, 0.0) for cause in found}, abs=WITHIN)


def _with_spare_cpus(made: PointRecord) -> PointRecord:
    return replace(made, ranks=tuple(replace(rank, cpus=(rank.rank, rank.rank + 4)) for rank in made.ranks))


THREADED = Plan(wire_s=0.02, hooks_s=0.003, steals_s=0.005)
OF_THREADED = {"waiting": 100 * 0.02 / 0.128, "exchange_cpu": 100 * 0.008 / 0.128}


def test_cpu_time_is_per_core() -> None:
    """Four threads each have a core, and run four times as much in a step."""
    _, found = lost([_threaded(one, 4) for one in run(THREADED)])
    assert found == pytest.approx({cause: OF_THREADED.get(cause, 0.0) for cause in found}, abs=WITHIN)


def _threaded(made: PointRecord, count: int) -> PointRecord:
    cpus = [tuple(range(count * rank.rank, count * rank.rank + count)) for rank in made.ranks]
    ranks = (replace(rank, threads=count, cpus=own) for rank, own in zip(made.ranks, cpus, strict=True))
    return _over_read(replace(made, ranks=tuple(ranks)), count)


def test_helpers_that_compute_are_the_training_and_no_server() -> None:
    """As TensorFlow's coordinator has them: one worker, which computes nothing, and a helper per device."""
    _, found = lost([_coordinated(one) if one.point.kind == "exchange" else one for one in run(THREADED)])
    assert found == pytest.approx({cause: OF_THREADED.get(cause, 0.0) for cause in found}, abs=WITHIN)


def _coordinated(made: PointRecord) -> PointRecord:
    helpers = tuple(
        HelperRecord(
            name=f"trainer-{rank.rank}", launch_rank=rank.rank, host=rank.host, outcome=Finished(),
            telemetry=rank.telemetry,
        )
        for rank in made.ranks
    )  # fmt: skip
    return replace(_over_read(by_one_worker(made), 0.0), helpers=helpers)


def test_the_cpu_time_of_a_gpus_rank_splits_nothing() -> None:
    _, found = lost([_on_gpus(one) for one in run(Plan(wire_s=0.03, comm_s=0.09))])
    assert found == pytest.approx({cause: 23.1 if cause == "exposed" else 0.0 for cause in found}, abs=WITHIN)


def _on_gpus(made: PointRecord) -> PointRecord:
    return replace(made, point=replace(made.point, hardware=replace(made.point.hardware, device="cuda")))


def test_a_single_rank_is_compared_with_its_own_seat() -> None:
    _, found = lost(run(Plan(alone=(1, 1, 1, 1.2), hooks_s=0.003)), size=1)
    assert found == pytest.approx({cause: 2.9 if cause == "exchange_cpu" else 0.0 for cause in found}, abs=WITHIN)


def test_waiting_below_zero_is_hidden_by_communication_threads_alone() -> None:
    """The kernel tells 5 % too much of the computing thread, and there is no other."""
    _, found = lost([_over_read(one, 1.05) if one.point.kind == "exchange" else one for one in run(Plan())])
    assert found["exchange_cpu"] == pytest.approx(5.0, abs=WITHIN)
    assert found["waiting"] == pytest.approx(-5.0, abs=WITHIN)


def _over_read(made: PointRecord, factor: float) -> PointRecord:
    ranks = []
    for rank in made.ranks:
        assert rank.telemetry.cpu is not None
        threads = tuple(replace(one, run_s=factor * one.run_s) for one in rank.telemetry.cpu.threads)
        ranks.append(replace(rank, telemetry=Telemetry(cpu=replace(rank.telemetry.cpu, threads=threads))))
    return replace(made, ranks=tuple(ranks))


def test_ranks_that_wait_for_nobody_lose_the_mean_of_what_servers_take() -> None:
    """Rank 0 takes 150 ms and the others 125, of which the wire 25: 4 against 3 + 125 / 150 steps in the same
    time, and a server's 20 ms of 150 on one rank of four."""
    _, found = lost([_free_running(one) for one in run(Plan(server_s=0.02, wire_s=0.03))])
    assert found["servers"] == pytest.approx(100 * 0.005 / 0.1304, abs=WITHIN)
    assert found["waiting"] == pytest.approx(100 * 0.0254 / 0.1304, abs=WITHIN)


def _free_running(made: PointRecord) -> PointRecord:
    """The exchange of a mode in which only the rank beside the server takes longer."""
    if made.point.kind != "exchange" or made.point.world_size == 1:
        return made
    first, *others = made.ranks
    own = tuple(
        replace(rank, windows=tuple(replace(w, end_s=w.start_s + w.seconds / 1.2) for w in rank.windows))
        for rank in others
    )
    return replace(made, ranks=(first, *own), synchronous=False)


def test_servers_for_which_nobody_queued_take_nothing() -> None:
    """They ran on cores that no rank was given, while ranks waited for the wire."""
    _, found = lost([_served(one) for one in run(Plan(wire_s=0.03))])
    assert found == pytest.approx({cause: 23.1 if cause == "waiting" else 0.0 for cause in found}, abs=WITHIN)


def test_queueing_behind_own_threads_is_not_the_servers_delay() -> None:
    """8 ms behind communication threads, which ran as long, and a server on other cores that ran for 80: it is
    charged with its part of both, and no more than the ranks waited."""
    made = [_served(one) for one in run(Plan(steals_s=0.008, wire_s=0.02))]
    _, found = lost(made)
    assert found["exchange_cpu"] == pytest.approx(100 * 0.008 / 0.128, abs=WITHIN)
    assert found["servers"] + found["waiting"] == pytest.approx(100 * 0.02 / 0.128, abs=WITHIN)
    assert found["servers"] < 100 * 0.008 / 0.128
    _, found = lost([_alone_on_its_cores(one) for one in made])
    assert found["servers"] == 0
    assert found["waiting"] == pytest.approx(100 * 0.02 / 0.128, abs=WITHIN)


def _alone_on_its_cores(made: PointRecord) -> PointRecord:
    """The kernel says that nothing ran on any rank's cores beside it."""
    ranks = []
    for rank in made.ranks:
        assert rank.telemetry.cpu is not None
        ranks.append(replace(rank, telemetry=Telemetry(cpu=replace(rank.telemetry.cpu, others_s=0.0))))
    return replace(made, ranks=tuple(ranks))


@pytest.mark.parametrize("spare", [False, True])
def test_queues_that_are_noise_delay_nobody(spare: bool) -> None:
    """Now longer, now shorter than those of plain loops: bounded round by round half of that would be a loss."""
    made = [_queued(_served(one), (0.02, -0.02)[one.point.round % 2]) for one in run(Plan(wire_s=0.03))]
    _, found = lost([_with_spare_cpus(one) for one in made] if spare else made)
    assert found == pytest.approx({cause: 23.1 if cause == "waiting" else 0.0 for cause in found}, abs=0.5)


def _queued(made: PointRecord, more_s: float) -> PointRecord:
    """All but the exchange queue for 25 ms a step, it for so much more."""
    each_s = 0.025 + (more_s if made.point.kind == "exchange" and made.point.world_size > 1 else 0.0)
    ranks = []
    for rank in made.ranks:
        assert rank.telemetry.cpu is not None
        cpu = rank.telemetry.cpu
        threads = (replace(cpu.threads[0], queued_s=each_s * cpu.steps), *cpu.threads[1:])
        ranks.append(replace(rank, telemetry=Telemetry(cpu=replace(cpu, threads=threads))))
    return replace(made, ranks=tuple(ranks))


def test_of_older_records_servers_take_no_more_than_ranks_were_off_their_cores() -> None:
    """What each process ran is all that they tell."""
    _, found = lost([older(_served(one)) for one in run(Plan(wire_s=0.0))])
    assert found == pytest.approx(dict.fromkeys(found, 0.0), abs=WITHIN)


def _served(made: PointRecord) -> PointRecord:
    return served(made, 80.0) if made.point.kind == "exchange" and made.point.world_size > 1 else made


def test_rounds_without_cpu_time_are_left_out_if_others_have_it() -> None:
    """All that the two tell would count the same waiting twice: as such, and as exposed communication."""
    made = [_silent(one) if one.point.round < 2 else one for one in run(Plan(wire_s=0.03, comm_s=0.09))]
    row, found = lost(made)
    assert loss_of(row).exposed is None
    assert found == pytest.approx({cause: 23.1 if cause == "waiting" else 0.0 for cause in found}, abs=WITHIN)


def _silent(made: PointRecord) -> PointRecord:
    return replace(made, ranks=tuple(replace(rank, telemetry=Telemetry()) for rank in made.ranks))


SPLIT_WITHOUT = "the loss is split into exposed communication and the rest"
FROM_OTHERS = "in 1 of 6 rounds; from the other rounds: exchange's CPU and waiting"
NO_COMM = "no comm control; counted in the rest: exposed communication"


@pytest.mark.parametrize(
    ("kind", "whose"), [("together", "its together control"), ("exchange", "its own processes")]
)
def test_a_loss_that_is_split_without_cpu_time_says_whose_is_missing(kind: str, whose: str) -> None:
    made = [_untold(one) if one.point.kind == kind else one for one in run(Plan(wire_s=0.03, comm_s=0.09))]
    row, found = lost(made)
    assert row.footnotes == (f"no CPU time of {whose}: {SPLIT_WITHOUT}",)
    assert found["exposed"] == pytest.approx(23.1, abs=WITHIN)
    bare, _ = lost([one for one in made if one.point.kind != "comm"])
    assert bare.footnotes == (NO_COMM, f"no CPU time of {whose}: {SPLIT_WITHOUT}")


@pytest.mark.parametrize(
    ("kind", "whose"), [("together", "its together control"), ("exchange", "its own processes")]
)
def test_no_comm_is_missing_if_other_rounds_have_cpu_time(kind: str, whose: str) -> None:
    made = [
        _untold(one) if (one.point.kind, one.point.round) == (kind, 1) else one for one in run(Plan(wire_s=0.03))
    ]
    row, found = lost([one for one in made if one.point.kind != "comm"])
    assert row.footnotes == (f"no CPU time of {whose} {FROM_OTHERS}",)
    assert found["waiting"] == pytest.approx(23.1, abs=WITHIN)


def test_with_cpus_to_spare_cpu_time_without_threads_is_missing() -> None:
    row, found = lost([_with_spare_cpus(older(one)) for one in run(Plan(wire_s=0.03, comm_s=0.09))])
    assert f"no CPU time by thread, with CPUs to spare: {SPLIT_WITHOUT}" in row.footnotes
    assert found["exposed"] == pytest.approx(23.1, abs=WITHIN)


def test_unknown_cpu_time_has_no_note() -> None:
    """As of GPUs."""
    row, _ = lost(run(Plan(wire_s=0.03, comm_s=0.09, tells_cpu=False)))
    assert row.footnotes == ()


def _untold(made: PointRecord) -> PointRecord:
    return replace(made, ranks=tuple(replace(rank, telemetry=Telemetry()) for rank in made.ranks))


# Planted losses are named rightly, with the right size: seeded machines through the whole analysis. Sizes are in
# percent of the exchange's step; STEP_S is 0.1 s.


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
