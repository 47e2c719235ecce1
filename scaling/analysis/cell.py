"""One cell of a sweep, exchange or control, over its rounds: what its own records say, each thing read once. Pure.

A cell is what is repeated round by round. What follows from its records alone stands here, so that a running sweep
need not read them again when a point elsewhere ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from scaling.analysis import (
    audit,
    bottleneck,
    canaries,
    conditions,
    cpu_use,
    device_use,
    feeds,
    foreign_load,
    machine_energy,
    nccl,
    stalls,
    traces,
    traffic_receipt,
    training_loss,
)
from scaling.analysis.audit import Flag
from scaling.analysis.bottleneck import Path
from scaling.analysis.clocks import Clocks, clocks
from scaling.analysis.cpu_time import CpuStep, cpu_step
from scaling.analysis.device_use import DeviceUse
from scaling.analysis.feeds import Fed
from scaling.analysis.foreign_load import Load
from scaling.analysis.machine_energy import MachineUse
from scaling.analysis.rows import ServerUse
from scaling.analysis.step_time import NO_RESULT, StepTime, beside_s, step_time, unsynced_s
from scaling.analysis.traces import Traced
from scaling.analysis.traffic_receipt import Receipt
from scaling.records.emulation import Emulation
from scaling.records.events import Failed, Ready
from scaling.records.gpu_time import GpuTime
from scaling.records.nccl import NcclChoice
from scaling.records.point import Point
from scaling.records.run import PointRecord


class Cell:
    """The records of one cell by round, at least one; `times` has the step times of those that ended well."""

    def __init__(self, records: Sequence[PointRecord]) -> None:
        self.records = records
        self._loss_after: dict[int, float | None] = {}
        self._losses_after: dict[int, dict[int, float]] = {}
        # What the plain loops beside it say of its work (less_work.py), "" for nothing.
        self.less_work = ""

    @property
    def point(self) -> Point:
        """Of one of its rounds."""
        return self.records[0].point

    @cached_property
    def name(self) -> str:
        """Which cell it is."""
        return self.point.cell

    @cached_property
    def synchronous(self) -> bool:
        """Whether its ranks wait for each other."""
        return all(record.synchronous for record in self.records)

    @cached_property
    def times(self) -> dict[int, StepTime]:
        """Step time by round, of the records that have one."""
        found = ((record.point.round, step_time(record)) for record in self.records)
        return {number: time for number, time in found if time is not None}

    @cached_property
    def at_first(self) -> tuple[tuple[int, StepTime], ...]:
        """Step times by round of the windows as they were at first, where no core was slow."""
        found = ((one.point.round, step_time(one)) for one in canaries.quiet_at_first(self.records))
        return tuple((number, time) for number, time in found if time is not None)

    @cached_property
    def cpu(self) -> dict[int, CpuStep]:
        """CPU time of a step by round, of the records that tell it."""
        found = ((record.point.round, cpu_step(record)) for record in self.records)
        return {number: cpu for number, cpu in found if cpu is not None}

    @cached_property
    def unsynced(self) -> dict[int, float]:
        """Seconds of a step inside the wrapper without any exchange, by round, mean over ranks."""
        found = ((record.point.round, unsynced_s(record)) for record in self.records)
        return {number: step_s for number, step_s in found if step_s is not None}

    @cached_property
    def comm_beside(self) -> dict[int, float]:
        """Seconds of one exchange while the devices compute, by round."""
        found = ((record.point.round, beside_s(record)) for record in self.records)
        return {number: step_s for number, step_s in found if step_s is not None}

    @cached_property
    def seats(self) -> frozenset[int]:
        """The ranks of the launch on whose devices it ran; empty where one worker drove several."""
        whole = (r for r in self.records if len(r.ranks) == r.point.world_size)
        return frozenset(rank.launch_rank for record in whole for rank in record.ranks)

    @cached_property
    def soaked(self) -> tuple[PointRecord, ...]:
        """Its records that went on after their measured windows."""
        return tuple(one for one in self.records if any(rank.later for rank in one.ranks))

    @cached_property
    def kernel_notes(self) -> tuple[str, ...]:
        """What a CPU quota, memory faults and the kernel cost, and which windows stalled."""
        return (*conditions.notes(self.records), *stalls.notes(self.records))

    @cached_property
    def load(self) -> Load:
        """Who else used the machine."""
        return foreign_load.of(self.records)

    @cached_property
    def where(self) -> dict[int, str]:
        """By rank of the launch, which rank it was, on which host and device."""
        return {
            rank.launch_rank: f"rank {rank.rank} on {rank.host}{f' ({name})' if name else ''}"
            for record in self.records
            for rank in record.ranks
            for name in (rank.device_name(record.point.hardware.device),)
        }

    @property
    def rates(self) -> list[float]:
        """Samples per second of each round."""
        return [self.point.global_batch_size / time.step_s for time in self.times.values()]

    @cached_property
    def failure(self) -> Failed | None:
        """Why no round has a result; None where one has."""
        if self.times:
            return None
        failures = (record.outcome for record in self.records if isinstance(record.outcome, Failed))
        return next(failures, NO_RESULT)

    @cached_property
    def gpus(self) -> int:
        """On how many GPUs it ran; 0 on other devices, and in older records."""
        return max(len(set(record.gpus)) for record in self.records)

    @property
    def marks(self) -> frozenset[str]:
        """Its flags, and what the network's counters prove."""
        return self.flags | ({self.receipt.verdict} if self.receipt else set())

    @property
    def claims_efficiency(self) -> bool:
        """Whether no mark takes all claims from it."""
        return not audit.CLAIMLESS.keys() & self.marks

    @property
    def competes(self) -> bool:
        """Whether it may be ranked: it has a result, and no mark against that."""
        return bool(self.times) and not audit.UNRANKED.keys() & self.marks

    @property
    def updates_all(self) -> bool:
        """Whether each rank updates all parameters, as a plain loop does."""
        return all(record.updates_all for record in self.records)

    @cached_property
    def audits(self) -> tuple[tuple[int, str], ...]:
        """What the audit found in single rounds, each with its round."""
        return tuple((record.point.round, text) for record in self.records for text in audit.audit(record))

    @cached_property
    def fed(self) -> Fed:
        """What fed its ranks, and how long they waited for it."""
        return feeds.fed(self.records)

    @cached_property
    def machine_energy(self) -> MachineUse | None:
        """What its machines' processors and memory used."""
        return machine_energy.of(self.records, self.times)

    @cached_property
    def clocks(self) -> Clocks | None:
        """How fast its GPUs were clocked."""
        return clocks(self.records)

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        """What lowered its GPUs' clocks beside the power limit, in any round."""
        return self.clocks.throttled if self.clocks else ()

    @property
    def flags(self) -> frozenset[Flag]:
        """The stamps that its records put on it."""
        return self._flags | {"AUDIT"} if self.less_work else self._flags

    @cached_property
    def _flags(self) -> frozenset[Flag]:
        return audit.flags(self.records, self.audits, self.throttle_reasons)

    @cached_property
    def devices(self) -> frozenset[str]:
        """On which devices it ran."""
        ranks = (rank for record in self.records for rank in record.ranks)
        return frozenset(rank.ready.device_name for rank in ranks if rank.ready)

    @cached_property
    def nodes(self) -> int:
        """The most hosts whose devices took part in a round."""
        return max(1, *(record.nodes for record in self.records))

    @cached_property
    def server_use(self) -> tuple[ServerUse, ...]:
        """Its parameter servers."""
        return cpu_use.server_use(self.records)

    @property
    def emulation(self) -> Emulation | None:
        """How well it is emulated; None for real devices, and where it was not measured."""
        found = next((record.emulation for record in self.records if record.emulation), None)
        return found and found.of(self.point)

    @cached_property
    def machine_cpu_percent(self) -> float | None:
        """Of all cores of the machine that emulated; None for real devices."""
        return cpu_use.of_machine(self.records)

    @cached_property
    def _ready(self) -> tuple[Ready, ...]:
        return tuple(rank.ready for record in self.records for rank in record.ranks if rank.ready)

    @cached_property
    def operations_per_sample(self) -> int:
        """Floating-point operations of both passes; 0 where nobody has counted them."""
        return max((each.operations_per_sample for each in self._ready), default=0)

    @cached_property
    def device_names(self) -> frozenset[str]:
        """As frameworks call what they ran on."""
        return frozenset(each.device_name for each in self._ready)

    @cached_property
    def device_use(self) -> DeviceUse | None:
        """How its GPUs ran; None where none was read."""
        return device_use.of(self.records)

    @cached_property
    def nccl(self) -> NcclChoice | None:
        """What NCCL chose; None where it has not told."""
        return nccl.of(self.records)

    @cached_property
    def nccl_notes(self) -> tuple[str, ...]:
        """What of NCCL's choices a reader must know."""
        return tuple(nccl.notes(self.records))

    @cached_property
    def receipt(self) -> Receipt | None:
        """Which card carried its bytes; None where none crossed nodes."""
        return traffic_receipt.of_row(self.records)

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """The paths between nodes that carried its bytes."""
        return bottleneck.paths(self.records)

    @cached_property
    def traced(self) -> Traced | None:
        """Its profiled steps; None where no round has any."""
        return traces.traced(self.records)

    @cached_property
    def gpu_times(self) -> tuple[GpuTime, ...]:
        """What GPUs did in them, by rank."""
        return traces.gpu_times(self.records)

    @cached_property
    def staleness(self) -> float | None:
        """Of its parameters, mean; None in synchronous modes."""
        return training_loss.staleness(self.records)

    @cached_property
    def first_and_last_loss(self) -> tuple[float | None, float | None]:
        """The training loss of the first and of the last window, means."""
        return training_loss.first_and_last_loss(self.records)

    @cached_property
    def fewest_samples(self) -> int | None:
        """The smallest number of samples that any of its rounds was trained on; None without a training loss."""
        return training_loss.equal_samples([self.records])

    def loss_after(self, count: int) -> float | None:
        """The training loss after `count` samples, mean over ranks and rounds."""
        if count not in self._loss_after:
            self._loss_after = {count: training_loss.loss_after(self.records, count)}
        return self._loss_after[count]

    def losses_after(self, count: int) -> Mapping[int, float]:
        """The same by round, of those that have got so far."""
        if count not in self._losses_after:
            each = ((one.point.round, training_loss.loss_after([one], count)) for one in self.records)
            self._losses_after = {count: {number: loss for number, loss in each if loss is not None}}
        return self._losses_after[count]


def cells(records: Iterable[PointRecord]) -> list[Cell]:
    """The cells of these records, in the order in which they first come."""
    by_name: dict[str, list[PointRecord]] = {}
    for record in records:
        by_name.setdefault(record.point.cell, []).append(record)
    return [Cell(found) for found in by_name.values()]
