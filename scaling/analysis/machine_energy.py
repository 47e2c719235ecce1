"""What a row's machines use beside their GPUs: processor packages and DRAM, by the kernel's counters. Pure.

    power       J over s of each machine while its windows ran, the sum over the row's machines, mean over rounds
    J/sample    power / (samples/s) of the round, mean over rounds

Counters know no process. So a row has none where ranks share cores or machines, other programs disturbed them, or
one of its machines was not read: a part would pass for the whole. Nor where a counter stood still, as some virtual
machines' do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean

from scaling.analysis.step_time import StepTime
from scaling.records.point import Record
from scaling.records.run import PointRecord
from scaling.records.telemetry import MachineEnergy, Telemetry


class MachineUse(Record, frozen=True, kw_only=True):
    """Packages and DRAM of a row's machines, whole; None where their counters cannot be read, which `unreadable`
    explains."""

    power_w: float | None = None
    j_per_sample: float | None = None
    unreadable: str = ""


def of(records: Iterable[PointRecord], times: Mapping[int, StepTime]) -> MachineUse | None:
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
    return {host: told.machine_energy for host, told in _children(record) if told.machine_energy is not None}


def _hosts(record: PointRecord) -> set[str]:
    """Whose machines take part."""
    return {*record.hosts, *(host for host, _ in _children(record))}


def _children(record: PointRecord) -> Iterator[tuple[str, Telemetry]]:
    yield from ((helper.host, helper.telemetry) for helper in record.helpers)
    yield from ((rank.host, rank.telemetry) for rank in record.ranks)
