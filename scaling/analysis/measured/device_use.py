"""How GPUs ran while measured windows did, over all ranks and rounds of a cell. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from scaling.analysis.measured.step_time import StepTime
from scaling.records.events import Finished
from scaling.records.point import Record
from scaling.records.run import PointRecord, RankRecord
from scaling.records.telemetry import POWER_CAP, MachineEnergy, Sample, Telemetry

# ---------------------------------------------------------------- machine energy
#
# What a row's machines use beside their GPUs: processor packages and DRAM, by the kernel's counters. Pure.
#
# power J over s of each machine while its windows ran, the sum over the row's machines, mean over rounds
# J/sample power / (samples/s) of the round, mean over rounds
#
# Counters know no process. So a row has none where ranks share cores or machines, other programs disturbed them,
# or one of its machines was not read: a part would pass for the whole. Nor where a counter stood still, as some
# virtual machines' do.


class MachineUse(Record, frozen=True, kw_only=True):
    """Packages and DRAM of a row's machines, whole; None where their counters cannot be read, which `unreadable`
    explains."""

    power_w: float | None = None
    j_per_sample: float | None = None
    unreadable: str = ""


def machine_use(records: Iterable[PointRecord], times: Mapping[int, StepTime]) -> MachineUse | None:
    """Of the rounds that have a step time; None where nobody counts, or the machines are not theirs alone."""
    powers, energies, unreadable = [], [], ""
    for record in records:
        time = times.get(record.point.round)
        found = _by_host(record) if time is not None and _is_alone(record) else {}
        if time is None or not found.keys() >= _hosts(record):
            continue
        unreadable = unreadable or next((one.unreadable for one in found.values() if one.unreadable), "")
        watts = [one.joules / one.seconds for one in found.values() if one.joules and one.seconds > 0]
        if len(watts) == len(found):
            powers.append(sum(watts))
            energies.append(sum(watts) * time.step_s / record.point.global_batch_size)
    if powers:
        return MachineUse(power_w=fmean(powers), j_per_sample=fmean(energies))
    return MachineUse(unreadable=unreadable) if unreadable else None


def _is_alone(record: PointRecord) -> bool:
    """Whether nothing else had a part in what the counters saw; devices that sleep use nothing of theirs."""
    disturbed = any(warning.kind == "foreign-load" for warning in record.warnings)
    return not (record.oversubscribed or disturbed or record.point.hardware.device == "emulated")


def _by_host(record: PointRecord) -> dict[str, MachineEnergy]:
    """Each host's, read beside one child of it."""
    return {host: told.machine_energy for host, told in _domains(record) if told.machine_energy is not None}


def _hosts(record: PointRecord) -> set[str]:
    """Whose machines take part."""
    return {*record.hosts, *(host for host, _ in _domains(record))}


def _domains(record: PointRecord) -> Iterator[tuple[str, Telemetry]]:
    yield from ((helper.host, helper.telemetry) for helper in record.helpers)
    yield from ((rank.host, rank.telemetry) for rank in record.ranks)


# ---------------------------------------------------------------- device use

# ---------------------------------------------------------------- clocks
#
# How fast GPUs were clocked while windows were timed, and what lowered it. Pure.
#
# A card at its power limit lowers its clocks all the time, which is the normal state of many under load and no
# fault; heat and failing power are. Either way a row is comparable with its baseline where both ran at one
# clock.


# A row's mean clock may differ so much from its baseline's, as a fraction: NVIDIA's clocks have steps of 15 MHz.
TOLERANCE = 0.02


class Clocks(Record, frozen=True, kw_only=True):
    """Of all readings of busy GPUs: the mean SM clock, None where none tells; the same as a fraction of the
    highest that they could have; the share of readings at the power limit; what else lowered clocks, in any
    reading. `of_baseline` is the mean clock over that of the plain loops alone."""

    sm_mhz: float | None
    of_max: float | None
    power_limited: float
    throttled: tuple[str, ...] = ()
    of_baseline: float | None = None

    @property
    def differ(self) -> bool:
        """Whether the row and its baseline ran at different clocks."""
        return self.of_baseline is not None and abs(self.of_baseline - 1) > TOLERANCE


def clocks(records: Sequence[PointRecord]) -> Clocks | None:
    """What the GPUs of these records did; None where none was read."""
    read = [one for record in records for one in _telemetry(record)]
    samples = [sample for telemetry in read for sample in telemetry.samples]
    if not samples:
        return None
    busy = [sample for sample in samples if sample.utilisation_percent != 0]
    known = [clock_mhz for sample in samples if (clock_mhz := at_work_mhz(sample)) is not None]
    parts = [part for telemetry in read for part in _of_max(telemetry)]
    return Clocks(
        sm_mhz=fmean(known) if known else None,
        of_max=fmean(parts) if parts else None,
        power_limited=fmean(POWER_CAP in sample.throttle for sample in busy or samples),
        throttled=tuple(throttled(samples)),
    )


def at_work_mhz(sample: Sample) -> float | None:
    """The SM clock of a reading; None where it is not known, and of an idle GPU, which lowers it."""
    return None if sample.utilisation_percent == 0 else sample.sm_clock_mhz


def throttled(samples: Sequence[Sample]) -> list[str]:
    """What lowered clocks beside the power limit."""
    return sorted({reason for sample in samples for reason in sample.throttle} - {POWER_CAP})


