"""Rank 0's part of what a framework's processes measure: timed all-reduces, and the rates of devices.

Tasks and environments equal those of a run.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from scaling import frameworks
from scaling.analysis.measured import traffic
from scaling.plan import rules
from scaling.plan.placement import Slot, place_ranks
from scaling.plan.tasks import rank_tasks
from scaling.records.messages import Enrol
from scaling.records.network import ALONE, Place
from scaling.records.point import Device, Hardware, Point, Workload
from scaling.records.task import AskedAllReduce, AskedDeviceRates, Clocks, DeviceRates, RankAllReduce, Task
from scaling.text import counted, one_line
from scaling.tools.check.facts import (
    AllReduce,
    EndProcess,
    Facts,
    Go,
    RankFacts,
    Start,
    Told,
    ToLead,
    ToRank,
    some,
)
from scaling.transport.base import Mailbox
from scaling.workloads import models

BUDGET_S = 5.0  # for all ranks together, and again for the ranks inside the nodes
START_S = 90.0  # imports from a shared file server, connections, and one size too large for a slow network
LIMIT_S = START_S + 2 * BUDGET_S
MOST_BYTES = 256_000_000
MEMORY_SHARE = 0.25  # of a node's memory, for tensors and the library's buffers of the same size
FRAMEWORK = frameworks.of_preflight()


Key = TypeVar("Key", bound=Hashable)
Said = TypeVar("Said")
Measured = TypeVar("Measured", RankAllReduce, DeviceRates)
Boxes = Mailbox[ToRank, ToLead]
Say = Callable[[str], None]


def first_answers(
    mailbox: Boxes, wanted: Iterable[Key], kind: type[Said], key: Callable[[int, Said], Key], within_s: float
) -> Iterator[tuple[Key, Said]]:
    """Yield the first answer for each `wanted` key that comes in time; `key` is of a rank and its message."""
    missing = set(wanted)
    for rank, said in mailbox.news_within(within_s) if missing else ():
        if isinstance(said, kind) and (found := key(rank, said)) in missing:
            missing.remove(found)
            yield found, said
        if not missing:
            return


def _told(mailbox: Boxes, number: int, ranks: Iterable[int], within_s: float) -> Iterator[tuple[int, Told]]:
    """Yield the first answer of each rank's process that comes in time."""
    wanted = [(number, rank) for rank in ranks]
    answers = first_answers(mailbox, wanted, Told, lambda rank, told: (told.number, rank), within_s)
    return ((rank, told) for (_, rank), told in answers)


def _decoded(told: Told, blank: Measured) -> Measured:
    """Return what a process measured, or `blank` with the reason why there is nothing."""
    try:
        return replace(blank, error=told.error) if told.error else msgspec.json.decode(told.line, type=type(blank))
    except msgspec.DecodeError as error:
        return replace(blank, error=one_line(str(error)))


def all_reduces(mailbox: Boxes, facts: Facts, say: Say, numbers: Iterator[int]) -> Iterator[AllReduce]:
    """Time all-reduces over each network in turn. `numbers` are of processes, one for each network."""
    if why := against(facts.ranks):
        yield AllReduce(network="", left_out=why)
    elif len(facts.nodes) == 1:
        places = dict.fromkeys(facts.nodes, ALONE)
        yield _all_reduce(mailbox, facts.ranks, say, next(numbers), "", places, inside=False)
    else:
        inside = True
        for network in facts.networks:
            if why := unreached(facts, network.word):
                yield AllReduce(network=network.word, left_out=why)
                continue
            of = network.word, network.places
            yield _all_reduce(mailbox, facts.ranks, say, next(numbers), *of, inside=inside)
            inside = False


