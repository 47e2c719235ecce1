"""Notes on a row about its machine: memory, quotas, clocks, stalls, slow ranks, another revision."""

from __future__ import annotations

import random
from collections.abc import Collection
from math import log
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.analysis.measured import cell, device_use
from scaling.analysis.statistics.intervals import Layout
from scaling.analysis.table.analyse import analyse
from scaling.analysis.table.footnotes import odd
from scaling.analysis.table.rows import Row
from scaling.records.events import Finished
from scaling.records.point import Kind
from scaling.records.run import HelperRecord, PointRecord
from scaling.records.telemetry import POWER_CAP, CpuTime, Sample, Telemetry, ThreadTime
from scaling.report.material import Material
from tests.support import planted
from tests.support.scripted_records import (
    by_one_worker,
    by_size,
    header,
    point,
    record,
    sweep,
    warning,
    with_window,
)

# What memory cost is said, with its size; and nothing where it cost nothing.


def with_cpu(made: PointRecord, **changes: Any) -> PointRecord:
    steps = sum(window.steps for window in made.ranks[0].windows)
    wall_s = made.ranks[0].measured_s
    main = ThreadTime(name="python", threads=1, run_s=wall_s, queued_s=0.0)
    base: dict[str, Any] = {
        "steps": steps,
        "wall_s": wall_s,
        "kernel_s": 0.0,
        "minor_faults": 0,
        "major_faults": 0,
    }
    cpu = CpuTime(**{**base, "threads": (main,), **changes})
    return replace(made, ranks=tuple(replace(rank, telemetry=Telemetry(cpu=cpu)) for rank in made.ranks))


def notes(*records: PointRecord, size: int = 1) -> tuple[str, ...]:
    return by_size(records)[size].footnotes


def test_memory_that_is_faulted_in_at_each_step() -> None:
    # 30 steps of 0.1 s; 5,000 faults and 10 ms of kernel time a step
    made = with_cpu(record(point("exchange"), 0.1), kernel_s=0.3, minor_faults=150_000)
    assert "memory: 5,000 minor faults per step, kernel time 10.0 % of the step; " in notes(made)[-1]


@pytest.mark.parametrize("kind", ["exchange", "solo"])
@pytest.mark.parametrize(
    ("kernel_s", "minor_faults", "told"),
    [
        (0.033, 16_500, True),  # 1.1 % of 3 s, both in the kernel and as 2 us a fault
        (0.027, 16_500, False),  # the kernel took less, whatever the faults would
        (0.033, 13_500, False),  # the kernel did something else
    ],
)
def test_a_cost_over_one_percent_is_reported(kind: Kind, kernel_s: float, minor_faults: int, told: bool) -> None:
    records = [with_cpu(one, kernel_s=kernel_s, minor_faults=minor_faults) for one in sweep(0, 0.1, {1: 0.1})]
    found = analyse(records)
    said = found.rows[0].footnotes if kind == "exchange" else found.baselines[0].footnotes
    assert [note for note in said if note.startswith("memory: ")] == [
        "memory: 550 minor faults per step, kernel time 1.1 % of the step; --malloc keep, the default "
        "for CPU workers, avoids faults of buffers up to 32 MiB"
    ] * told


def test_kernel_time_that_faults_explain_in_part_is_not_all_called_theirs() -> None:
    """2.2 of 20 %: the rest may be what sockets take."""
    made = with_cpu(record(point("exchange"), 0.1), kernel_s=0.6, minor_faults=33_000)
    assert "faults per step, kernel time 20.0 % of the step, 2.2 % explained by them; --malloc" in notes(made)[-1]


def at_rank(made: PointRecord, rank: int, changed: PointRecord) -> PointRecord:
    return replace(made, ranks=(*made.ranks[:rank], changed.ranks[rank], *made.ranks[rank + 1 :]))


def faulting(made: PointRecord, rank: int) -> PointRecord:
    """One rank spends a tenth of 3 s on 5,000 faults a step."""
    return at_rank(with_cpu(made), rank, with_cpu(made, kernel_s=0.3, minor_faults=150_000))


