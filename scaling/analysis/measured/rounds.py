"""An exchange and its control runs in one round: the step times that explain its efficiency, and waiting for data.

Points measured side by side are compared over the blocks that both have, because a slow block hits both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis.measured.cell import Cell, waited_s
from scaling.analysis.measured.controls import AloneTime, Control, Controls
from scaling.analysis.measured.cpu import CpuStep, Growth, Use, growth
from scaling.analysis.measured.step_time import Blocks, StepTime, mean_s
from scaling.analysis.statistics.intervals import variance
from scaling.records.point import Point, Record

# ---------------------------------------------------------------- data wait
#
# beside  together - held, on all devices of a row at once
# alone   plain loop - held, on one device; this is in the baseline of efficiency
#
# Each is at most what the feeds alone take, as in DS-Analyzer (Mohan et al., "Analyzing and Mitigating Data Stalls
# in DNN Training", VLDB 2021).


class DataTimes(Record, frozen=True, kw_only=True):
    """Unbounded seconds of a step that devices wait for data in one round; `most_s` is what feeds alone take."""

    beside_s: float
    alone_s: float
    most_s: float | None = None
    most_alone_s: float | None = None

    def told(self) -> dict[str, float]:
        found = {"data": self.beside_s, "data_alone": self.alone_s}
        if self.most_s is None or self.most_alone_s is None:
            return found
        return {**found, "feed": self.most_s, "feed_alone": self.most_alone_s}


def bounded(waits: Sequence[float], most: Sequence[float] | None) -> float:
    """Return the mean over rounds, from 0 up to the mean of `most`, if given."""
    found = max(fmean(waits), 0.0)
    return min(found, fmean(most)) if most else found


def part(waits: Sequence[tuple[float, float | None, float]]) -> float:
    """Return the bounded mean of (seconds waited, bound, whole step), one per round, as a fraction of the step."""
    most = [most_s / whole_s for _, most_s, whole_s in waits if most_s is not None]
    known = most if len(most) == len(waits) else None
    return bounded([wait_s / whole_s for wait_s, _, whole_s in waits], known)


# ---------------------------------------------------------------- rounds


class Plain(Record, frozen=True, kw_only=True):
    """Seconds of a step of plain loops on a row's devices: slowest, mean of times, mean of rates."""

    last_s: float
    mean_s: float
    harmonic_s: float
    use: Use | None = None


class Round(Record, frozen=True, kw_only=True):
    """The step times of one round that explain an exchange, in seconds; None if not measured.

    `ideal_s` is a step at efficiency 1. `alone` and `together` are plain loops one by one and at once. `noise` is
    the variance of ln(efficiency) implied by windows. `is_own`: `together` are the exchange's own steps without
    exchange, because its copies have another batch.
    """

    number: int
    exchange_s: float
    ideal_s: float
    alone: Plain | None
    together: Plain | None
    comm_s: float | None
    comm_beside_s: float | None = None
    synchronous: bool = True
    cpu: CpuStep | None = None
    noise: float = 0.0
    data: DataTimes | None = None
    is_own: bool = False

    @property
    def efficiency(self) -> float:
        return self.ideal_s / self.exchange_s

    @property
    def most_exposed_s(self) -> float | None:
        """Seconds of an exchange that nothing hides: during compute if measured, else alone."""
        return self.comm_s if self.comm_beside_s is None else self.comm_beside_s

    @property
    def uses(self) -> tuple[CpuStep, Use] | None:
        """CPU time of a step, and of plain loops at once; None if either is unknown."""
        plain = self.together.use if self.together else None
        return None if self.cpu is None or plain is None else (self.cpu, plain)

    @property
    def grown(self) -> Growth | None:
        """Growth of the CPU time of a step by the exchange; None if unknown."""
        if self.uses is None:
            return None
        cpu, plain = self.uses
        servers_s = sum(cpu.servers_s.values()) / len(cpu.seats)
        return growth(cpu.mean, plain, is_spare=cpu.is_spare, servers_s=servers_s)

    @property
    def untold_cpu(self) -> str:
        """Names the CPU time that is missing although its counterpart is known; else empty."""
        if self.together is None or self.is_own or self.grown is not None:
            return ""
        if self.together.use is None:
            return "of its together control" if self.cpu else ""
        return "by thread, with CPUs to spare" if self.cpu else "of its own processes"

    @property
    def needs_comm(self) -> bool:
        """Whether `comm` would explain more, which needs `together`."""
        return self.most_exposed_s is None and self.together is not None and self.grown is None

    @property
    def together_s(self) -> float | None:
        """Mean of the plain loops at once: of times or, if asynchronous, of rates."""
        if self.together is None:
            return None
        return self.together.mean_s if self.synchronous else self.together.harmonic_s


