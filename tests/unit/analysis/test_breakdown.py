"""The loss by cause: known answers, waiting for data, and planted sweeps with CPU time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.records.events import Finished
from scaling.records.run import HelperRecord, PointRecord
from scaling.records.telemetry import Telemetry
from tests.support.golden_rows import check_rows
from tests.support.planted import STEP_S, Plan, lost, older, run
from tests.support.scripted_records import (
    STRONG,
    asynchronous,
    by_one_worker,
    by_size,
    close,
    failed,
    half,
    loss_of,
    mean,
    numbered,
    point,
    record,
    served,
    sweep,
)

Records = Sequence[PointRecord]

# ---------------------------------------------------------------- known answers
# The arithmetic stands beside each case. Golden files hold all other fields of these rows.


def one_round(step_s: float, together: tuple[float, ...], comm_s: float, *, n: int = 0) -> list[PointRecord]:
    n = n or len(together)
    made = [record(point("solo"), 0.1), record(point("exchange", n), step_s)]
    made += [record(point("together", n), *together)] if together else []
    return [*made, record(point("comm", n), comm_s)] if comm_s else made


def beside_compute(records: list[PointRecord], *seconds: float) -> list[PointRecord]:
    """The same, with exchanges of so many seconds on each rank while the devices compute."""
    *others, comm = records
    exchange = next(one for one in others if one.point.kind == "exchange")
    ranks = tuple(
        replace(rank, beside=(replace(rank.windows[0], steps=1, samples=0, start_s=0.0, end_s=each),))
        for rank, each in zip(exchange.ranks, seconds, strict=True)
    )
    return [*(replace(one, ranks=ranks) if one is exchange else one for one in others), comm]


def rounds(*of: Records) -> list[PointRecord]:
    return [one for number, records in enumerate(of) for one in numbered(records, number)]


def without(records: Records, *kinds: str) -> list[PointRecord]:
    return [one for one in records if one.point.kind not in kinds]


def losing(records: Records, *lacking: tuple[int, str]) -> list[PointRecord]:
    """The same in which the controls of these rounds failed."""
    return [failed(one.point) if (one.point.round, one.point.kind) in lacking else one for one in records]


def fed(together_s: float, exchange_s: float, *, feeds: bool = True) -> list[PointRecord]:
    """One device waits 0.02 of 0.12 s for data; feeds take 0.03 s alone and 0.05 s at once."""
    made = [
        record(point("solo"), 0.12), record(point("held"), 0.10), record(point("together", 4), together_s),
        record(point("held", 4), 0.104), record(point("exchange"), 0.12), record(point("exchange", 4), exchange_s),
    ]  # fmt: skip
    return [*made, record(point("feed"), 0.03), record(point("feed", 4), 0.05)] if feeds else made


def strong(*controls: PointRecord) -> list[PointRecord]:
    """A global batch of 64."""
    exchange = record(point("exchange", 2, batch_size=32, **STRONG), 0.125)
    return [record(point("solo", batch_size=64, **STRONG), 0.2), exchange, *controls]


def of_half(kind: str, *steps_s: float) -> PointRecord:
    return record(point(kind, 2, batch_size=32, **STRONG), *steps_s)


FIRST, SLOWER = one_round(0.125, (0.11, 0.11), 0.05), one_round(0.145, (0.13, 0.13), 0.05)
TWO = [*sweep(0, 0.1, {2: 0.125}), *sweep(1, 0.1, {2: 0.125})]
Known = Mapping[str, float | None]
KNOWN: dict[str, tuple[Records, Known]] = {
    # solo 0.1; together mean 0.115, max 0.13; exchange 0.16, of which 0.03 after the slowest; comm 0.01
    "all causes": (
        one_round(0.16, (0.11, 0.11, 0.11, 0.13), 0.01),
        {"contention": 0.015 / 0.16, "straggling": 0.015 / 0.16, "exposed": 0.01 / 0.16, "small_batch": 0,
         "unexplained": 0.02 / 0.16},
    ),
    # the 0.03 after the slowest loop are exchange, though it takes 0.01 alone: it is slower during compute
    "exchange of 0.018 during compute": (
        beside_compute(one_round(0.16, (0.11, 0.13), 0.01), 0.012, 0.018),
        {"exposed": 0.018 / 0.16, "unexplained": 0.012 / 0.16},
    ),
    "exchange of 0.05 during compute": (
        beside_compute(one_round(0.16, (0.11, 0.13), 0.01), 0.012, 0.05),
        {"exposed": 0.03 / 0.16, "unexplained": 0},
    ),
    # a note says so, if the rounds show it
    "exchange that compute slows down": (
        rounds(*[beside_compute(one_round(0.16, (0.11, 0.13), 0.01), 0.014, 0.0141)] * 4), {},
    ),
    # 0.125 - 0.108 of 0.05
    "hidden communication": (one_round(0.125, (0.104, 0.108), 0.05), {"exposed": 0.017 / 0.125, "unexplained": 0}),
    # 0.004 / 0.114 and -0.004 / 0.106: nothing on average, where a bound in each round would make it 1.8 %
    "nothing exposed on average": (
        rounds(*(one_round(step_s, (0.11, 0.11), 0.05) for step_s in (0.114, 0.106))), {"exposed": 0},
    ),
    # 0.02 / 0.13 and 0: less than comm on average, where a bound in each round would make it half of that
    "less than comm on average": (
        rounds(*(one_round(step_s, (0.11, 0.11), 0.01) for step_s in (0.13, 0.11))), {"exposed": 0.02 / 0.13 / 2},
    ),
    # round 1 has contention of 0.03 s and no comm: causes are of round 0
    "causes of the round that has all": (
        rounds(FIRST, without(SLOWER, "comm")), {"contention": 0.01 / 0.125, "exposed": 0.015 / 0.125},
    ),
    # the exchange is as fast as one device although plain loops at once were slower
    "a negative rest": (
        one_round(0.1, (0.10, 0.11), 0.05),
        {"contention": 0.05, "straggling": 0.05, "exposed": 0, "unexplained": -0.1},
    ),
    # each round adds up, but efficiencies have a geometric mean
    "a rest within noise": (
        rounds(*(one_round(step_s, (step_s - 0.01,) * 2, 0.1) for step_s in (0.16, 0.11, 0.16, 0.11))), {},
    ),
    "a single rank": (
        [record(point("solo"), 0.1), record(point("exchange"), 0.125)], {"exposed": None, "unexplained": 0.2},
    ),
    "a single rank with comm": (
        [record(point("solo"), 0.1), record(point("exchange"), 0.125), record(point("comm"), 0.03)],
        {"exposed": 0.2, "unexplained": 0, "contention": 0, "straggling": 0},
    ),
    "no together": (
        one_round(0.125, (), 0.05, n=2),
        {"contention": None, "straggling": None, "exposed": None, "unexplained": 0.2},
    ),
    # contention 0.006, straggling 0.002
    "no comm": (one_round(0.125, (0.104, 0.108), 0), {"exposed": None, "unexplained": 0.2 - 0.048 - 0.016}),
    # together: mean 0.103, max 0.104
    "comm failed in a round": (losing(TWO, (1, "comm")), {"exposed": 0.021 / 0.125, "unexplained": 0}),
    "together of another placement": (
        [replace(one, point=replace(one.point, placement="spread")) if one.point.kind == "together" else one
         for one in sweep(0, 0.1, {2: 0.125})],
        {"contention": None},
    ),
    # t(1) = 0.2 s at 64, alone 0.11 s at 32; together 0.112, 0.114: nothing is unexplained
    "strong rule": (
        strong(
            record(point("solo", batch_size=32, **STRONG), 0.11), of_half("together", 0.112, 0.114),
            of_half("comm", 0.05), record(point("exchange", 1, batch_size=64, **STRONG), 0.25),
        ),
        {"small_batch": 0.08, "contention": 0.024, "straggling": 0.008, "exposed": 0.088, "unexplained": 0},
    ),
    # 0.2 less straggling 0.008 and exposed 0.088
    "strong rule without the small solo": (
        strong(of_half("together", 0.112, 0.114), of_half("comm", 0.05)),
        {"small_batch": None, "contention": None, "unexplained": 0.104},
    ),
    # plain loops at once, as rates, 0.12 a step; exchanging 0.12 and 0.2, 0.15; comm alone 0.04
    "ranks that do not wait": (
        [record(point("solo"), 0.1), record(point("together", 2), 0.1, 0.15),
         asynchronous(record(point("exchange", 2), 0.12, 0.2)), asynchronous(record(point("comm", 2), 0.04))],
        {"contention": 0.02 / 0.15, "straggling": None, "exposed": 0.03 / 0.15, "unexplained": 0},
    ),
    # 1 / mean(1/0.01, 1/0.03) = 0.015 of the 0.03 that the exchange takes longer
    "comm of ranks that do not wait": (
        [record(point("solo"), 0.1), record(point("together", 2), 0.1),
         asynchronous(record(point("exchange", 2), 0.13)), asynchronous(record(point("comm", 2), 0.01, 0.03))],
        {"exposed": 0.015 / 0.13},
    ),
    # at once 0.11 and 0.22: contention 0.165 - 0.15; the slowest is 0.055 above the mean, and the mean of alone
    # 0.15 - 0.4 / 3 above what both do together; comm explains the 0.03 that are left
    "unequal seats": (
        [record(point("each", 2), 0.1, 0.2), record(point("together", 2), 0.11, 0.22),
         record(point("exchange", 2), 0.25), record(point("comm", 2), 0.05)],
        {"contention": 0.015 / 0.25, "straggling": (0.055 + 0.15 - 0.4 / 3) / 0.25, "exposed": 0.03 / 0.25,
         "unexplained": 0},
    ),
    # together 0.144 - held 0.104 = 0.04 of data, of which one device waits 0.02 too; contention held 0.104 - 0.10
    "waiting for data": (fed(0.144, 0.16), {"data_wait": 0.02 / 0.16, "contention": 0.004 / 0.16}),
    # 0.164 - 0.104 = 0.06, of which feeds explain 0.05: 0.03 grown, and 0.014 is left as contention
    "waiting longer than feeds take": (fed(0.164, 0.18), {"data_wait": 0.03 / 0.18, "contention": 0.014 / 0.18}),
    "waiting without feeds": (fed(0.164, 0.18, feeds=False), {"data_wait": 0.04 / 0.18}),
    # held is slower than together by noise: nothing is waited for, and what one device waits is gained
    "no waiting": (fed(0.103, 0.13), {"data_wait": -0.02 / 0.13}),
    # 0.004 and -0.004: nothing on average
    "no waiting on average": (rounds(fed(0.108, 0.13), fed(0.1, 0.13)), {"data_wait": -0.02 / 0.13}),
    "one device that waits": (fed(0.144, 0.16)[:-1], {"data_wait": 0.02 / 0.16}),
    # times are of rates, and so are those of the loops
    "waiting of ranks that do not wait for each other": (
        [asynchronous(one) if one.point.kind == "exchange" else one for one in fed(0.144, 0.16)],
        {"data_wait": 0.02 / 0.16},
    ),
    "held failed": (losing(fed(0.144, 0.16), (0, "held")), {"data_wait": None, "contention": 0.024 / 0.16}),
    "held failed in a round": (
        losing(rounds(*[fed(0.144, 0.16)] * 2), (1, "held")),
        {"data_wait": 0.02 / 0.16, "contention": 0.004 / 0.16},
    ),
    # data in round 0 alone; contention with it in both
    "held and comm failed in other rounds": (
        losing(rounds(*[[*fed(0.144, 0.16), record(point("comm", 4), 0.01)]] * 2), (0, "comm"), (1, "held")),
        {"data_wait": 0.02 / 0.16, "contention": 0.004 / 0.16, "exposed": 0.01 / 0.16},
    ),
    "neither held nor feed": (without(fed(0.144, 0.16), "held", "feed"), {"data_wait": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_known_losses(name: str) -> None:
    records, causes = KNOWN[name]
    row = max(by_size(records).values(), key=lambda one: one.world_size)
    found = loss_of(row)
    assert {cause: getattr(found, cause) for cause in causes} == {
        cause: None if value is None else close(value) for cause, value in causes.items()
    }
    parts = (getattr(found, cause) or 0.0 for cause in found.__struct_fields__)
    assert sum(parts) == pytest.approx(1 - mean(row.efficiency), abs=1e-12)


def test_rows_of_known_losses_are_those_of_the_golden_file() -> None:
    check_rows("breakdown", {name: records for name, (records, _) in KNOWN.items()})


# ---------------------------------------------------------------- planted
# What the CPU time of ranks, helpers and servers shows of lost efficiency. Sizes are in percent of the exchange's
# step; STEP_S is 0.1 s.

WITHIN = 1.5
Change = Callable[[PointRecord], PointRecord]


def is_whole(made: PointRecord) -> bool:
    return made.point.kind == "exchange" and made.point.world_size > 1


def spare(made: PointRecord) -> PointRecord:
    """Ranks have a hardware thread to spare."""
    return replace(made, ranks=tuple(replace(rank, cpus=(rank.rank, rank.rank + 4)) for rank in made.ranks))


def threaded(made: PointRecord) -> PointRecord:
    """Four threads each have a core, and run four times as much in a step."""
    cpus = [tuple(range(4 * rank.rank, 4 * rank.rank + 4)) for rank in made.ranks]
    ranks = (replace(rank, threads=4, cpus=own) for rank, own in zip(made.ranks, cpus, strict=True))
    return over_read(replace(made, ranks=tuple(ranks)), 4)


def coordinated(made: PointRecord) -> PointRecord:
    """As TensorFlow's coordinator has them: one worker, which computes nothing, and a helper per device."""
    if made.point.kind != "exchange":
        return made
    helpers = tuple(
        HelperRecord(
            name=f"trainer-{rank.rank}", launch_rank=rank.rank, host=rank.host, outcome=Finished(),
            telemetry=rank.telemetry,
        )
        for rank in made.ranks
    )  # fmt: skip
    return replace(over_read(by_one_worker(made), 0.0), helpers=helpers)


