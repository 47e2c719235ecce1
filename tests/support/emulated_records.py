"""A run on emulated devices, as the clock of a machine showed it that does all more slowly."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from scaling.records.run import Header, PointRecord
from scaling.records.telemetry import Telemetry
from tests.support.scripted_records import header, point, record

STEP_S = 0.1
EMULATED: dict[str, Any] = {
    "device": "emulated", "profile": "p100", "model": "resnet50", "data": "synthetic", "batch_size": 64,
}  # fmt: skip


def emulated_run(dilate: float = 4.0, **changes: Any) -> tuple[Header, list[PointRecord]]:
    """A cluster on which 2 devices lose a tenth, as the clock of a machine `dilate` times as slow showed it."""
    fields = {**EMULATED, "shrink": 10.0, "dilate": dilate, **changes}
    records = []
    for number in range(2):
        drift = 1 + number / 1000
        for kind, n, step_s in (
            ("solo", 1, STEP_S), ("exchange", 1, STEP_S), ("exchange", 2, STEP_S / 0.9), ("together", 2, STEP_S),
            ("comm", 2, STEP_S / 2),
        ):  # fmt: skip
            made = record(point(kind, n, number, **fields), step_s * dilate * drift)
            ranks = tuple(
                replace(rank, cpus=(), telemetry=Telemetry(machine_cpu_percent=30.0 + rank.rank))
                for rank in made.ranks
            )
            records.append(replace(made, ranks=ranks))
    config = {"rounds": 2, "device": "emulated:p100", "shrink": 10.0, "dilate": dilate}
    return header(device="emulated", config=config, emulation="Tesla P100, computing nothing"), records