def test_one_rank_of_many_that_faults_is_named() -> None:
    """All 16 together spend 0.6 % on it."""
    made = record(point("exchange", 16), 0.1, hosts=("node1", "node2"))
    (note,) = (one for one in notes(faulting(made, 9), size=16) if one.startswith("memory: "))
    assert note.startswith(
        "memory: rank 9 on node2 (1 of 16 processes): 5,000 minor faults per step, kernel time "
    )
    assert " kernel time 10.0 % of the step; " in note


def test_where_all_ranks_fault_none_is_named_and_their_mean_is_told() -> None:
    made = record(point("exchange", 2), 0.1)
    both = at_rank(faulting(made, 0), 1, with_cpu(made, kernel_s=0.12, minor_faults=60_000))
    assert "memory: 3,500 minor faults per step, kernel time 7.0 % of the step; " in notes(both, size=2)[-1]


def _threaded(made: PointRecord, threads: int, **changes: Any) -> PointRecord:
    cpus = tuple(range(threads))
    ranks = tuple(replace(rank, threads=threads, cpus=cpus) for rank in made.ranks)
    return with_cpu(replace(made, ranks=ranks), **changes)


@pytest.mark.parametrize(("each_s", "said"), [(2e-3, "kernel time 2.5 % of the step per core; "), (0.5e-3, "")])
def test_kernel_time_is_per_core(each_s: float, said: str) -> None:
    """8 threads in 30 steps of 80 ms; all cores together spend 20 and 5 % of one core's time."""
    kernel_s = 30 * 8 * each_s
    made = _threaded(record(point("exchange"), 0.08), 8, kernel_s=kernel_s, minor_faults=round(kernel_s / 2e-6))
    found = [note for note in notes(made) if note.startswith("memory: ")]
    assert [said in note for note in found] == [True] * bool(said)


def test_the_cores_of_a_process_that_drives_several_devices_are_theirs() -> None:
    whole = by_one_worker(record(point("exchange", 4), 0.1))
    made = with_cpu(whole, kernel_s=0.3, minor_faults=150_000)
    assert "kernel time 2.5 % of the step per core; " in notes(made, size=4)[-1]


@pytest.mark.parametrize(
    ("kernel_s", "told"),
    [
        (0.24, True),  # 8 % of 3 s, for which 40 faults a step are too few
        (0.08, False),  # 2.7 %
    ],
)
def test_kernel_time_that_faults_of_single_pages_do_not_explain_is_no_memorys_and_not_hidden(
    kernel_s: float, told: bool
) -> None:
    records = [with_cpu(one, kernel_s=kernel_s, minor_faults=1_200) for one in sweep(0, 0.1, {2: 0.125})]
    said = (
        "of the step is kernel time; 40 minor faults per step explain 0.1 % if each is of a single page; the rest "
        "is huge pages or other calls"
    )
    found = analyse(records)
    assert found.baselines[0].footnotes == (f"kernel: 8.0 % {said}",) * told
    # Sockets are the kernel's work: of the exchange itself nothing is said. Steps of `together` take 2 % longer.
    own = [note for note in found.rows[0].footnotes if "kernel" in note]
    assert own == [f"its together control: kernel: 7.8 % {said}"] * told


def test_kernel_time_of_gpus_drivers_is_no_question() -> None:
    made = with_cpu(record(point("solo", device="cuda"), 0.1), kernel_s=0.24)
    assert analyse([made]).baselines[0].footnotes == ()


def test_memory_of_the_together_control_is_told_on_the_row_that_rests_on_it() -> None:
    records = [faulting(one, 1) if one.point.kind == "together" else one for one in sweep(0, 0.1, {2: 0.125})]
    (note,) = (one for one in notes(*records, size=2) if "memory" in one)
    assert note.startswith("its together control: memory: rank 1 on node1 (1 of 2 processes): 5,000 minor faults ")


