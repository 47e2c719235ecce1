"""Energy of machines; clocks, power and memory of GPUs; profiled steps; over the ranks and rounds of a cell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from msgspec.structs import replace

from scaling.analysis.measured.step_time import StepTime, step_time
from scaling.analysis.statistics.intervals import known_mean
from scaling.records.events import Finished
from scaling.records.point import Record
from scaling.records.run import HelperRecord, PointRecord, RankRecord
from scaling.records.telemetry import POWER_CAP, GpuTime, MachineEnergy, Sample, Telemetry
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
    children: tuple[HelperRecord | RankRecord, ...] = (*record.helpers, *record.ranks)
    found = {one.host: energy for one in children if (energy := one.telemetry.machine_energy) is not None}
    return found if found.keys() >= {*record.hosts, *(one.host for one in children)} else {}


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


def clocks(records: Sequence[PointRecord]) -> Clocks | None:
    """Return the clocks of these records' GPUs; None without readings."""
    read = [told for record in records for _, told in _children(record)]  # helpers may compute
    samples = [sample for telemetry in read for sample in telemetry.samples]
    if not samples:
        return None
    busy = [sample for sample in samples if sample.utilisation_percent != 0]
    parts = [
        clock_mhz / one.max_sm_clock_mhz
        for one in read
        for sample in one.samples
        if one.max_sm_clock_mhz and (clock_mhz := at_work_mhz(sample)) is not None
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


def of_baseline(own: Clocks | None, baseline: Clocks | None) -> float | None:
    """Return the mean clock over the baseline's; None if either is unknown."""
    if own is None or baseline is None or not own.sm_mhz or not baseline.sm_mhz:
        return None
    return own.sm_mhz / baseline.sm_mhz


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


# Round, name of the child that reads the device, and its index there.
Device = tuple[int, str, int | None]


def of(records: Sequence[PointRecord]) -> DeviceUse | None:
    """Return the device use of the finished rounds; None if no GPU was read."""
    well = [record for record in records if isinstance(record.outcome, Finished)]
    by_device: dict[Device, list[Sample]] = defaultdict(list)
    for record in well:
        for child, telemetry in _children(record):
            for sample in telemetry.samples:
                by_device[record.point.round, child, sample.device_index].append(sample)
    if not by_device:
        return None
    clocks = _means(by_device.values(), at_work_mhz)
    own = [rank.result.peak_memory_bytes for record in well for rank in record.ranks if rank.result]
    samples = [sample for found in by_device.values() for sample in found]
    seen = [sample.memory_used_bytes for sample in samples if sample.memory_used_bytes]
    highest = [clock_mhz for sample in samples if (clock_mhz := at_work_mhz(sample))]
    return DeviceUse(
        sm_clock_mhz=known_mean(clocks),
        slowest_sm_clock_mhz=min(clocks, default=None),
        max_sm_clock_mhz=max(highest, default=None),
        power_w=known_mean(_means(by_device.values(), lambda sample: sample.power_w)),
        utilisation_percent=known_mean(_means(by_device.values(), lambda sample: sample.utilisation_percent)),
        peak_memory_bytes=max(own, default=0) or max(seen, default=None),
        samples_per_j=known_mean(map(_samples_per_j, well)),
        energy_is_integral=any(told.energy_is_integral for record in well for _, told in _children(record)),
    )


def _children(record: PointRecord) -> Iterator[tuple[str, Telemetry]]:
    yield from ((f"rank {rank.rank}", rank.telemetry) for rank in record.ranks)
    yield from ((helper.name, helper.telemetry) for helper in record.helpers)


def _means(devices: Iterable[Sequence[Sample]], of_sample: Callable[[Sample], float | None]) -> list[float]:
    return [mean for found in devices if (mean := known_mean(map(of_sample, found))) is not None]


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
    compute_s, idle_s, exposed_s = _steps_s(ranks)
    whole = GpuSplit(
        compute_s=compute_s, slowed_s=None, other_s=None, transfer_s=exposed_s - (waiting_s or 0.0),
        waiting_s=waiting_s, idle_s=idle_s, host_s=None,
    )  # fmt: skip
    if not alone:
        return whole
    # Pair the same devices if each has a trace of the plain loop.
    pairs = zip(ranks, alone if len(alone) == len(ranks) else [alone[0]] * len(ranks), strict=True)
    slowed_s = fmean(_slowed(beside, by_itself) for beside, by_itself in pairs)
    alone_s, idle_alone_s, _ = _steps_s(alone)
    other_s, host_s = compute_s - alone_s - slowed_s, idle_s - idle_alone_s
    return replace(
        whole, compute_s=alone_s, slowed_s=slowed_s, other_s=other_s, idle_s=idle_alone_s, host_s=host_s
    )


def _steps_s(ranks: Sequence[GpuTime]) -> tuple[float, float, float]:
    """Seconds of a step, means over ranks: computing, idle, exposed communication."""
    by_rank = [(one.compute_s / one.steps, one.idle_s / one.steps, one.exposed_s / one.steps) for one in ranks]
    compute_s, idle_s, exposed_s = map(fmean, zip(*by_rank, strict=True))
    return compute_s, idle_s, exposed_s


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
