"""Rank 0's part of what a framework's processes measure: timed all-reduces, and the rates of devices.

Tasks and environments equal those of a run.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

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
from scaling.text import counted
from scaling.tools.check.facts import (
    AllReduce,
    EndProcess,
    Exchange,
    Exchanged,
    Facts,
    Go,
    RankFacts,
    Rate,
    Rated,
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
FRAMEWORK = frameworks.all_reducing()


Key = TypeVar("Key", bound=Hashable)
Said = TypeVar("Said")
Boxes = Mailbox[ToRank, ToLead]
Say = Callable[[str], None]


def first_answers(
    mailbox: Boxes, wanted: Iterable[Key], of: Callable[[int, ToLead], tuple[Key, Said] | None], within_s: float
) -> Iterator[tuple[Key, Said]]:
    """Yield the first answer for each `wanted` key that comes in time; `of` reads a rank's message."""
    missing = set(wanted)
    for rank, said in mailbox.news_within(within_s) if missing else ():
        if (answer := of(rank, said)) and answer[0] in missing:
            missing.remove(answer[0])
            yield answer
        if not missing:
            return


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
        try:
            port = _hold(held, places[first].address)
        except OSError as refused:
            error = f"{first} cannot bind a port there: {refused.strerror}"
        else:
            asked = [
                AskedAllReduce(task=task, largest_bytes=largest_bytes(ranks), budget_s=BUDGET_S, inside=inside)
                for task in tasks(ranks, word, places, mode, port)
            ]
            told, error = _exchanged(mailbox, ranks, number, asked)
    return found(ranks, told, AllReduce(network=word, backend=mode, error=error))


def _exchanged(
    mailbox: Boxes, ranks: Sequence[RankFacts], number: int, asked: Sequence[AskedAllReduce]
) -> tuple[dict[int, RankAllReduce], str]:
    def of(rank: int, said: ToLead) -> tuple[int, RankAllReduce] | None:
        return (rank, said.told) if isinstance(said, Exchanged) and said.number == number else None

    told: dict[int, RankAllReduce] = {}
    try:
        for rank, question in enumerate(asked):
            mailbox.order([rank], Exchange(number=number, asked=question))
        for rank, answer in first_answers(mailbox, range(len(asked)), of, LIMIT_S):
            if answer.error:
                return {}, f"{ranks[rank].host.hostname} (rank {rank}): {_why(answer)}"
            told[rank] = answer
        silent = some(str(rank) for rank in range(len(asked)) if rank not in told)
        return told, f"no answer within {LIMIT_S:.0f} s from rank {silent}" if silent else ""
    finally:
        mailbox.order_all(EndProcess(number=number))


def _why(answer: RankAllReduce) -> str:
    warned = answer.nccl.warnings[:1] if answer.nccl else ()
    return "; ".join((answer.error, *(f"NCCL warned: {text}" for text in warned)))


def _hold(one: socket.socket, address: str) -> int:
    """Bind a port on which a store with SO_REUSEADDR can still listen. Raises OSError."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind((address, 0))
    port: int = one.getsockname()[1]
    return port


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
    if not all(rank.built_for_cuda and rank.host.gpus for rank in ranks):
        return FRAMEWORK.defaults["cpu"]
    places = ((rank.host, local % len(rank.host.gpus)) for rank, local in _local(ranks))
    devices = {(host.hostname, host.gpus[place].uuid) for host, place in places}
    return FRAMEWORK.defaults["cuda" if len(devices) == len(ranks) else "cpu"]


def _local(ranks: Sequence[RankFacts]) -> Iterator[tuple[RankFacts, int]]:
    seen: Counter[str] = Counter()
    for rank in ranks:
        yield rank, seen[rank.host.hostname]
        seen[rank.host.hostname] += 1


def tasks(
    ranks: Sequence[RankFacts], word: str, places: Mapping[str, Place], backend: str, port: int
) -> list[Task]:
    """Build each rank's task, like a sweep's `comm` point but without a model."""
    hosts = tuple(rank.host.hostname for rank in ranks)
    counts, everywhere = Counter(hosts), tuple(places[host] for host in hosts)
    point = _point(len(ranks), word, backend)
    return [
        Task(
            point=point,
            attempt=0,
            rank=number,
            launch_rank=number,
            local_rank=local,
            local_world_size=counts[hosts[number]],
            hosts=hosts,
            device_index=local % max(1, len(rank.host.gpus)),
            cpus=(),
            threads=1,
            seed=0,
            log="",
            role="all-reduce",
            place=places[hosts[number]],
            places=everywhere,
            ports=(port,),
            clocks=Clocks(startup_s=START_S, stall_s=START_S, deadline_s=LIMIT_S),
        )
        for number, (rank, local) in enumerate(_local(ranks))
    ]


def _point(world_size: int, word: str, backend: str) -> Point:
    return Point(
        strategy=f"{FRAMEWORK.name}:{backend}",
        kind="comm",
        world_size=world_size,
        round=0,
        workload=Workload(model="none", data="none", batch_rule="weak", batch_size=1),
        hardware=Hardware(device="cuda" if backend == FRAMEWORK.defaults["cuda"] else "cpu"),
        interconnect=word,
    )


def largest_bytes(ranks: Sequence[RankFacts]) -> int:
    """Return the largest tensor that fits the machine with the least memory per rank, in bytes."""
    hosts = [rank.host for rank in ranks]
    counts = Counter(host.boot_id or host.hostname for host in hosts)
    rooms = (MEMORY_SHARE * host.memory_bytes / 2 / counts[host.boot_id or host.hostname] for host in hosts)
    return min(MOST_BYTES, *map(int, rooms))


def found(ranks: Sequence[RankFacts], told: Mapping[int, RankAllReduce], frame: AllReduce) -> AllReduce:
    if frame.error:
        return frame
    inside = {
        rank.host.hostname: timed
        for number, (rank, local) in enumerate(_local(ranks))
        if local == 0 and (timed := told[number].inside) is not None
    }
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
            mailbox.order([rank], Rate(number=number, asked=asked))
        told |= _rates(mailbox, number, told, tried, START_S)
        built = [rank for rank in tried if not told[rank].error]
        mailbox.order(built, Go(number=number))
        told |= _rates(mailbox, number, told, built, MEASURE_S)
    finally:
        mailbox.order_all(EndProcess(number=number))
    return tuple(told.values())


def _rates(
    mailbox: Boxes, number: int, known: Mapping[int, DeviceRates], ranks: Collection[int], within_s: float
) -> dict[int, DeviceRates]:
    """Return one answer of each rank; a silent rank gets an error."""

    def of(rank: int, said: ToLead) -> tuple[int, DeviceRates] | None:
        return (rank, said.told) if isinstance(said, Rated) and said.number == number else None

    silent = {rank: replace(known[rank], error=f"no answer within {within_s:g} s") for rank in ranks}
    return silent | dict(first_answers(mailbox, ranks, of, within_s))


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