def on_gpus(made: PointRecord) -> PointRecord:
    return replace(made, point=replace(made.point, hardware=replace(made.point.hardware, device="cuda")))


def with_cpu(made: PointRecord, changed: Callable[[Any], Any]) -> PointRecord:
    """The same with other CPU times."""
    ranks = []
    for rank in made.ranks:
        assert rank.telemetry.cpu is not None
        ranks.append(replace(rank, telemetry=Telemetry(cpu=changed(rank.telemetry.cpu))))
    return replace(made, ranks=tuple(ranks))


def over_read(made: PointRecord, factor: float) -> PointRecord:
    def changed(cpu: Any) -> Any:
        return replace(cpu, threads=tuple(replace(one, run_s=factor * one.run_s) for one in cpu.threads))

    return with_cpu(made, changed)


def misread(made: PointRecord) -> PointRecord:
    """The kernel reports 5 % too much of the computing thread, and there is no other."""
    return over_read(made, 1.05) if made.point.kind == "exchange" else made


def free_running(made: PointRecord) -> PointRecord:
    """The exchange of a mode in which only the rank on the server's host takes longer."""
    if not is_whole(made):
        return made
    first, *others = made.ranks
    own = tuple(
        replace(rank, windows=tuple(replace(w, end_s=w.start_s + w.seconds / 1.2) for w in rank.windows))
        for rank in others
    )
    return replace(made, ranks=(first, *own), synchronous=False)