@pytest.mark.parametrize("counts_steps", [True, False])
def test_helpers_that_compute_fault_as_ranks_do(counts_steps: bool) -> None:
    """As TensorFlow's coordinator has them: its worker computes nothing, and a helper per device does."""
    whole = with_cpu(record(point("exchange", 2), 0.1))
    cpus = [rank.telemetry.cpu for rank in faulting(whole, 1).ranks]
    helpers = tuple(
        HelperRecord(
            name=f"{name}-{index}", launch_rank=index, host="node1", outcome=Finished(),
            telemetry=Telemetry(cpu=cpu and replace(cpu, steps=cpu.steps if counts_steps else 0)),
        )
        for name in ("trainer", "server")
        for index, cpu in enumerate(cpus)
    )  # fmt: skip
    made = replace(by_one_worker(whole), helpers=helpers)
    (note,) = (one for one in notes(made, size=2) if one.startswith("memory: "))
    assert note.startswith("memory: trainer-1 on node1 (1 of 3 processes): 5,000 minor faults per step, kernel ")


def test_a_quiet_machine_says_nothing() -> None:
    assert by_size(map(with_cpu, sweep(0, 0.1, {2: 0.125})))[2].footnotes == ()


def test_a_quota_that_held_ranks_up_is_the_cause_with_its_size_and_the_mend() -> None:
    """Both ranks of the cgroup read the same counts; a rank has 3 s of a core."""
    made = with_cpu(record(point("exchange", 2), 0.1), periods=366, throttled_periods=330, throttled_s=2.7)
    (note,) = [one for one in notes(made, size=2) if one.startswith("throttled")]
    assert "on node1: in 330 of 366 periods, 45.0 % of its cores' time" in note
    assert "docker --cpus" in note


@pytest.mark.parametrize("throttled", [0, 3])
def test_a_quota_that_held_hardly_anything_up_is_no_cause(throttled: int) -> None:
    made = with_cpu(record(point("exchange"), 0.1), periods=366, throttled_periods=throttled, throttled_s=0.01)
    assert not any(one.startswith("throttled") for one in notes(made))


# What GPUs' clocks say of a row: the power limit is no fault, heat is, and another clock than the baseline's.


def sample(clock_mhz: float | None, *throttle: str, utilisation_percent: float | None = 98.0) -> Sample:
    return Sample(
        unix_s=1.0,
        sm_clock_mhz=clock_mhz,
        throttle=throttle,
        utilisation_percent=utilisation_percent,
        device_index=0,
    )


def with_samples(made: PointRecord, *samples: Sample, max_mhz: float | None = 1410.0) -> PointRecord:
    read = Telemetry(samples=samples, max_sm_clock_mhz=max_mhz)
    return replace(made, ranks=tuple(replace(rank, telemetry=read) for rank in made.ranks))


def swept(solo: tuple[Sample, ...], exchange: tuple[Sample, ...]) -> Row:
    """The row of two ranks; three rounds."""
    read = {"solo": solo, "exchange": exchange}
    records = [one for number in range(3) for one in sweep(number, 0.1, {2: 0.125})]
    return by_size([with_samples(one, *read.get(one.point.kind, ())) for one in records])[2]


def clocks_notes(row: Row) -> list[str]:
    return [note for note in row.footnotes if "throttled" in note.lower() or "clock" in note]


def test_a_card_at_its_power_limit_is_not_throttled() -> None:
    """As every V100 of 250 W, T4 and GeForce is under load."""
    row = swept((sample(1000.0, POWER_CAP),), (sample(1005.0, POWER_CAP), sample(1000.0)))
    assert (row.flags, clocks_notes(row)) == ((), [])
    assert row.clocks is not None
    assert (row.clocks.sm_mhz, row.clocks.power_limited, row.clocks.throttled) == (1002.5, 0.5, ())
    assert row.clocks.of_max == pytest.approx(1002.5 / 1410)
    assert row.clocks.of_baseline == pytest.approx(1.0025)


