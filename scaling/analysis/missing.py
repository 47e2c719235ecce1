"""What the split of a row's loss had to do without: controls, and CPU time. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis.controls import Controls
from scaling.analysis.rounds import Round
from scaling.records.point import Kind, Point

# What a missing control leaves inside the rest.
LEFT_OVER = {
    "solo": "contention and small batch",
    "together": "contention, straggling and exposed communication",
    "comm": "exposed communication",
}


def missing_controls(point: Point, measured: Sequence[Round], controls: Controls) -> tuple[str, ...]:
    """Say which controls the split had to do without, and which CPU time; a single device has none to miss, and
    where a round tells CPU time `comm` is not needed."""
    if point.world_size == 1:
        return ()
    kinds: dict[Kind, int] = {
        "solo": sum(one.alone is None for one in measured),
        "together": sum(one.together is None for one in measured),
        "comm": 0 if any(one.grown is not None for one in measured) else sum(one.needs_comm for one in measured),
    }
    missing = (_missing(kind, count, point, measured, controls) for kind, count in kinds.items() if count)
    return (*missing, *_not_by_cpu(measured), *_not_held(point, measured, controls))


def _not_by_cpu(measured: Sequence[Round]) -> Iterator[str]:
    """Why the loss is not split by CPU time, or by that of fewer rounds, where some of it is known."""
    whose = [one.untold_cpu for one in measured if one.untold_cpu]
    if not whose:
        return
    if any(one.grown is not None for one in measured):
        count = f"{len(whose)} of {len(measured)} rounds"
        yield f"no CPU time {whose[0]} in {count}; from the others: exchange's CPU and waiting"
    else:
        yield f"no CPU time {whose[0]}: the loss is split without, into exposed communication and the rest"


def _not_held(point: Point, measured: Sequence[Round], controls: Controls) -> Iterator[str]:
    """Why waiting for data is not told, or by fewer rounds, where that was tried."""
    count = sum(one.data is None for one in measured)
    if not count or not (cause := controls.why_missing("held", point, point.workload.batch_size)):
        return
    if count == len(measured):
        yield f"no held control (failed: {cause}): what ranks wait for data counts as contention"
    else:
        yield (
            f"no held control in {count} of {len(measured)} rounds (failed: {cause}); from the others: what ranks "
            "wait for data"
        )


def _missing(kind: Kind, count: int, point: Point, measured: Sequence[Round], controls: Controls) -> str:
    cause = controls.why_missing(kind, point, point.workload.batch_size)
    failed = f" (failed: {cause})" if cause else ""
    is_async = kind == "together" and not measured[0].synchronous
    left = "contention and exposed communication" if is_async else LEFT_OVER[kind]
    if count == len(measured):
        return f"no {kind} control{failed}; counted in the rest: {left}"
    return f"no {kind} control in {count} of {len(measured)} rounds{failed}; from the others: {left}"
