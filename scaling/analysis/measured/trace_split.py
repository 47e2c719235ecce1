"""From a trace of torch.profiler to what the rank's GPU did in the traced steps.

In the span of the traced steps, each moment counts once (union of intervals on the GPU):

    span = computing + communication that no computing hides + idle

Communication is the kernels of NCCL, RCCL and MSCCL. Computing is all other kernels, copies and fills. A
collective's kernel also waits for other ranks: `device_use.py` separates the two. Fields are those of Kineto's
Chrome trace events: `ts` and `dur` are in microseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

import msgspec

from scaling.records.point import Record
from scaling.records.telemetry import TRACED, Collective, GpuTime, Kernels

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
# Parts of kernel names: NCCL and RCCL; MSCCL and MSCCL++, which RCCL uses on some GPUs.
COMMUNICATION = ("nccl", "msccl")
MICRO = 1e-6

# Begin and end, in microseconds.
Interval = tuple[float, float]


class Event(Record, frozen=True, kw_only=True):
    name: str = ""
    cat: str = ""
    ts: float | str = 0.0
    dur: float = 0.0

    @property
    def interval(self) -> Interval:
        """Begin and end. Raises msgspec.DecodeError if `ts` is no number."""
        try:
            begin = float(self.ts)
        except ValueError:
            raise msgspec.DecodeError(f"`ts` of {self.name!r} is no number: {self.ts!r}") from None
        return begin, begin + self.dur

    @property
    def communicates(self) -> bool:
        name = self.name.lower()
        return self.cat == "kernel" and any(library in name for library in COMMUNICATION)


class Trace(Record, frozen=True, kw_only=True, rename="camel"):
    trace_events: tuple[Event, ...]


def gpu_time(trace: bytes, steps: int) -> GpuTime | None:
    """Return what the GPU did in the `steps` traced steps; None without GPU events. Raises msgspec.DecodeError."""
    events = _events(trace)
    spans = [event.interval for event in events if event.name == TRACED and event.cat == "user_annotation"]
    if not spans:
        return None
    on_gpu = sorted(
        (event for event in events if event.cat in ON_GPU and _inside(event.interval, spans[0])),
        key=lambda event: event.interval,
    )
    return _gpu_time(on_gpu, spans[0], steps) if on_gpu else None


def _events(trace: bytes) -> tuple[Event, ...]:
    try:
        return msgspec.json.decode(trace, type=Trace).trace_events
    except UnicodeDecodeError as error:  # msgspec does not catch it
        raise msgspec.DecodeError(str(error)) from None


def _inside(interval: Interval, span: Interval) -> bool:
    """Checks only the begin: the device is idle at both ends of the span."""
    return span[0] <= interval[0] < span[1]


def _gpu_time(events: Sequence[Event], span: Interval, steps: int) -> GpuTime:
    computing = [event for event in events if not event.communicates]
    busy = union(event.interval for event in computing)
    collectives = tuple(_collectives([event for event in events if event.communicates], busy))
    span_s, compute_s = MICRO * (span[1] - span[0]), MICRO * length(busy)
    exposed_s = sum(collective.exposed_s for collective in collectives)
    return GpuTime(
        steps=steps,
        span_s=span_s,
        compute_s=compute_s,
        idle_s=span_s - compute_s - exposed_s,
        kernels=_kernels(computing),
        collectives=collectives,
    )


def _collectives(events: Iterable[Event], busy: Sequence[Interval]) -> Iterator[Collective]:
    """In order of start, each with the time that neither computing nor an earlier one covers."""
    covered_until = -math.inf
    for event in events:
        begin, end = event.interval
        begin, covered_until = min(max(begin, covered_until), end), max(end, covered_until)
        exposed_us = end - begin - _hidden(begin, end, busy)
        yield Collective(name=event.name, run_s=MICRO * event.dur, exposed_s=MICRO * exposed_us)


def _hidden(begin: float, end: float, busy: Sequence[Interval]) -> float:
    """`busy` is sorted and may have 100,000 intervals."""
    hidden = 0.0
    for number in range(bisect_right(busy, begin, key=itemgetter(1)), len(busy)):
        first, last = busy[number]
        if first >= end:
            break
        hidden += min(last, end) - max(first, begin)
    return hidden


def _kernels(events: Iterable[Event]) -> tuple[Kernels, ...]:
    found: dict[str, list[float]] = {}
    for event in events:
        found.setdefault(event.name, []).append(event.dur)
    return tuple(
        Kernels(name=name, count=len(durations), run_s=MICRO * sum(durations)) for name, durations in found.items()
    )


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals that overlap or touch; return them in order."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def length(intervals: Iterable[Interval]) -> float:
    """Return the total length of intervals that do not overlap."""
    return sum(end - begin for begin, end in intervals)
