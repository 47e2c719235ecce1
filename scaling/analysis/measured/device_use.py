"""Energy of machines; clocks, power and memory of GPUs; profiled steps and their traces; over ranks and rounds."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from operator import itemgetter
from statistics import fmean

import msgspec
from msgspec.structs import replace

from scaling.analysis.measured.step_time import StepTime, step_time
from scaling.analysis.statistics.intervals import known_mean
from scaling.records.events import Finished
from scaling.records.point import Record
from scaling.records.run import PointRecord
from scaling.records.telemetry import (
    POWER_CAP,
    TRACED,
    Collective,
    GpuTime,
    Kernels,
    MachineEnergy,
    Sample,
    Telemetry,
)
from scaling.text import percent

# ---------------------------------------------------------------- machine energy
#
#     power     J / s of each machine during its windows, summed over machines, mean over rounds
#     J/sample  power / (samples/s) of the round, mean over rounds
#
# The counters are per machine. So a row has no value if ranks share cores, other programs ran, or a machine has no
# counter or one that stands still (some virtual machines).


class MachineUse(Record, frozen=True, kw_only=True):
    """Power and energy of a row's processors and DRAM; None if `unreadable` says why."""

    power_w: float | None = None
    j_per_sample: float | None = None
    unreadable: str = ""


def machine_use(records: Iterable[PointRecord], times: Mapping[int, StepTime]) -> MachineUse | None:
    """Return the energy of the rounds with a step time; None without counters or with shared machines."""
    powers, energies, unreadable = [], [], ""
    for record in records:
        time = times.get(record.point.round)
        if time is None or not (found := _by_host(record)):
            continue
        unreadable = unreadable or next((one.unreadable for one in found.values() if one.unreadable), "")
        watts = [one.joules / one.seconds for one in found.values() if one.joules and one.seconds > 0]
        if len(watts) == len(found):
            powers.append(sum(watts))
            energies.append(sum(watts) * time.step_s / record.point.global_batch_size)
    if powers:
        return MachineUse(power_w=fmean(powers), j_per_sample=fmean(energies))
    return MachineUse(unreadable=unreadable) if unreadable else None


def _by_host(record: PointRecord) -> dict[str, MachineEnergy]:
    """The counters of all its hosts; {} if one has none, or something else used the machines."""
    disturbed = any(warning.kind == "foreign-load" for warning in record.warnings)
    # Emulated devices sleep and use nothing.
    if record.oversubscribed or disturbed or record.point.hardware.device == "emulated":
        return {}
    # The counters of a host are with one of its children.
    known = [(one.host, one.telemetry.machine_energy) for one in record.children]
    found = {host: energy for host, energy in known if energy is not None}
    return found if found.keys() >= {*record.hosts, *(one.host for one in record.children)} else {}


# ---------------------------------------------------------------- clocks
#
# A card at its power limit lowers its clocks: that is normal under load, while heat and failing power are faults.
# A row is comparable with its baseline if both ran at one clock.

# Greatest relative difference of a row's clock from its baseline's. NVIDIA's clocks have steps of 15 MHz.
TOLERANCE = 0.02


class Clocks(Record, frozen=True, kw_only=True):
    """Clocks over all readings of busy GPUs: mean SM clock, its fraction of the highest, and of the baseline's.

    `power_limited` is the share of readings at the power limit; `throttled` are other reasons in any reading.
    """

    sm_mhz: float | None
    of_max: float | None
    power_limited: float
    throttled: tuple[str, ...] = ()
    of_baseline: float | None = None

    @property
    def differ(self) -> bool:
        return self.of_baseline is not None and abs(self.of_baseline - 1) > TOLERANCE


def clocks(records: Iterable[PointRecord]) -> Clocks | None:
    """Return the clocks of these records' GPUs; None without readings."""
    told = (child.telemetry for record in records for child in record.children)
    read = [(sample, of) for of in told for sample in of.samples]
    if not read:
        return None
    samples = [sample for sample, _ in read]
    busy = [sample for sample in samples if sample.utilisation_percent != 0]
    parts = [
        clock_mhz / of.max_sm_clock_mhz
        for sample, of in read
        if of.max_sm_clock_mhz and (clock_mhz := at_work_mhz(sample)) is not None
    ]
    return Clocks(
        sm_mhz=known_mean(map(at_work_mhz, samples)),
        of_max=known_mean(parts),
        power_limited=fmean(POWER_CAP in sample.throttle for sample in busy or samples),
        throttled=tuple(throttled(samples)),
    )


