"""Whether an exchange computes less than a plain loop does for as many samples. Pure.

Half of the work with a count of all samples looks like a perfect exchange. An honest exchange computes what the
plain loop computes at the same batch, so that caches favour neither. On CPUs the evidence is the CPU time of a
step, which does not grow by waiting; elsewhere it is the step's time, of which computing is a part. Nothing is
said of strategies whose ranks update some parameters or none: they compute less.
"""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.cell import Cell
from scaling.analysis.controls import Controls

# Of the plain loop's, in every round.
LEAST_PART = 0.85
# Of a step: CPU time below it is not that of computing (a scripted step sleeps).
LEAST_BUSY = 0.2


def judge(cell: Cell, controls: Controls) -> bool:
    """Tell a cell what its plain loops say of its work; returns whether that is new."""
    before, cell.less_work = cell.less_work, _said(cell, controls)
    return bool(before) != bool(cell.less_work)


def _said(cell: Cell, controls: Controls) -> str:
    on_cpu = cell.point.hardware.device == "cpu"
    alone = controls.baseline(cell.point)
    if not cell.updates_all or alone is None or "THROTTLED" in alone.whole.flags:
        return ""
    if not cell.devices <= alone.whole.devices:
        return ""
    parts = list(_of_cpu_time(cell, controls) if on_cpu else _of_step_time(cell, controls))
    if not parts or max(parts) >= LEAST_PART:
        return ""
    what = "CPU time of a step" if on_cpu else "time of a step"
    return (
        f"audit: the {what} is at most {100 * max(parts):.0f} % of the plain loop's in all rounds: it computes "
        "less than its samples take, or by other code than its baseline"
    )


def _of_cpu_time(cell: Cell, controls: Controls) -> Iterator[float]:
    """By round, over the lesser of plain loops alone and beside each other."""
    own = controls.times_alone(cell, cell.point.workload.batch_size)
    together = controls.together(cell.point)
    for number, cpu in cell.cpu.items():
        alone = own.get(number)
        if alone is None or alone.use is None or alone.use.run_s < LEAST_BUSY * alone.mean_s:
            continue
        beside = together.cpu.get(number) if together else None
        yield cpu.mean.run_s / min(alone.use.run_s, beside.mean.run_s if beside else alone.use.run_s)


def _of_step_time(cell: Cell, controls: Controls) -> Iterator[float]:
    """By round, over the fastest device alone."""
    own = controls.times_alone(cell, cell.point.workload.batch_size)
    for number, time in cell.times.items():
        if number in own:
            yield time.step_s / min(own[number].harmonic_s, *own[number].seats.values())