def _all_reduce(
    mailbox: Boxes,
    ranks: Sequence[RankFacts],
    say: Say,
    number: int,
    word: str,
    places: Mapping[str, Place],
    *,
    inside: bool,
) -> AllReduce:
    mode, over = backend(ranks), f" over {word}" if word else ""
    say(f"all-reduce of {counted(len(ranks), 'rank')} by {mode}{over}, {LIMIT_S:.0f} s at most")
    first = ranks[0].host.hostname
    told: dict[int, RankAllReduce] = {}
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a store with it can still listen there
        try:
            held.bind((places[first].address, 0))
        except OSError as refused:
            error = f"{first} cannot bind a port there: {refused.strerror}"
        else:
            asked = [
                AskedAllReduce(task=task, largest_bytes=largest_bytes(ranks), budget_s=BUDGET_S, inside=inside)
                for task in tasks(ranks, word, places, mode, held.getsockname()[1])
            ]
            told, error = _exchanged(mailbox, ranks, number, asked)
    return found(ranks, told, AllReduce(network=word, backend=mode, error=error))


def _exchanged(
    mailbox: Boxes, ranks: Sequence[RankFacts], number: int, asked: Sequence[AskedAllReduce]
) -> tuple[dict[int, RankAllReduce], str]:
    """Return the answers of all ranks, and why there are none: the first failure ends all."""
    answers: dict[int, RankAllReduce] = {}
    try:
        for rank, question in enumerate(asked):
            mailbox.order([rank], Start(number=number, asked=question))
        for rank, told in _told(mailbox, number, range(len(asked)), LIMIT_S):
            answers[rank] = replace(_decoded(told, RankAllReduce()), nccl=told.nccl)
            if error := answers[rank].error:
                warned = told.nccl.warnings[:1] if told.nccl else ()
                why = "; ".join((error, *(f"NCCL warned: {text}" for text in warned)))
                return {}, f"{ranks[rank].host.hostname} (rank {rank}): {why}"
        silent = some(str(rank) for rank in range(len(asked)) if rank not in answers)
        return answers, f"no answer within {LIMIT_S:.0f} s from rank {silent}" if silent else ""
    finally:
        mailbox.order_all(EndProcess(number=number))


def against(ranks: Sequence[RankFacts]) -> str:
    """Return why no all-reduce can be timed, "" if it can."""
    without = list(dict.fromkeys(rank.host.hostname for rank in ranks if rank.built_for_cuda is None))
    if len(ranks) == 1:
        return "an exchange needs two ranks"
    return f"{FRAMEWORK.name} is missing in this environment on {some(without)}" if without else ""


def unreached(facts: Facts, word: str) -> str:
    """Return why no all-reduce can cross a network, "" if all nodes reach each other on it."""
    absent = [node for node in facts.nodes if node in facts.absent.get(word, {})]
    deaf = [node for node in facts.nodes if word not in facts.prepared[node].ports]
    broken = [f"{link.client}-{link.server}" for link in facts.links if link.network == word and link.error]
    if absent or deaf:
        return f"nodes are not on it: {some(absent or deaf)}"
    return f"not all nodes reach each other: {some(broken)}" if broken else ""


def backend(ranks: Sequence[RankFacts]) -> str:
    """Return the mode for GPUs if each rank has its own GPU and a CUDA build, else the mode for CPUs."""
    able = (slot for rank, slot in zip(ranks, slots_of(ranks), strict=True) if slot.gpu and rank.built_for_cuda)
    return FRAMEWORK.defaults["cuda" if len({(slot.host, slot.gpu) for slot in able}) == len(ranks) else "cpu"]


def slots_of(ranks: Sequence[RankFacts]) -> tuple[Slot, ...]:
    return place_ranks([Enrol(host=rank.host, version="", code=rank.code, missing={}) for rank in ranks], None)


