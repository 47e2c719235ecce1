"""What memory cost is said, with its size; and nothing where it cost nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import analyse
from scaling.records.events import Finished
from scaling.records.point import Kind
from scaling.records.run import HelperRecord, PointRecord
from scaling.records.telemetry import CpuTime, Telemetry, ThreadTime
from tests.support.scripted_records import by_one_worker, by_size, point, record, sweep


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
def test_what_costs_more_than_a_hundredth_is_told(
    kind: Kind, kernel_s: float, minor_faults: int, told: bool
) -> None:
    records = [with_cpu(one, kernel_s=kernel_s, minor_faults=minor_faults) for one in sweep(0, 0.1, {1: 0.1})]
    found = analyse(records)
    said = found.rows[0].footnotes if kind == "exchange" else found.baselines[0].footnotes
    assert [note for note in said if note.startswith("memory: ")] == [
        "memory: 550 minor faults per step, kernel time 1.1 % of the step; in CPU workers --malloc keep, the "
        "default, spares those of buffers up to 32 MiB"
    ] * told


def test_kernel_time_that_faults_explain_in_part_is_not_all_called_theirs() -> None:
    """2.2 of 20 %: the rest may be what sockets take."""
    made = with_cpu(record(point("exchange"), 0.1), kernel_s=0.6, minor_faults=33_000)
    assert "faults per step, kernel time 20.0 % of the step, 2.2 % explained by them; in CPU" in notes(made)[-1]


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
        "of the step is the kernel's time, of which 40 minor faults per step explain 0.1 % as single pages; the "
        "rest is of huge pages or other calls"
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