def with_server(made: PointRecord) -> PointRecord:
    return served(made, 80.0) if is_whole(made) else made


def alone_on_its_cores(made: PointRecord) -> PointRecord:
    """The kernel says that nothing else ran on any rank's cores."""
    return with_cpu(with_server(made), lambda cpu: replace(cpu, others_s=0.0))


def queueing(made: PointRecord) -> PointRecord:
    """Queues now longer, now shorter than those of plain loops: bounded round by round half would be a loss."""
    more_s = (0.02, -0.02)[made.point.round % 2] if is_whole(made) else 0.0

    def changed(cpu: Any) -> Any:
        first = replace(cpu.threads[0], queued_s=(0.025 + more_s) * cpu.steps)
        return replace(cpu, threads=(first, *cpu.threads[1:]))

    return with_cpu(with_server(made), changed)


def silent(made: PointRecord) -> PointRecord:
    return replace(made, ranks=tuple(replace(rank, telemetry=Telemetry()) for rank in made.ranks))


def of_kind(kind: str, number: int | None = None) -> Change:
    """Without the CPU time of this kind, in this round or in all."""
    return lambda made: silent(made) if made.point.kind == kind and number in (None, made.point.round) else made


THREADED = Plan(wire_s=0.02, hooks_s=0.003, steals_s=0.005)
OF_THREADED = {"waiting": 100 * 0.02 / 0.128, "exchange_cpu": 100 * 0.008 / 0.128}
WIRE, HIDDEN = Plan(wire_s=0.03), Plan(wire_s=0.03, comm_s=0.09)
STOLEN = Plan(steals_s=0.008, wire_s=0.02)
CHANGED: dict[str, tuple[Plan, Change, dict[str, float]]] = {
    # With hardware threads to spare only what computing threads lose is the exchange's CPU.
    "comm half hidden, spare": (HIDDEN, spare, {"waiting": 23.1}),
    "wrapper, spare": (Plan(hooks_s=0.003), spare, {"exchange_cpu": 2.9}),
    "stolen CPU, spare": (Plan(steals_s=0.008), spare, {"exchange_cpu": 7.4}),
    "server on rank 0's host, spare": (Plan(server_s=0.02), spare, {"servers": 16.7}),
    # What polls for the wire has a CPU of its own, and no thread queues for it.
    "polling during the wire, spare": (Plan(wire_s=0.03, polls=0.9), spare, {"waiting": 23.1}),
    "several threads": (THREADED, threaded, OF_THREADED),
    "helpers that compute": (THREADED, coordinated, OF_THREADED),
    "GPUs": (HIDDEN, on_gpus, {"exposed": 23.1}),
    # Waiting below zero is hidden by communication threads alone.
    "a misread clock": (Plan(), misread, {"exchange_cpu": 5.0, "waiting": -5.0}),
    # Rank 0 takes 150 ms and the others 125, of which the wire 25: 4 against 3 + 125 / 150 steps in the same time,
    # and a server's 20 ms of 150 on one rank of four.
    "ranks that do not wait": (
        Plan(server_s=0.02, wire_s=0.03), free_running,
        {"servers": 100 * 0.005 / 0.1304, "waiting": 100 * 0.0254 / 0.1304},
    ),
    # They ran on cores of no rank, while ranks waited for the wire.
    "servers for which no thread queued": (WIRE, with_server, {"waiting": 23.1}),
    # 8 ms behind communication threads, which ran as long; a server on other cores ran for 80
    "queueing behind own threads": (
        STOLEN, alone_on_its_cores, {"exchange_cpu": 100 * 0.008 / 0.128, "waiting": 100 * 0.02 / 0.128}
    ),
    "queues that are noise": (WIRE, queueing, {"waiting": 23.1}),
    "queues that are noise, spare": (WIRE, lambda made: spare(queueing(made)), {"waiting": 23.1}),
    "servers of older records": (Plan(), lambda made: older(with_server(made)), {}),
    "older records": (STOLEN, older, {"exchange_cpu": 100 * 8 / 128, "waiting": 100 * 20 / 128}),
    "older records, spare": (HIDDEN, lambda made: spare(older(made)), {"exposed": 23.1}),
    # Both would count the same waiting twice: as such, and as exposed communication.
    "two rounds without CPU time": (
        HIDDEN, lambda made: silent(made) if made.point.round < 2 else made, {"waiting": 23.1}
    ),
    "no CPU time of together": (HIDDEN, of_kind("together"), {"exposed": 23.1}),
    "no CPU time of the exchange": (HIDDEN, of_kind("exchange"), {"exposed": 23.1}),
    "no CPU time of a together": (HIDDEN, of_kind("together", 1), {"waiting": 23.1}),
    "no CPU time of an exchange": (HIDDEN, of_kind("exchange", 1), {"waiting": 23.1}),
    "no CPU time": (HIDDEN._replace(tells_cpu=False), lambda made: made, {"exposed": 23.1}),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_what_was_planted_is_named_whatever_the_records_know(name: str) -> None:
    plan, changed, truth = CHANGED[name]
    _, found = lost([changed(one) for one in run(plan)])
    within = 0.5 if name.startswith("queues") else WITHIN
    assert found == pytest.approx({cause: truth.get(cause, 0.0) for cause in found}, abs=within)


def test_rows_that_lack_cpu_time_or_comm_are_those_of_the_golden_file() -> None:
    names = [name for name in CHANGED if "no CPU time" in name or name == "older records, spare"]
    cases = {name: [CHANGED[name][1](one) for one in run(CHANGED[name][0])] for name in names}
    check_rows("cpu-time", {**cases, **{f"{name}, no comm": without(of, "comm") for name, of in cases.items()}})


def test_a_server_is_charged_with_its_part_of_queueing_and_no_more_than_ranks_waited() -> None:
    _, found = lost([with_server(one) for one in run(STOLEN)])
    assert found["exchange_cpu"] == pytest.approx(100 * 0.008 / 0.128, abs=WITHIN)
    assert found["servers"] + found["waiting"] == pytest.approx(100 * 0.02 / 0.128, abs=WITHIN)
    assert found["servers"] < 100 * 0.008 / 0.128


def test_a_single_rank_is_compared_with_its_own_seat() -> None:
    _, found = lost(run(Plan(alone=(1, 1, 1, 1.2), hooks_s=0.003)), size=1)
    assert found == pytest.approx({cause: 2.9 if cause == "exchange_cpu" else 0.0 for cause in found}, abs=WITHIN)


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


# ---------------------------------------------------------------- parts of the exchange's CPU time


def unsynced(made: PointRecord) -> PointRecord:
    """Steps without exchange take 104 ms: 4 longer than plain steps, of 103 with all ranks."""
    if made.point.kind != "exchange":
        return made
    steps = tuple(replace(made.ranks[0].windows[0], index=index, steps=1, start_s=0.0) for index in range(2))
    windows = tuple(replace(one, measured=False, end_s=0.104) for one in steps)
    return replace(made, ranks=tuple(replace(rank, unsynced=windows) for rank in made.ranks))


PARTS = {
    "gloo_tcp_loop": 0.008 / 0.111,
    "wrapper at N=1": 0.003 / 0.111,
    "wrapper without exchange": 0.001 / 0.111,
}


@pytest.mark.parametrize("script", ["train.py", ""])
def test_cpu_time_of_a_scripts_pauses_is_no_cause(script: str) -> None:
    """Rank 0 evaluates for ten times its steps, and the others wait for it."""

    def paused(made: PointRecord) -> PointRecord:
        work = replace(made.point.workload, script=script)
        made = replace(made, point=replace(made.point, workload=work))
        cpu = made.ranks[0].telemetry.cpu
        if made.point.kind != "exchange" or cpu is None:
            return made
        threads = tuple(replace(one, run_s=10 * one.run_s) for one in cpu.threads)
        telemetry = Telemetry(cpu=replace(cpu, wall_s=10 * cpu.wall_s, threads=threads))
        return replace(made, ranks=(replace(made.ranks[0], telemetry=telemetry), *made.ranks[1:]))

    found = loss_of(by_size([paused(one) for one in run(Plan())])[4])
    assert (found.exchange_cpu is None) == bool(script) and found.straggling is not None


def test_the_parts_of_the_exchange_s_cpu_are_reported() -> None:
    """Without a single rank (--world-sizes 4) and with one round, those that need none."""
    plan = Plan(hooks_s=0.003, steals_s=0.008)
    whole = [unsynced(one) for one in run(plan)]
    fewer = [one for one in whole if one.point.kind != "exchange" or one.point.world_size > 1]
    one_round = [unsynced(one) for one in run(plan._replace(rounds=1))]
    found, left, of_one = (by_size(of)[4].exchange_cpu_parts for of in (whole, fewer, one_round))
    assert found == pytest.approx(PARTS, abs=0.03)
    assert found["gloo_tcp_loop"] == pytest.approx(PARTS["gloo_tcp_loop"], abs=0.003)
    assert left == {name: part for name, part in found.items() if name != "wrapper at N=1"}
    assert set(of_one) == {"gloo_tcp_loop"}


def test_the_wrapper_is_no_noise_where_it_is_reported() -> None:
    """Of 40 machines whose steps vary by a sixth and whose exchange has none, its interval leaves zero in 5 %."""
    noisy = Plan(stall=lambda _rank, dice: dice.choice((1.0, 1.4)))
    found = [by_size(run(noisy, seed))[4].exchange_cpu_parts for seed in range(40)]
    assert sum("wrapper at N=1" in parts for parts in found) <= 6


def test_parts_are_means_over_the_rounds_that_have_them() -> None:
    made = run(Plan(steals_s=0.008), seed=1)
    fewer = [failed(one.point) if one.point.kind == "together" and one.point.round > 1 else one for one in made]
    both = [by_size(of)[4].exchange_cpu_parts["gloo_tcp_loop"] for of in (made, fewer)]
    assert both == pytest.approx([0.008 / 0.108] * 2, abs=0.003)
