"""What the devices of the headline row did while windows ran: GPUs over time, CPUs by rank. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean

from scaling.records.run import PointRecord
from scaling.records.telemetry import Sample
from scaling.report.figures.parts import Figure, Reading, Strip, Strips, Table, stamps
from scaling.report.headline import headline
from scaling.report.material import Material

# Readings of all GPUs are joined in so many steps of time.
STEPS = 120
_OF_GPUS: tuple[tuple[str, Callable[[Sample], float | None]], ...] = (
    ("power, W", lambda sample: sample.power_w),
    ("SM clock, MHz", lambda sample: sample.sm_clock_mhz),
    ("temperature, °C", lambda sample: sample.temperature_c),
    ("busy, %", lambda sample: sample.utilisation_percent),
)


def devices(material: Material) -> Iterator[Figure]:
    """GPUs' power, clock, temperature and use; without GPUs the CPU that each rank used."""
    row = headline(material.rows)
    if row is None or not row.rounds:
        return
    records = material.cell(row).records
    strips, across = _gpus(records), "s of measured windows, rounds joined"
    if not strips:
        strips, across = _cpus(records), "rank"
    if strips:
        yield Figure(
            name="devices",
            title=f"Devices while N={row.world_size} was measured",
            says=f"Lowest, mean and highest: {'; '.join(map(_said, strips))}",
            body=Strips(across=across, strips=tuple(strips)),
            table=Table(("quantity", "lowest", "mean", "highest"), tuple(map(_line, strips))),
            stamps=stamps(set(row.flags)),
        )


def _gpus(records: Iterable[PointRecord]) -> list[Strip]:
    """Over the time since each round's first reading, rounds one after the other."""
    samples: list[tuple[float, Sample]] = []
    past_s = 0.0
    for record in records:
        found = [sample for rank in record.ranks for sample in rank.telemetry.samples]
        found += [sample for helper in record.helpers for sample in helper.telemetry.samples]
        if found:
            first_s = min(sample.unix_s for sample in found)
            samples += [(past_s + sample.unix_s - first_s, sample) for sample in found]
            past_s += max(sample.unix_s for sample in found) - first_s + 1.0
    made = (Strip(title=title, readings=tuple(_readings(samples, of))) for title, of in _OF_GPUS)
    return [strip for strip in made if strip.readings]


def _readings(samples: Sequence[tuple[float, Sample]], of: Callable[[Sample], float | None]) -> Iterator[Reading]:
    step_s = max((at_s for at_s, _ in samples), default=0.0) / STEPS or 1.0
    found: dict[int, list[float]] = defaultdict(list)
    for at_s, sample in samples:
        if (value := of(sample)) is not None:
            found[int(at_s / step_s)].append(value)
    for step, values in sorted(found.items()):
        yield Reading(step * step_s, min(values), fmean(values), max(values))


def _cpus(records: Iterable[PointRecord]) -> list[Strip]:
    """By rank, over rounds."""
    found: dict[int, list[float]] = defaultdict(list)
    for record in records:
        for rank in record.ranks:
            if rank.telemetry.cpu_percent is not None:
                found[rank.rank].append(rank.telemetry.cpu_percent)
    readings = tuple(Reading(rank, min(of), fmean(of), max(of)) for rank, of in sorted(found.items()))
    return [Strip(title="CPU, % of a core", readings=readings)] if readings else []


def _ends(strip: Strip) -> tuple[float, float, float]:
    readings = strip.readings
    return (
        min(one.low for one in readings),
        fmean(one.mean for one in readings),
        max(one.high for one in readings),
    )


def _said(strip: Strip) -> str:
    return f"{strip.title}: {', '.join(f'{value:,.0f}' for value in _ends(strip))}"


def _line(strip: Strip) -> tuple[str, ...]:
    return strip.title, *(f"{value:,.1f}" for value in _ends(strip))
