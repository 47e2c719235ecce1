"""An exchange beside the controls of its round: what a step took, and what it would take without each loss. Pure.

Points that were measured side by side are compared over the blocks that both have: what hits a block hits all of
them. Others are compared by their whole step times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import fmean
from typing import NamedTuple

from scaling.analysis.measured.cell import Cell
from scaling.analysis.measured.controls import AloneTime, Control, Controls
from scaling.analysis.measured.cpu import CpuStep, Growth, Use, growth
from scaling.analysis.measured.step_time import Blocks, StepTime, mean_s
from scaling.analysis.statistics.intervals import variance
from scaling.records.point import Point, Record

# ---------------------------------------------------------------- data wait
#
# How long plain loops wait for data: what they take beyond the same loops on one batch that stays put. Pure.
#
# beside together - held, on all devices of a row at once alone the plain loop on one device - held on it: what
# is in the baseline of efficiency already
#
# neither more than the feeds take by themselves, as DS-Analyzer finds its stalls by differences of rates (Mohan
# et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021): seconds that a rank is blocked in
# its feed are no loss where a device computes meanwhile, and too few where decoding takes cores from computing.


class DataTimes(Record, frozen=True, kw_only=True):
    """Seconds of a step in one round, of the row's devices beside each other and of one alone, bounded by nothing
    yet; `most_s` is what the feeds take by themselves, None where that was not measured."""

    beside_s: float
    alone_s: float
    most_s: float | None = None
    most_alone_s: float | None = None

    def told(self) -> dict[str, float]:
        """By name, what is known; the most that it can be is known of both or of none."""
        found = {"data": self.beside_s, "data_alone": self.alone_s}
        if self.most_s is None or self.most_alone_s is None:
            return found
        return {**found, "feed": self.most_s, "feed_alone": self.most_alone_s}


class DataWait(Record, frozen=True, kw_only=True):
    """What of a row's step plain loops wait for data, and what of one device's own step, which is in the baseline
    already: fractions of 1, means over rounds. `feed_samples_per_s` is the rate of all feeds by themselves, which
    no row can exceed; None where it was not measured."""

    of_step: float
    of_alone: float
    feed_samples_per_s: float | None = None


def bounded(waits: Sequence[float], most: Sequence[float] | None) -> float:
    """The mean over rounds, from 0 up to that of what the feeds take by themselves, if that is known."""
    found = max(fmean(waits), 0.0)
    return min(found, fmean(most)) if most else found


def part(waits: Sequence[tuple[float, float | None, float]]) -> float:
    """The same of seconds waited, of the most that it can be, and of what they are a part of, round by round."""
    most = [most_s / whole_s for _, most_s, whole_s in waits if most_s is not None]
    known = most if len(most) == len(waits) else None
    return bounded([wait_s / whole_s for wait_s, _, whole_s in waits], known)


# ---------------------------------------------------------------- rounds


class Plain(Record, frozen=True, kw_only=True):
    """Seconds of one step of plain loops on the devices of a row, alone or beside each other: the slowest, and the
    means of times and of rates."""

    last_s: float
    mean_s: float
    harmonic_s: float
    use: Use | None = None


class Round(Record, frozen=True, kw_only=True):
    """The step times of one round that explain an exchange, seconds; None where not measured.

    `ideal_s` is what a step would take at efficiency 1; `alone` the row's devices one by one at the point's batch,
    `together` beside each other; `comm_s` is one exchange alone, `comm_beside_s` while the devices compute; `data`
    what they wait for samples. `noise` is the variance of the logarithm of
    efficiency that the scatter of its windows implies; `seats` how many seats' own noise its ideal is the mean of.
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
    seats: int = 1
    data: DataTimes | None = None

    @property
    def efficiency(self) -> float:
        """Fraction of 1."""
        return self.ideal_s / self.exchange_s

    @property
    def most_exposed_s(self) -> float | None:
        """What an exchange that nothing hides takes: beside compute where that was tried, as it is in training."""
        return self.comm_s if self.comm_beside_s is None else self.comm_beside_s

    @property
    def uses(self) -> tuple[CpuStep, Use] | None:
        """The CPU time of a step, and that of plain loops beside each other; None where either is unknown."""
        plain = self.together.use if self.together else None
        return None if self.cpu is None or plain is None else (self.cpu, plain)

    @property
    def grown(self) -> Growth | None:
        """By how much the CPU time of a step grew by the exchange; None where nothing tells that."""
        if self.uses is None:
            return None
        cpu, plain = self.uses
        servers_s = sum(cpu.servers_s.values()) / len(cpu.seats)
        return growth(cpu.mean, plain, is_spare=cpu.is_spare, servers_s=servers_s)

    @property
    def untold_cpu(self) -> str:
        """Whose CPU time is missing beside the other's; empty where both are known, or neither."""
        if self.together is None or self.grown is not None:
            return ""
        if self.together.use is None:
            return "of its together control" if self.cpu else ""
        return "by thread, with CPUs to spare" if self.cpu else "of its own processes"

    @property
    def needs_comm(self) -> bool:
        """Whether `comm` would tell more. Without `together` nothing could be told from it."""
        return self.most_exposed_s is None and self.together is not None and self.grown is None

    @property
    def together_s(self) -> float | None:
        """The mean of the loops beside each other, as the exchange's own step time is formed."""
        if self.together is None:
            return None
        return self.together.mean_s if self.synchronous else self.together.harmonic_s