@pytest.mark.parametrize("reason", ["hw slowdown", "hw thermal", "sw thermal", "power brake"])
def test_heat_and_failing_power_throttle_a_row(reason: str) -> None:
    row = swept((sample(1000.0),), (sample(1000.0), sample(1000.0, POWER_CAP, reason)))
    assert (row.flags, clocks_notes(row)) == (("THROTTLED",), [f"THROTTLED: {reason}"])


@pytest.mark.parametrize(
    ("clock_mhz", "note"),
    [
        (1000.0, None),
        (985.0, None),
        (1019.0, None),
        (
            950.0,
            "THROTTLED: SM clock 950 MHz, 67 % of the highest, at the power limit in 100 % of readings; "
            "the clock is 5.0 % below its baseline's",
        ),
        (
            1100.0,
            "THROTTLED: SM clock 1100 MHz, 78 % of the highest, at the power limit in 100 % of readings; "
            "the clock is 10.0 % above its baseline's, so efficiency looks too good",
        ),
    ],
)
def test_a_row_at_another_clock_than_its_baseline_says_so(clock_mhz: float, note: str | None) -> None:
    """Whatever lowered it: images/s of the two are then not those of one device."""
    row = swept((sample(1000.0, POWER_CAP),), (sample(clock_mhz, POWER_CAP),))
    assert row.flags == (("THROTTLED",) if note else ())
    assert clocks_notes(row) == ([note] if note else [])


def test_readings_of_an_idle_gpu_say_nothing_of_the_clock_it_works_at() -> None:
    idle = sample(210.0, utilisation_percent=0.0)
    row = swept((sample(1000.0),), (idle, sample(1000.0), sample(1000.0, utilisation_percent=None)))
    assert row.clocks is not None and (row.clocks.sm_mhz, row.flags) == (1000.0, ())


def test_where_nothing_was_read_nothing_is_said() -> None:
    row = by_size([record(point("solo"), 0.1), record(point("exchange", 2), 0.1)])[2]
    assert row.clocks is None
    unknown = swept((sample(None),), (sample(None),)).clocks
    assert unknown is not None and (unknown.sm_mhz, unknown.of_baseline, unknown.differ) == (None, None, False)


def test_older_records_tell_the_power_limit_among_the_reasons_and_no_highest_clock() -> None:
    old = b'{"samples":[[1.0,98.0,249.0,1000.0,1,60.0,["sw power cap"]]]}'
    read = msgspec.json.decode(old, type=Telemetry)
    made = record(point("exchange", 2), 0.1)
    found = device_use.clocks([replace(made, ranks=(replace(made.ranks[0], telemetry=read),))])
    assert found == device_use.Clocks(sm_mhz=1000.0, of_max=None, power_limited=1.0)


def test_a_report_tells_the_clock_of_the_whole_run_once() -> None:
    made = with_samples(record(point("exchange", 2), 0.1), sample(1005.0, POWER_CAP), sample(1005.0))
    found = device_use.clocks([made])
    assert found is not None
    assert (
        device_use.describe(found)
        == "SM clock 1005 MHz, 71 % of the highest, at the power limit in 50 % of readings"
    )
    said = {one.label: one.phrase for one in Material(header(), [made]).doc.facts}
    assert said["clocks"] == (device_use.describe(found),)
    quiet = Material(header(), [record(point("exchange", 2), 0.1)]).doc
    assert "clocks" not in {one.label for one in quiet.facts}


def test_older_sweeps_warned_of_the_power_limit() -> None:
    made = [one for number in range(3) for one in sweep(number, 0.1, {2: 0.125})]
    told = replace(
        with_samples(made[1], sample(1000.0, POWER_CAP)),
        warnings=(warning("rank 0 on node1 was throttled: sw power cap", "throttled"),),
    )
    assert clocks_notes(by_size([made[0], told, *made[2:]])[2]) == []


# Windows far longer than the others of their rank are named; none is left out.


