"""How fast GPUs were clocked while windows were timed, and what lowered it. Pure.

A card at its power limit lowers its clocks all the time, which is the normal state of many under load and no
fault; heat and failing power are. Either way a row is comparable with its baseline where both ran at one clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from scaling.records.point import Record
from scaling.records.run import PointRecord
from scaling.records.telemetry import POWER_CAP, Sample, Telemetry

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
