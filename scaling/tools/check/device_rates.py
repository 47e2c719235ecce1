"""Rank 0's part of the device rates: which rank measures which device. Tasks equal those of a run's plain loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from scaling import frameworks
from scaling.plan import rules
from scaling.plan.placement import Slot, place_ranks
from scaling.plan.tasks import rank_tasks
from scaling.records.messages import Enrol
from scaling.records.point import Device, Hardware, Point, Workload
from scaling.records.task import AskedDeviceRates, DeviceRates, Task
from scaling.text import counted
from scaling.tools.check.all_reduce import START_S, largest_bytes
from scaling.tools.check.facts import EndProcess, Go, RankFacts, Rate, Rated, ToLead, ToRank
from scaling.transport.base import Mailbox
from scaling.workloads import models

FRAMEWORK = frameworks.all_reducing()
MEASURE_S = 30.0  # rates take about 5 s, on crowded cores up to 14 s
ABOUT_S = 15.0  # with the import of the framework


class Seat(NamedTuple):
    """A device and the slot of the rank that measures it."""

    device: DeviceRates
    slot: Slot


class Rating:
    """Measures all devices at the same time: processes that are built wait for each other."""

    def __init__(
        self, mailbox: Mailbox[ToRank, ToLead], ranks: Sequence[RankFacts], number: int, say: Callable[[str], None]
    ) -> None:
        self._mailbox = mailbox
        self._ranks = ranks
        self._number = number
        self._say = say

    def take(self, device: Device | None) -> tuple[DeviceRates, ...]:
        found = {seat.device.launch_rank: seat for seat in seats(self._ranks, device)}
        told = {rank: seat.device for rank, seat in found.items()}
        tried = [rank for rank, one in told.items() if not one.left_out]
        try:
            if tried:
                self._say(f"rates of {counted(len(tried), 'device')}, each alone, about {ABOUT_S:.0f} s")
            self._start([found[rank] for rank in tried])
            told |= self._answers(told, tried, START_S)
            built = [rank for rank in tried if not told[rank].error]
            self._mailbox.order(built, Go(number=self._number))
            told |= self._answers(told, built, MEASURE_S)
        finally:
            self._mailbox.order_all(EndProcess(number=self._number))
        return tuple(told.values())

    def _start(self, tried: Sequence[Seat]) -> None:
        host_bytes = largest_bytes(self._ranks)
        for seat in tried:
            asked = AskedDeviceRates(task=task(seat), device=seat.device, host_bytes=host_bytes)
            self._mailbox.order([seat.device.launch_rank], Rate(number=self._number, asked=asked))

    def _answers(
        self, known: Mapping[int, DeviceRates], ranks: Collection[int], within_s: float
    ) -> dict[int, DeviceRates]:
        """Return one answer of each rank; a silent rank gets an error."""
        silent = dict.fromkeys(ranks, f"no answer within {within_s:g} s")
        told = dict(self._told(silent, within_s)) if silent else {}
        return {rank: told.get(rank) or replace(known[rank], error=why) for rank, why in silent.items()}

    def _told(self, ranks: Collection[int], within_s: float) -> Iterator[tuple[int, DeviceRates]]:
        missing = set(ranks)
        for rank, said in self._mailbox.news_within(within_s):
            if isinstance(said, Rated) and said.number == self._number and rank in missing:
                yield rank, said.told
                missing.remove(rank)
            if not missing:
                return


def seats(ranks: Sequence[RankFacts], device: Device | None = None) -> list[Seat]:
    """Return each device once, with the first rank on it; `device`: the kind for all ranks, None: a GPU if it has
    one that the framework can use."""
    slots = place_ranks([Enrol(host=rank.host, version="", code=rank.code, missing={}) for rank in ranks], None)
    found: dict[tuple[object, ...], Seat] = {}
    for rank, slot in zip(ranks, slots, strict=True):
        kind = device or ("cuda" if slot.gpu and rank.built_for_cuda else "cpu")
        seat = Seat(_described(rank, slot, kind), slot)
        key = (slot.gpu,) if kind == "cuda" else (slot.machine or slot.host, slot.cpus)
        found.setdefault(key, seat)
    return list(found.values())


def _described(rank: RankFacts, slot: Slot, kind: Device) -> DeviceRates:
    gpu = next((gpu for gpu in rank.host.gpus if kind == "cuda" and gpu.uuid == slot.gpu), None)
    common = DeviceRates(
        launch_rank=slot.launch_rank,
        host=slot.host,
        device=kind,
        name=rank.host.cpu_model,
        left_out=_against(rank, kind),
    )
    if gpu is None:
        return replace(common, cpus=slot.cpus, work=workload(kind, None) if kind == "cpu" else None)
    whole = next((one for one in rank.driver.gpus if one.uuid == gpu.whole), None)
    return replace(
        common,
        name=gpu.name,
        index=gpu.index if whole is None or whole.index is None else whole.index,
        uuid=gpu.uuid,
        serial=whole.serial if whole else "",
        work=workload(kind, gpu.compute_capability),
    )


def _against(rank: RankFacts, kind: Device) -> str:
    if kind == "emulated":
        return "emulated devices compute nothing"
    if rank.built_for_cuda is None:
        return f"{FRAMEWORK.name} is missing in this environment"
    if kind == "cuda" and not (rank.host.gpus and rank.built_for_cuda):
        return f"{FRAMEWORK.name} is built without CUDA" if rank.host.gpus else "no GPU on this host"
    return ""


def workload(device: Device, capability: tuple[int, int] | None) -> Workload:
    """Return the work of the step: the default model, precision and memory format of a run, at the model's own
    batch."""
    spec, choice = models.spec(models.default_model(device)), rules.preferred(device, capability)
    return Workload(
        model=spec.name,
        data=spec.data,
        batch_rule="weak",
        batch_size=spec.batch_size[device],
        precision=choice.precision,
        memory_format=choice.memory_format,
        unit=spec.unit,
    )


def task(seat: Seat) -> Task:
    """Return the task of the plain loop on a device, as a run would place it."""
    assert seat.device.work is not None
    point = Point(
        strategy=f"{FRAMEWORK.name}:{frameworks.PLAIN}",
        kind="solo",
        world_size=1,
        round=0,
        workload=seat.device.work,
        hardware=Hardware(device=seat.device.device),
    )
    (made,) = rank_tasks(point, [seat.slot], (), {}, attempt=0, logs="", seed=0)
    return made