def at_work_mhz(sample: Sample) -> float | None:
    """Return the SM clock of a reading; None if unknown or the GPU was idle, which lowers it."""
    return None if sample.utilisation_percent == 0 else sample.sm_clock_mhz


def throttled(samples: Sequence[Sample]) -> list[str]:
    """Return the reasons other than the power limit that lowered clocks."""
    return sorted({reason for sample in samples for reason in sample.throttle} - {POWER_CAP})


def beside_baseline(own: Clocks | None, baseline: Clocks | None) -> Clocks | None:
    """Return the clocks with their fraction of the baseline's, if both are known."""
    if own is None or baseline is None or not own.sm_mhz or not baseline.sm_mhz:
        return own
    return replace(own, of_baseline=own.sm_mhz / baseline.sm_mhz)


def describe(found: Clocks) -> str:
    """Describe clocks: `SM clock 1410 MHz, 71 % of the highest, at the power limit in 97 % of readings`."""
    said = (
        f"SM clock {found.sm_mhz:.0f} MHz" if found.sm_mhz is not None else "",
        f"{percent(found.of_max)} of the highest" if found.of_max is not None else "",
        f"at the power limit in {percent(found.power_limited)} of readings" if found.power_limited else "",
    )
    return ", ".join(filter(None, said))


def difference(found: Clocks) -> str:
    """Describe how a row's clock differs from its baseline's; "" if it does not."""
    if found.of_baseline is None or not found.differ:
        return ""
    apart = percent(abs(found.of_baseline - 1), 1)
    which = "below" if found.of_baseline < 1 else "above"
    flattered = ", so efficiency looks too good" if which == "above" else ""
    return f"{describe(found)}; the clock is {apart} {which} its baseline's{flattered}"


# ---------------------------------------------------------------- device use


class DeviceUse(Record, frozen=True, kw_only=True):
    """Means over devices and rounds; None if no device has a value. Clocks are of GPUs at work.

    slowest_sm_clock_mhz  mean of the slowest device; max_: highest reading
    peak_memory_bytes     most that a framework used on a device, or else that NVML saw
    samples_per_j         energy of devices alone; None unless every device has it in some round
    energy_is_integral    some GPU has no energy counter, so power readings are integrated
    """

    sm_clock_mhz: float | None = None
    slowest_sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    power_w: float | None = None
    utilisation_percent: float | None = None
    peak_memory_bytes: int | None = None
    samples_per_j: float | None = None
    energy_is_integral: bool = False

    @property
    def j_per_sample(self) -> float | None:
        return 1 / self.samples_per_j if self.samples_per_j else None


def of(records: Sequence[PointRecord]) -> DeviceUse | None:
    """Return the device use of the finished rounds; None if no GPU was read."""
    well = [record for record in records if isinstance(record.outcome, Finished)]
    # By round, the child that reads the device, and its index there.
    by_device: dict[tuple[int, str, int | None], list[Sample]] = defaultdict(list)
    for record in well:
        for child, telemetry in _children(record):
            for sample in telemetry.samples:
                by_device[record.point.round, child, sample.device_index].append(sample)
    if not by_device:
        return None

    def means(of_sample: Callable[[Sample], float | None]) -> list[float]:
        return [mean for of in by_device.values() if (mean := known_mean(map(of_sample, of))) is not None]

    clocks = means(at_work_mhz)
    own = [rank.result.peak_memory_bytes for record in well for rank in record.ranks if rank.result]
    samples = [sample for found in by_device.values() for sample in found]
    return DeviceUse(
        sm_clock_mhz=known_mean(clocks),
        slowest_sm_clock_mhz=min(clocks, default=None),
        max_sm_clock_mhz=max(filter(None, map(at_work_mhz, samples)), default=None),
        power_w=known_mean(means(lambda sample: sample.power_w)),
        utilisation_percent=known_mean(means(lambda sample: sample.utilisation_percent)),
        peak_memory_bytes=max(own, default=0)
        or max(filter(None, (sample.memory_used_bytes for sample in samples)), default=None),
        samples_per_j=known_mean(map(_samples_per_j, well)),
        energy_is_integral=any(one.telemetry.energy_is_integral for record in well for one in record.children),
    )


def _children(record: PointRecord) -> Iterator[tuple[str, Telemetry]]:
    yield from ((f"rank {rank.rank}", rank.telemetry) for rank in record.ranks)
    yield from ((helper.name, helper.telemetry) for helper in record.helpers)