def rounds(cell: Cell, controls: Controls) -> tuple[Round, ...]:
    """Join a cell's exchanges with the controls of their rounds; rounds without a baseline are left out."""
    point = cell.point
    reference = controls.times_alone(cell, point.reference.batch_size)
    own = controls.times_alone(cell, point.workload.batch_size)
    copies = _beside(cell, controls.together(point))
    together = copies or _without_exchange(cell)
    fed = {size: _Fed.of(cell, controls, size) for size in {1, point.world_size}}
    comm, scripts = controls.comm(point), _script_data(point, controls)
    found = []
    for number, time in sorted(cell.times.items()):
        if number not in reference:
            continue
        ideal_s = _ideal_s(time, reference[number], own.get(number), point)
        alone = _alone(time, own.get(number), None if point.workload.share(point.world_size) > 1 else ideal_s)
        # With one device, `together` is `alone`.
        beside = together.get(number, alone if point.world_size == 1 else None)
        found.append(
            Round(
                number=number,
                exchange_s=time.step_s,
                ideal_s=ideal_s,
                alone=alone,
                together=beside,
                comm_s=comm[number].step_s if number in comm else None,
                comm_beside_s=cell.comm_beside.get(number),
                synchronous=cell.synchronous,
                cpu=cell.cpu.get(number),
                noise=_noise(time, reference[number]),
                is_own=not copies and number in together,
                data=scripts.get(number) or _data(number, cell, fed, own.get(number), alone, beside),
            )
        )
    return tuple(found)


def efficiencies(cell: Cell, controls: Controls) -> list[float]:
    """Return the efficiency of each round with a baseline."""
    point = cell.point
    reference = controls.times_alone(cell, point.reference.batch_size)
    is_strong = point.workload.share(point.world_size) > 1
    own = controls.times_alone(cell, point.workload.batch_size) if is_strong else {}
    return [
        _ideal_s(time, reference[number], own.get(number), point) / time.step_s
        for number, time in sorted(cell.times.items())
        if number in reference
    ]


# ---------------------------------------------------------------- scaling by shared blocks


def relative(time: StepTime, blocks: Blocks, epoch: int | None, step_s: float) -> float:
    """Return a control's step time scaled by the blocks shared with the exchange; `step_s` without any."""
    shared = _shared(time, blocks, epoch)
    if not shared:
        return step_s
    return time.step_s * mean_s(blocks[index] for index in shared) / mean_s(time.blocks[index] for index in shared)


def _shared(time: StepTime, blocks: Blocks, epoch: int | None) -> list[int]:
    if time.epoch is None or time.epoch != epoch:
        return []
    return sorted(blocks.keys() & time.blocks.keys())


def _noise(time: StepTime, ideal: AloneTime) -> float:
    """Variance of ln(efficiency) by windows' scatter, as of a ratio (Cochran, "Sampling Techniques", ch. 6)."""
    shared = _shared(time, ideal.blocks, ideal.epoch)
    if len(shared) > 1:
        ours, ideals = ([exp(blocks[index]) for index in shared] for blocks in (time.blocks, ideal.blocks))
        scale = fmean(ideals) / fmean(ours)
        rest = [one - scale * own for own, one in zip(ours, ideals, strict=True)]
        return variance(rest) / len(rest) / fmean(ideals) ** 2
    if shared:
        return 0.0
    each = (list(blocks.values()) for blocks in (time.blocks, ideal.blocks))
    return sum(variance(values) / len(values) for values in each if len(values) > 1)


def _ideal_s(time: StepTime, reference: AloneTime, own: AloneTime | None, point: Point) -> float:
    """Strong rule: the global batch on one device over its share, scaled by the speed of the other seats."""
    ideal_s = relative(time, reference.blocks, reference.epoch, reference.harmonic_s)
    share = point.workload.share(point.world_size)
    if share == 1:
        return ideal_s
    ideal_s /= share
    if own is None or len(own.seats) < 2 or len(reference.seats) != 1:
        return ideal_s
    first = own.seats.get(*reference.seats)
    return ideal_s if first is None else ideal_s * own.harmonic_s / first