def rounds(cell: Cell, controls: Controls) -> tuple[Round, ...]:
    """Join a cell's exchanges with the controls of their rounds; rounds without a baseline are left out."""
    point = cell.point
    reference = controls.times_alone(cell, point.reference.batch_size)
    own = controls.times_alone(cell, point.workload.batch_size)
    together = _beside(cell, controls.together(point))
    fed = {size: _Fed.of(cell, controls, size) for size in {1, point.world_size}}
    comm = controls.comm(point)
    found = []
    for number, time in sorted(cell.times.items()):
        if number not in reference:
            continue
        ideal_s = _ideal_s(time, reference[number], own.get(number), point)
        alone = _alone(time, own.get(number), None if point.workload.share(point.world_size) > 1 else ideal_s)
        # One device beside none is alone.
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
                seats=_seats(time, reference[number]),
                data=_data(number, cell, fed, _Loops(own.get(number), alone, beside)),
            )
        )
    return tuple(found)


def efficiencies(cell: Cell, controls: Controls) -> list[float]:
    """Of each round that has a baseline: those of `rounds`, without what explains them."""
    point = cell.point
    reference = controls.times_alone(cell, point.reference.batch_size)
    is_strong = point.workload.share(point.world_size) > 1
    own = controls.times_alone(cell, point.workload.batch_size) if is_strong else {}
    return [
        _ideal_s(time, reference[number], own.get(number), point) / time.step_s
        for number, time in sorted(cell.times.items())
        if number in reference
    ]


# ---------------------------------------------------------------- beside the exchange


def relative(time: StepTime, blocks: Blocks, epoch: int | None, step_s: float) -> float:
    """A control's step time on the scale of the exchange's: by the blocks that both have, if they have any."""
    shared = _shared(time, blocks, epoch)
    if not shared:
        return step_s
    return time.step_s * mean_s(blocks[index] for index in shared) / mean_s(time.blocks[index] for index in shared)


def _shared(time: StepTime, blocks: Blocks, epoch: int | None) -> list[int]:
    """The blocks in which both were measured."""
    if time.epoch is None or time.epoch != epoch:
        return []
    return sorted(blocks.keys() & time.blocks.keys())


def _noise(time: StepTime, ideal: AloneTime) -> float:
    """The variance of ln(efficiency) if windows were all that scatters: side by side that of a ratio of two means
    (Cochran, "Sampling Techniques", chapter 6)."""
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


def _seats(time: StepTime, ideal: AloneTime) -> int:
    """Seats that took turns are each as noisy as a cell; in one stretch of the run they resemble each other."""
    return ideal.seats_measured if _shared(time, ideal.blocks, ideal.epoch) else 1


def _ideal_s(time: StepTime, reference: AloneTime, own: AloneTime | None, point: Point) -> float:
    """Under the strong rule the global batch is measured on one device; what the others are apart from it, their
    plain loops at the batch per device tell."""
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
    """`ideal_s`: what the harmonic mean is known to be, where it is the row's ideal."""
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
        if time is not None:
            scale = _scale(time, plain)
            found[number] = Plain(
                last_s=plain.step_s * scale,
                mean_s=plain.mean_s * scale,
                harmonic_s=plain.harmonic_s * scale,
                use=cpu.mean if cpu else None,
            )
    return found


def _scale(time: StepTime, plain: StepTime) -> float:
    """By how much the blocks that both have were slower or faster than all of the control's."""
    if not plain.blocks or not _shared(time, plain.blocks, plain.epoch):
        return 1.0
    whole_s = mean_s(plain.blocks.values())
    return relative(time, plain.blocks, plain.epoch, whole_s) / whole_s


class _Loops(NamedTuple):
    """Plain loops of one round that are fed: alone, by the clock and on the row's scale; and all at once."""

    own: AloneTime | None
    alone: Plain | None
    beside: Plain | None


class _Fed(NamedTuple):
    """Of so many devices, by round: plain loops whose batch stays, the first seat of them, and the feeds."""

    held: Mapping[int, Plain]
    seat: Mapping[int, int]
    feed: Mapping[int, Plain]

    @classmethod
    def of(cls, cell: Cell, controls: Controls, world_size: int) -> _Fed:
        """Those beside a row."""
        held = controls.held(cell.point, world_size)
        seat = {number: min(time.seats) for number, time in held.times.items()} if held else {}
        return cls(_beside(cell, held), seat, _beside(cell, controls.feed(cell.point, world_size)))


def _data(number: int, cell: Cell, fed: Mapping[int, _Fed], loops: _Loops) -> DataTimes | None:
    """What loops of a round wait for data; None where that was not measured."""
    one, all_ = fed[1], fed[cell.point.world_size]
    own, alone, beside = loops
    if own is None or alone is None or beside is None or number not in one.held or number not in all_.held:
        return None
    # Held and fed on the same seat, or seats that differ would look like data.
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


def logs(measured: Sequence[Round]) -> list[float]:
    """Of efficiency, by round."""
    return [log(one.efficiency) for one in measured]


def floor(measured: Sequence[Round]) -> float:
    """The variance of the mean of `logs` that windows imply."""
    return fmean(one.noise for one in measured) / len(measured)


def cell_variances(measured: Sequence[Round]) -> float:
    """The variance of `logs` in those of one cell: the exchange's, and that of the mean of its seats."""
    return 1 + fmean(1 / one.seats for one in measured)