def stalled(*ranks: int, by_s: float = 6.0, hosts: tuple[str, ...] = ("node1", "node2")) -> PointRecord:
    made = record(point("exchange", 2), 0.1, hosts=hosts)
    for rank in ranks:
        made = with_window(made, rank, 2, end_s=made.ranks[rank].windows[2].end_s + by_s)
    return made


def still(made: PointRecord, ranks: Collection[int], still_s: float = 6.0) -> PointRecord:
    told = (
        replace(one, telemetry=replace(one.telemetry, still_s=still_s)) if one.rank in ranks else one
        for one in made.ranks
    )
    return replace(made, ranks=tuple(told))


@pytest.mark.parametrize(("ranks", "whose"), [((1,), "rank 1 on node2"), ((0, 1), "all 2 ranks")])
def test_a_window_far_outside_is_named_with_its_length_and_the_usual_one(
    ranks: tuple[int, ...], whose: str
) -> None:
    (note,) = cell.stall_notes([stalled(*ranks)])
    assert whose in note
    assert "7 s" in note
    assert "the median of the other windows is 1 s" in note
    assert "stood still" not in note
    assert note in by_size([stalled(*ranks)])[2].footnotes


@pytest.mark.parametrize("by_s", [0.0, 1.9])
def test_what_noise_does_to_a_window_is_not_named(by_s: float) -> None:
    assert not list(cell.stall_notes([stalled(0, by_s=by_s)]))


@pytest.mark.parametrize(
    ("ranks", "still_s", "said"),
    [
        ((0, 1), 6.0, "the whole job stood still for 6.0 s"),
        ((0,), 6.0, "node1 stood still for 6.0 s"),
        ((0, 1), 1.5, ""),  # not for most of what was too long
    ],
)
def test_hosts_that_stood_still_are_named(ranks: tuple[int, ...], still_s: float, said: str) -> None:
    (note,) = cell.stall_notes([still(stalled(0, 1), ranks, still_s)])
    assert said in note
    assert ("stood still" in note) == bool(said)


def test_on_one_host_all_of_its_ranks_must_have_stood_still() -> None:
    (note,) = cell.stall_notes([still(stalled(1, hosts=("node1",)), (1,))])
    assert "stood still" not in note


def test_the_longest_of_several_is_told_and_the_others_counted() -> None:
    second = replace(stalled(0, by_s=9.0), point=point("exchange", 2, 1))
    (note,) = cell.stall_notes([stalled(0), second])
    assert "round 2" in note
    assert "1 other like it" in note


def test_a_machine_that_was_suspended_is_named() -> None:
    made = record(point("exchange", 2), 0.1, hosts=("node1", "node2"))
    first = replace(made.ranks[0], telemetry=replace(made.ranks[0].telemetry, suspended_s=6.0))
    (note,) = cell.stall_notes([replace(made, ranks=(first, made.ranks[1]))])
    assert note.startswith("node1 was suspended for 6.0 s")


# Which ranks are named: who is apart from the others, and nobody by chance, however many there are.

# Of one start's step time, as on shared virtual machines.
NOISE = 0.02


def seats(dice: random.Random, count: int, rounds: int = 4, **slower: float) -> Layout:
    """Logarithms of step times of so many seats, some of which take longer by a part."""
    return {
        str(seat): {n: log(1 + slower.get(f"_{seat}", 0.0)) + dice.gauss(0, NOISE) for n in range(rounds)}
        for seat in range(count)
    }


@pytest.mark.parametrize("count", [2, 4, 16, 64])
def test_of_equal_ranks_none_is_named_in_nearly_all_runs_however_many_they_are(count: int) -> None:
    """At 99 % for each of 16 by itself somebody would be named in every sixth run, of 64 in every second."""
    dice = random.Random(count)
    assert sum(bool(odd(seats(dice, count))) for _ in range(100)) <= 5