def _samples_per_j(record: PointRecord) -> float | None:
    """Counts all samples trained while energy was counted, the uncounted step included."""
    told = [(child, telemetry) for child, telemetry in _children(record) if telemetry.energy_j is not None]
    devices = sum(len({sample.device_index for sample in telemetry.samples}) for _, telemetry in told)
    # Ranks that share a GPU read one counter.
    gpus = {f"rank {rank}": uuid for rank, uuid in enumerate(record.gpus)}
    energy_j: dict[str, float] = defaultdict(float)
    for child, telemetry in told:
        name = gpus.get(child, child) if len(record.ranks) == len(gpus) else child
        energy_j[name] = max(energy_j[name], telemetry.energy_j or 0.0)
    if devices != record.point.world_size or sum(energy_j.values()) <= 0:
        return None
    windows = [window for rank in record.ranks for window in (*rank.windows, *rank.disturbed)]
    return sum(window.samples + window.uncounted_samples for window in windows) / sum(energy_j.values())


# ---------------------------------------------------------------- traced steps
#
# The profiled steps of a cell: the cost of profiling, and the split of a step on the GPU.
#
# Seconds per step, means over ranks, against the traced steps of the plain loop on as many devices (`alone`):
#
#     computing      kernels of alone, with their time there
#     slowed         extra time of the same kernels, by name, for as many runs as both have
#     other kernels  the rest of computing: the wrapper's copies, other algorithms of a library
#     transfer       exposed time of a collective, at most its shortest run of all ranks (the last does not wait)
#     waiting        exposed time of a collective beyond that
#     idle, host     idle time in alone; idle time beyond it
#
# They add up to the traced step. No clocks of two ranks are compared. The hidden part of a collective is taken
# to be its beginning. The union of intervals is that of Holistic Trace Analysis (https://hta.readthedocs.io).


# If profiling slows a step by more, only shares of the step are valid.
MOST_SLOWED = 0.03


class GpuSplit(Record, frozen=True, kw_only=True):
    """Seconds of a traced step, means over ranks, which add up to it; None if unknown.

    Without `alone`, `compute_s` and `idle_s` are the exchange's. Without `waiting_s`, `transfer_s` is all exposed
    time.
    """

    compute_s: float
    slowed_s: float | None
    other_s: float | None
    transfer_s: float
    waiting_s: float | None
    idle_s: float
    host_s: float | None


class Traced(Record, frozen=True, kw_only=True):
    """The longest rank's step with and without profilers, and patterns of the trace files below the run's folder.

    `step_s` is None if a rank has no profile.
    """

    step_s: float | None
    untraced_s: float
    files: tuple[str, ...] = ()
    gpu: GpuSplit | None = None

    @property
    def slowed(self) -> float | None:
        return None if self.step_s is None else self.step_s / self.untraced_s - 1

    @property
    def is_faithful(self) -> bool:
        """Whether profiled seconds are valid for the measured steps."""
        return self.slowed is not None and abs(self.slowed) <= MOST_SLOWED


def traced(records: Iterable[PointRecord]) -> Traced | None:
    """Return the profiled steps of the first record with any; `gpu` is not set yet."""
    for record in records:
        if not any(rank.traced for rank in record.ranks):  # a run without --trace
            continue
        ranks = tuple(replace(rank, windows=rank.traced) for rank in record.ranks)
        of_windows, untraced = step_time(replace(record, ranks=ranks)), step_time(record)
        if untraced is not None:
            step_s = of_windows.step_s if of_windows else None
            names = (f"{name.rpartition(f'.{one.rank}.')[0]}.*" for one in ranks for name in one.traces)
            return Traced(step_s=step_s, untraced_s=untraced.step_s, files=tuple(dict.fromkeys(names)))
    return None


def gpu_times(records: Iterable[PointRecord]) -> tuple[GpuTime, ...]:
    """Return the GPU times by rank of the first record in which all ranks have them."""
    for record in records:
        found = tuple(rank.gpu for rank in record.ranks if rank.gpu is not None)
        if found and len(found) == len(record.ranks):
            return found
    return ()


# ---------------------------------------------------------------- on the GPU


