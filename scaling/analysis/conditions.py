"""What memory cost while a cell was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.records.run import PointRecord, RankRecord

# Parts of the time that are worth a note.
LEAST = 0.01
# Measured with glibc's heap given back after each step: 4,500 to 6,300 faults and 9 to 11 ms of kernel time.
FAULT_S = 2e-6
# What helps, and why faults are left where it was in use: 32 MiB is the largest buffer that glibc keeps.
MALLOC = "in CPU workers --malloc keep, the default, spares those of buffers up to 32 MiB"


def memory(records: Sequence[PointRecord]) -> Iterator[str]:
    """What faulting memory in costs, where it costs something."""
    told = [
        cpu for rank in _ranks(records) if (cpu := rank.telemetry.cpu) is not None and cpu.steps and cpu.wall_s
    ]
    if not told:
        return
    steps, wall_s = sum(cpu.steps for cpu in told), sum(cpu.wall_s for cpu in told)
    faults, kernel_s = sum(cpu.minor_faults for cpu in told), sum(cpu.kernel_s for cpu in told)
    if min(kernel_s, faults * FAULT_S) > LEAST * wall_s:
        yield (
            f"memory: {faults / steps:,.0f} minor faults per step, kernel time {100 * kernel_s / wall_s:.1f} % of "
            f"the step; {MALLOC}"
        )


def _ranks(records: Sequence[PointRecord]) -> list[RankRecord]:
    return [rank for record in records for rank in record.ranks]
