"""How GPUs ran while measured windows did, over all ranks and rounds of a cell. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean

from scaling.analysis.clocks import at_work_mhz
from scaling.records.events import Finished
from scaling.records.point import Record
from scaling.records.run import PointRecord, RankRecord
from scaling.records.telemetry import Sample, Telemetry


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