def split(ranks: Sequence[GpuTime], alone: Sequence[GpuTime]) -> GpuSplit | None:
    """Split the traced step of an exchange; `alone` is the plain loop's, empty without a trace."""
    if not ranks:
        return None
    waiting_s = _waiting(ranks)
    compute_s, idle_s, exposed_s = (_step_s(ranks, name) for name in ("compute_s", "idle_s", "exposed_s"))
    transfer_s = exposed_s - (waiting_s or 0.0)
    if not alone:
        return GpuSplit(
            compute_s=compute_s, slowed_s=None, other_s=None, transfer_s=transfer_s, waiting_s=waiting_s,
            idle_s=idle_s, host_s=None,
        )  # fmt: skip
    # Pair the same devices if each has a trace of the plain loop.
    pairs = zip(ranks, alone if len(alone) == len(ranks) else [alone[0]] * len(ranks), strict=True)
    slowed_s = fmean(_slowed(beside, by_itself) for beside, by_itself in pairs)
    alone_s, idle_alone_s = _step_s(alone, "compute_s"), _step_s(alone, "idle_s")
    return GpuSplit(
        compute_s=alone_s, slowed_s=slowed_s, other_s=compute_s - alone_s - slowed_s, transfer_s=transfer_s,
        waiting_s=waiting_s, idle_s=idle_alone_s, host_s=idle_s - idle_alone_s,
    )  # fmt: skip


def _step_s(ranks: Sequence[GpuTime], part: str) -> float:
    """Seconds of a step, mean over ranks."""
    return fmean(getattr(one, part) / one.steps for one in ranks)


def _slowed(beside: GpuTime, alone: GpuTime) -> float:
    of_alone = {one.name: one for one in alone.kernels}
    return sum(
        (one.run_s / one.count - other.run_s / other.count)
        * min(one.count / beside.steps, other.count / alone.steps)
        for one in beside.kernels
        if (other := of_alone.get(one.name)) is not None
    )


def _waiting(ranks: Sequence[GpuTime]) -> float | None:
    """Exposed seconds per step beyond each collective's shortest run; None if ranks' collectives differ."""
    if len({tuple(each.name for each in one.collectives) for one in ranks}) > 1:
        return None
    waited_s = 0.0
    for same in zip(*(one.collectives for one in ranks), strict=True):
        shortest_s = min(each.run_s for each in same)
        waited_s += sum(max(0.0, each.exposed_s - shortest_s) for each in same)
    return waited_s / sum(one.steps for one in ranks)


# ---------------------------------------------------------------- traces of torch.profiler
#
# In the span of the traced steps, each moment counts once (union of intervals on the GPU):
#
#     span = computing + communication that no computing hides + idle
#
# Communication is the kernels of NCCL, RCCL and MSCCL. Computing is all other kernels, copies and fills. Fields
# are those of Kineto's Chrome trace events: `ts` and `dur` are in microseconds.

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
    try:
        events = msgspec.json.decode(trace, type=Trace).trace_events
    except UnicodeDecodeError as error:  # msgspec does not catch it
        raise msgspec.DecodeError(str(error)) from None
    spans = (event.interval for event in events if event.name == TRACED and event.cat == "user_annotation")
    first, end = next(spans, (0.0, 0.0))
    # The device is idle at both ends of the span.
    on_gpu = [event for event in events if event.cat in ON_GPU and first <= event.interval[0] < end]
    if not on_gpu:
        return None
    on_gpu.sort(key=lambda event: event.interval)
    computing = [event for event in on_gpu if not event.communicates]
    busy = _union(event.interval for event in computing)
    collectives = tuple(_collectives([event for event in on_gpu if event.communicates], busy))
    durations: dict[str, list[float]] = defaultdict(list)
    for event in computing:
        durations[event.name].append(event.dur)
    span_s, compute_s = MICRO * (end - first), MICRO * sum(until - begin for begin, until in busy)
    return GpuTime(
        steps=steps,
        span_s=span_s,
        compute_s=compute_s,
        idle_s=span_s - compute_s - sum(collective.exposed_s for collective in collectives),
        kernels=tuple(
            Kernels(name=name, count=len(each), run_s=MICRO * sum(each)) for name, each in durations.items()
        ),
        collectives=collectives,
    )


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals that overlap or touch; they are sorted."""
    joined: list[Interval] = []
    for begin, end in intervals:
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def _collectives(events: Iterable[Event], busy: Sequence[Interval]) -> Iterator[Collective]:
    """In order of start, each with the time that neither computing nor an earlier one covers. `busy` is sorted and
    may have 100,000 intervals."""
    covered_until = -inf
    for event in events:
        begin, end = event.interval
        begin, covered_until = min(max(begin, covered_until), end), max(end, covered_until)
        hidden = 0.0
        for number in range(bisect_right(busy, begin, key=itemgetter(1)), len(busy)):
            first, last = busy[number]
            if first >= end:
                break
            hidden += min(last, end) - max(first, begin)
        exposed_us = end - begin - hidden
        yield Collective(name=event.name, run_s=MICRO * event.dur, exposed_s=MICRO * exposed_us)
