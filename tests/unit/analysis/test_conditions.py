"""What memory cost is said, with its size; and nothing where it cost nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.analyse import analyse
from scaling.records.point import Kind
from scaling.records.run import PointRecord
from scaling.records.telemetry import CpuTime, Telemetry, ThreadTime
from tests.support.scripted_records import by_size, point, record, sweep


def with_cpu(made: PointRecord, **changes: Any) -> PointRecord:
    """The same whose ranks ran all the time."""
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


def test_a_quiet_machine_says_nothing() -> None:
    assert by_size(map(with_cpu, sweep(0, 0.1, {2: 0.125})))[2].footnotes == ()