def tasks(
    ranks: Sequence[RankFacts], word: str, places: Mapping[str, Place], backend: str, port: int
) -> list[Task]:
    """Build each rank's task, like a sweep's `comm` point but without a model."""
    point = Point(
        strategy=f"{FRAMEWORK.name}:{backend}",
        kind="comm",
        world_size=len(ranks),
        round=0,
        workload=Workload(model="none", data="none", batch_rule="weak", batch_size=1),
        hardware=Hardware(device="cuda" if backend == FRAMEWORK.defaults["cuda"] else "cpu"),
        interconnect=word,
    )
    clocks = Clocks(startup_s=START_S, stall_s=START_S, deadline_s=LIMIT_S)
    changes = {"cpus": (), "threads": 1, "role": "all-reduce", "ports": (port,), "clocks": clocks}
    made = rank_tasks(point, slots_of(ranks), (), places, attempt=0, logs="", seed=0)
    return [replace(task, **changes) for task in made]


def largest_bytes(ranks: Sequence[RankFacts]) -> int:
    """Return the largest tensor that fits the machine with the least memory per rank, in bytes."""
    hosts = [rank.host for rank in ranks]
    counts = Counter(host.boot_id or host.hostname for host in hosts)
    rooms = (MEMORY_SHARE * host.memory_bytes / 2 / counts[host.boot_id or host.hostname] for host in hosts)
    return min(MOST_BYTES, *map(int, rooms))


def found(ranks: Sequence[RankFacts], told: Mapping[int, RankAllReduce], frame: AllReduce) -> AllReduce:
    if frame.error:
        return frame
    first = {rank.host.hostname: number for number, rank in reversed(list(enumerate(ranks)))}
    inside = {node: timed for node, rank in first.items() if (timed := told[rank].inside) is not None}
    nccl = traffic.joined_choices([one.nccl for one in told.values() if one.nccl is not None])
    return replace(frame, library=told[0].library, everyone=told[0].everyone, inside=inside, nccl=nccl)


# ---------------------------------------------------------------- device rates
#
# Rank 0's part of the device rates: which rank measures which device. Tasks equal those of a run's plain loop.


MEASURE_S = 30.0  # rates take about 5 s, on crowded cores up to 14 s
ABOUT_S = 15.0  # with the import of the framework


class Seat(NamedTuple):
    """A device and the slot of the rank that measures it."""

    device: DeviceRates
    slot: Slot


def device_rates(
    mailbox: Boxes, ranks: Sequence[RankFacts], number: int, say: Say, device: Device | None
) -> tuple[DeviceRates, ...]:
    """Measure all devices at the same time: processes that are built wait for each other."""
    found = {seat.device.launch_rank: seat for seat in seats(ranks, device)}
    told = {rank: seat.device for rank, seat in found.items()}
    tried = [rank for rank, one in told.items() if not one.left_out]
    try:
        if tried:
            say(f"rates of {counted(len(tried), 'device')}, each alone, about {ABOUT_S:.0f} s")
        for rank in tried:
            asked = AskedDeviceRates(task=task(found[rank]), device=told[rank], host_bytes=largest_bytes(ranks))
            mailbox.order([rank], Start(number=number, asked=asked))
        told |= _rates(mailbox, number, found, tried, START_S)
        built = [rank for rank in tried if not told[rank].error]
        mailbox.order(built, Go())
        told |= _rates(mailbox, number, found, built, MEASURE_S)
    finally:
        mailbox.order_all(EndProcess(number=number))
    return tuple(told.values())


def _rates(
    mailbox: Boxes, number: int, seats: Mapping[int, Seat], ranks: Collection[int], within_s: float
) -> dict[int, DeviceRates]:
    """Return one answer of each rank; a silent rank gets an error."""
    answers = dict(_told(mailbox, number, ranks, within_s))
    silent = Told(number=number, error=f"no answer within {within_s:g} s")
    return {rank: _decoded(answers.get(rank, silent), seats[rank].device) for rank in ranks}


def seats(ranks: Sequence[RankFacts], device: Device | None = None) -> list[Seat]:
    """Return each device once, with the first rank on it; `device`: the kind for all ranks, None: a GPU if it has
    one that the framework can use."""
    found: dict[tuple[object, ...], Seat] = {}
    for rank, slot in zip(ranks, slots_of(ranks), strict=True):
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