def _alone(time: StepTime, own: AloneTime | None, ideal_s: float | None) -> Plain | None:
    if own is None:
        return None
    harmonic_s = ideal_s if ideal_s is not None else relative(time, own.blocks, own.epoch, own.harmonic_s)
    scale = harmonic_s / own.harmonic_s
    last_s = max(own.seats.values(), default=own.harmonic_s) * scale
    return Plain(last_s=last_s, mean_s=own.mean_s * scale, harmonic_s=harmonic_s, use=own.use)


def _beside(cell: Cell, control: Control | None) -> dict[int, Plain]:
    if control is None:
        return {}
    found = {}
    for number, plain in control.times.items():
        time, cpu = cell.times.get(number), control.cpu.get(number)
        if time is None:
            continue
        whole_s = mean_s(plain.blocks.values()) if plain.blocks else 1.0
        scale = relative(time, plain.blocks, plain.epoch, whole_s) / whole_s
        last_s, plain_s, use = plain.step_s * scale, plain.mean_s * scale, cpu.mean if cpu else None
        if late := cell.script_unsynced.get(number):
            # As if a script's slowest copy were as late as in its own steps without exchange. The mean rank's
            # lateness is CPU time of its own work, and not of the exchange.
            last_s = plain_s + late.last_s - late.first_s
            use = use and replace(use, run_s=use.run_s + late.mean_s - late.first_s)
        found[number] = Plain(last_s=last_s, mean_s=plain_s, harmonic_s=plain.harmonic_s * scale, use=use)
    return found


def _without_exchange(cell: Cell) -> dict[int, Plain]:
    """Return the steps without exchange of a script that divides its batch: its copies have the whole batch."""
    if not cell.point.workload.is_strong:
        return {}
    return {
        number: Plain(last_s=one.last_s, mean_s=one.mean_s, harmonic_s=one.mean_s)
        for number, one in cell.script_unsynced.items()
    }


class _Fed(NamedTuple):
    held: Mapping[int, Plain]
    seat: Mapping[int, int]
    feed: Mapping[int, Plain]

    @classmethod
    def of(cls, cell: Cell, controls: Controls, world_size: int) -> _Fed:
        held = controls.held(cell.point, world_size)
        seat = {number: min(time.seats) for number, time in held.times.items()} if held else {}
        return cls(_beside(cell, held), seat, _beside(cell, controls.feed(cell.point, world_size)))


def _data(
    number: int,
    cell: Cell,
    fed: Mapping[int, _Fed],
    own: AloneTime | None,
    alone: Plain | None,
    beside: Plain | None,
) -> DataTimes | None:
    one, all_ = fed[1], fed[cell.point.world_size]
    if own is None or alone is None or beside is None or number not in one.held or number not in all_.held:
        return None
    # Compare on the same seat: a difference of seats must not look like data.
    seat_s = own.seats.get(one.seat[number], own.mean_s) * alone.harmonic_s / own.harmonic_s
    alone_s = seat_s - one.held[number].mean_s
    held = all_.held[number]
    beside_s = beside.mean_s - held.mean_s if cell.synchronous else beside.harmonic_s - held.harmonic_s
    return DataTimes(
        beside_s=alone_s if cell.point.world_size == 1 else beside_s,
        alone_s=alone_s,
        most_s=all_.feed[number].harmonic_s if number in all_.feed else None,
        most_alone_s=one.feed[number].harmonic_s if number in one.feed else None,
    )


def _script_data(point: Point, controls: Controls) -> dict[int, DataTimes]:
    """A script's own loaders tell how long they block: in its copies at once, and in one alone."""
    together, alone = controls.together(point), controls.alone(point, point.workload.batch_size)
    if together is None or alone is None or not point.workload.script:
        return {}
    alone_s = {one.point.round: waited for one in alone.records if (waited := waited_s([one])) is not None}
    return {
        one.point.round: DataTimes(beside_s=waited, alone_s=alone_s[one.point.round])
        for one in together.records
        if (waited := waited_s([one])) is not None and one.point.round in alone_s
    }


def logs(measured: Sequence[Round]) -> list[float]:
    """Return the logarithm of efficiency of each round."""
    return [log(one.efficiency) for one in measured]


def floor(measured: Sequence[Round]) -> float:
    """Return the variance of the mean of `logs` that windows imply."""
    return fmean(one.noise for one in measured) / len(measured)