def of_baseline(own: Clocks | None, baseline: Clocks | None) -> float | None:
    """The mean clock over the baseline's; None where either is unknown."""
    if own is None or baseline is None or not own.sm_mhz or not baseline.sm_mhz:
        return None
    return own.sm_mhz / baseline.sm_mhz


def describe(found: Clocks) -> str:
    """`SM clock 1410 MHz, 71 % of the highest, at the power limit in 97 % of readings`."""
    said = []
    if found.sm_mhz is not None:
        said.append(f"SM clock {found.sm_mhz:.0f} MHz")
    if found.of_max is not None:
        said.append(f"{found.of_max:.0%} of the highest".replace("%", " %"))
    if found.power_limited:
        said.append(f"at the power limit in {found.power_limited:.0%} of readings".replace("%", " %"))
    return ", ".join(said)


def difference(found: Clocks) -> str:
    """How a row's clock differs from its baseline's, for people; "" where it does not."""
    if found.of_baseline is None or not found.differ:
        return ""
    apart = f"{abs(found.of_baseline - 1):.1%}".replace("%", " %")
    which = "below" if found.of_baseline < 1 else "above"
    flattered = ", so that the efficiency is too good" if which == "above" else ""
    return f"{describe(found)}; the clock is {apart} {which} its baseline's{flattered}"


def _telemetry(record: PointRecord) -> Iterator[Telemetry]:
    """Of workers, and of helpers: they may compute too."""
    yield from (child.telemetry for child in record.ranks)
    yield from (child.telemetry for child in record.helpers)


def _of_max(telemetry: Telemetry) -> Iterator[float]:
    most_mhz = telemetry.max_sm_clock_mhz
    for sample in telemetry.samples:
        clock_mhz = at_work_mhz(sample)
        if most_mhz and clock_mhz is not None:
            yield clock_mhz / most_mhz


# ---------------------------------------------------------------- device use


class DeviceUse(Record, frozen=True, kw_only=True):
    """Means over devices and rounds, each device's over its readings; None where no device tells.

    Clocks are those of GPUs at work. `slowest_sm_clock_mhz` is the mean of the slowest device, `max_sm_clock_mhz`
    the highest reading of any. `peak_memory_bytes` is the most that a framework had in use on one device, else
    what NVML saw there. `samples_per_j` counts the energy of the devices alone; None unless each of them tells it
    in some round; `energy_is_integral` where a GPU has no counter of it and readings of its power stand for one.
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
        """The inverse."""
        return 1 / self.samples_per_j if self.samples_per_j else None


# A device of a cell: the round, the child that reads it, its number there.
Device = tuple[int, str, int | None]


def of(records: Sequence[PointRecord]) -> DeviceUse | None:
    """Of the rounds that ended well; None where no GPU was read."""
    well = [record for record in records if isinstance(record.outcome, Finished)]
    by_device: dict[Device, list[Sample]] = defaultdict(list)
    for record in well:
        for child, telemetry in _children(record):
            for sample in telemetry.samples:
                by_device[record.point.round, child, sample.device_index].append(sample)
    if not by_device:
        return None
    clocks = _means(by_device.values(), at_work_mhz)
    highest = [clock_mhz for found in by_device.values() for sample in found if (clock_mhz := at_work_mhz(sample))]
    return DeviceUse(
        sm_clock_mhz=_mean(clocks),
        slowest_sm_clock_mhz=min(clocks, default=None),
        max_sm_clock_mhz=max(highest, default=None),
        power_w=_mean(_means(by_device.values(), lambda sample: sample.power_w)),
        utilisation_percent=_mean(_means(by_device.values(), lambda sample: sample.utilisation_percent)),
        peak_memory_bytes=_peak_memory_bytes(well, by_device.values()),
        samples_per_j=_mean([found for record in well if (found := _samples_per_j(record)) is not None]),
        energy_is_integral=any(told.energy_is_integral for record in well for _, told in _children(record)),
    )


def _children(record: PointRecord) -> Iterator[tuple[str, Telemetry]]:
    """Workers, and the helpers that compute for their ranks."""
    yield from ((f"rank {rank.rank}", rank.telemetry) for rank in record.ranks)
    yield from ((helper.name, helper.telemetry) for helper in record.helpers)


def _means(devices: Iterable[Sequence[Sample]], of_sample: Callable[[Sample], float | None]) -> list[float]:
    """The mean of each device that tells it."""
    told = ([value for sample in found if (value := of_sample(sample)) is not None] for found in devices)
    return [fmean(values) for values in told if values]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _peak_memory_bytes(records: Iterable[PointRecord], devices: Iterable[Sequence[Sample]]) -> int | None:
    own = [rank.result.peak_memory_bytes for record in records for rank in record.ranks if rank.result]
    seen = [sample.memory_used_bytes for found in devices for sample in found if sample.memory_used_bytes]
    return max(own, default=0) or max(seen, default=None)


def _samples_per_j(record: PointRecord) -> float | None:
    """Of one round: all that was trained on while energy was counted, the uncounted step included."""
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
    return sum(map(_fed, record.ranks)) / sum(energy_j.values())


def _fed(rank: RankRecord) -> int:
    return sum(window.samples + window.uncounted_samples for window in (*rank.windows, *rank.disturbed))
