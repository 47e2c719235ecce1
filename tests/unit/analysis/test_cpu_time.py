"""What the CPU time of ranks, helpers and servers tells of lost efficiency: planted as in test_planted.py."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.records.events import Finished
from scaling.records.run import HelperRecord, PointRecord
from scaling.records.telemetry import Telemetry
from tests.support.planted import Plan, lost, older, run
from tests.support.scripted_records import by_one_worker, loss_of, served

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


def test_who_queues_behind_threads_of_its_own_is_not_delayed_by_servers_alone() -> None:
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


def test_rounds_without_cpu_time_are_left_out_where_others_have_it() -> None:
    """All that the two tell would count the same waiting twice: as such, and as exposed communication."""
    made = [_silent(one) if one.point.round < 2 else one for one in run(Plan(wire_s=0.03, comm_s=0.09))]
    row, found = lost(made)
    assert loss_of(row).exposed is None
    assert found == pytest.approx({cause: 23.1 if cause == "waiting" else 0.0 for cause in found}, abs=WITHIN)


def _silent(made: PointRecord) -> PointRecord:
    return replace(made, ranks=tuple(replace(rank, telemetry=Telemetry()) for rank in made.ranks))


SPLIT_WITHOUT = "the loss is split without, into exposed communication and the rest"
FROM_OTHERS = "in 1 of 6 rounds; from the others: exchange's CPU and waiting"
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
def test_where_other_rounds_tell_cpu_time_no_comm_is_missing(kind: str, whose: str) -> None:
    made = [
        _untold(one) if (one.point.kind, one.point.round) == (kind, 1) else one for one in run(Plan(wire_s=0.03))
    ]
    row, found = lost([one for one in made if one.point.kind != "comm"])
    assert row.footnotes == (f"no CPU time of {whose} {FROM_OTHERS}",)
    assert found["waiting"] == pytest.approx(23.1, abs=WITHIN)


def test_with_cpus_to_spare_cpu_time_that_no_thread_tells_is_none() -> None:
    row, found = lost([_with_spare_cpus(older(one)) for one in run(Plan(wire_s=0.03, comm_s=0.09))])
    assert f"no CPU time by thread, with CPUs to spare: {SPLIT_WITHOUT}" in row.footnotes
    assert found["exposed"] == pytest.approx(23.1, abs=WITHIN)


def test_where_no_cpu_time_is_known_at_all_nothing_is_said_of_it() -> None:
    """As of GPUs."""
    row, _ = lost(run(Plan(wire_s=0.03, comm_s=0.09, tells_cpu=False)))
    assert row.footnotes == ()


def _untold(made: PointRecord) -> PointRecord:
    return replace(made, ranks=tuple(replace(rank, telemetry=Telemetry()) for rank in made.ranks))