@pytest.mark.parametrize("count", [4, 16, 64])
def test_a_slow_rank_of_many_is_found_and_no_other(count: int) -> None:
    dice = random.Random(count)
    found = [odd(seats(dice, count, rounds=6, _3=0.06)) for _ in range(50)]
    assert sum([one.seat for one in named] == [3] for named in found) >= 45


def test_of_two_ranks_the_slow_one_is_named() -> None:
    (one,) = odd({"0": {0: 0.0, 1: 0.001}, "1": {0: log(1.1), 1: log(1.1)}})
    assert one.seat == 1
    assert one.apart == pytest.approx(0.1, abs=0.001)


def test_what_noise_explains_is_nobodys() -> None:
    """5 % apart on the mean, by one round in which all of it happened."""
    assert odd({"0": {0: 0.0, 1: 0.0, 2: 0.0}, "1": {0: 0.0, 1: 0.0, 2: 0.15}}) == []


def test_a_rank_that_slows_more_when_all_run_is_named() -> None:
    """All take 0.1 s alone; beside each other 0.11, and the third 0.1265."""
    made = [
        one
        for number in range(3)
        for one in (
            record(point("each", 4, number), 0.1),
            record(point("together", 4, number), 0.11, 0.11, 0.1265, 0.11),
            record(point("exchange", 4, number), 0.13),
        )
    ]
    notes = [note for note in by_size(made)[4].footnotes if "rank" in note]
    assert notes == ["contention: rank 2 on node1 (CPU 2) loses 15.0 % more than the others when all run"]


def named(alone: tuple[float, ...]) -> list[str]:
    row = by_size(planted.run(planted.Plan(size=len(alone), alone=alone)))[len(alone)]
    return [note for note in row.footnotes if "than the others" in note]


def test_of_many_slow_ranks_the_worst_are_named_and_the_others_counted() -> None:
    (note,) = named((1.0,) * 9 + tuple(1 + 0.02 * number for number in range(1, 8)))
    first, *others = note.split(", ")
    assert first.startswith("slow ranks: rank 15 on node1 (CPU 15) takes 1")
    assert first.endswith(" % longer than the others when alone")
    assert [one.partition(")")[0] for one in others[:3]] == [f"rank {n} on node1 (CPU {n}" for n in (14, 13, 12)]
    assert others[3:] == ["and 3 others", "by 2 to 6 %"]


def test_slow_and_fast_ranks_are_one_note() -> None:
    """16 seats in steps of 2 %: each differs from the median of the others."""
    (note,) = named(tuple(1 + 0.02 * number for number in range(16)))
    first, second, *_ = note.removeprefix("slow and fast ranks: ").split(", ")
    assert first == "rank 15 on node1 (CPU 15) takes 14.0 % longer than the others when alone"
    assert second == "rank 0 on node1 (CPU 0) 13.9 % less"
    assert note.endswith(", and 12 others, by 2 to 11 %; the fast ranks wait")


def test_one_more_than_are_named_is_one_other() -> None:
    (note,) = named((1.0,) * 11 + (1.1,) * 5)
    assert note.endswith(", and 1 other, by 10 %")


def test_ranks_that_slow_more_when_all_run_are_one_note() -> None:
    """Seven of sixteen, by 10 to 16 %."""
    slowed = (0.1,) * 9 + tuple(0.11 + 0.001 * number for number in range(7))
    made = [
        one
        for number in range(3)
        for one in (
            record(point("each", 16, number), 0.1),
            record(point("together", 16, number), *slowed),
            record(point("exchange", 16, number), 0.13),
        )
    ]
    (note,) = [note for note in by_size(made)[16].footnotes if note.startswith("contention: ")]
    assert note == (
        "contention: rank 15 on node1 (CPU 15) loses 16.0 % more than the others when all run, "
        "rank 14 on node1 (CPU 14) 15.0 %, rank 13 on node1 (CPU 13) 14.0 %, rank 12 on node1 (CPU 12) 13.0 %, "
        "and 3 others, by 10 to 12 %"
    )
