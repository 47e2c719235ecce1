"""Rank 0's part of the timed all-reduces. Tasks and environments equal those of a sweep's workers."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from scaling import frameworks
from scaling.analysis.measured import traffic
from scaling.records.network import ALONE, Place
from scaling.records.point import Hardware, Point, Workload
from scaling.records.task import AskedAllReduce, Clocks, RankAllReduce, Task
from scaling.text import counted
from scaling.tools.check.facts import (
    AllReduce,
    EndProcess,
    Exchange,
    Exchanged,
    Facts,
    RankFacts,
    ToLead,
    ToRank,
    some,
)
from scaling.transport.base import Mailbox

BUDGET_S = 5.0  # for all ranks together, and again for the ranks inside the nodes
START_S = 90.0  # imports from a shared file server, connections, and one size too large for a slow network
LIMIT_S = START_S + 2 * BUDGET_S
MOST_BYTES = 256_000_000
MEMORY_SHARE = 0.25  # of a node's memory, for tensors and the library's buffers of the same size
FRAMEWORK = frameworks.all_reducing()


class AllReduces:
    """Measures over each network in turn. `numbers` are of processes, one for each network."""

    def __init__(
        self,
        mailbox: Mailbox[ToRank, ToLead],
        facts: Facts,
        say: Callable[[str], None],
        numbers: Iterator[int],
    ) -> None:
        self._mailbox = mailbox
        self._facts = facts
        self._say = say
        self._numbers = numbers
        self._backend = backend(facts.ranks)

    def take(self) -> tuple[AllReduce, ...]:
        if why := against(self._facts.ranks):
            return (AllReduce(network="", left_out=why),)
        if len(self._facts.nodes) == 1:
            return (self._timed("", dict.fromkeys(self._facts.nodes, ALONE), inside=False),)
        return tuple(self._each())

    def _each(self) -> Iterator[AllReduce]:
        inside = True
        for network in self._facts.networks:
            if why := unreached(self._facts, network.word):
                yield AllReduce(network=network.word, left_out=why)
            else:
                yield self._timed(network.word, network.places, inside=inside)
                inside = False

    def _timed(self, word: str, places: Mapping[str, Place], *, inside: bool) -> AllReduce:
        ranks = self._facts.ranks
        over = f" over {word}" if word else ""
        self._say(f"all-reduce of {counted(len(ranks), 'rank')} by {self._backend}{over}, {LIMIT_S:.0f} s at most")
        held = socket.socket()
        try:
            port = _hold(held, places[ranks[0].host.hostname].address)
            largest = largest_bytes(ranks)
            asked = [
                AskedAllReduce(task=task, largest_bytes=largest, budget_s=BUDGET_S, inside=inside)
                for task in tasks(ranks, word, places, self._backend, port)
            ]
            told, error = self._exchanged(next(self._numbers), asked)
        except OSError as refused:
            told, error = {}, f"{ranks[0].host.hostname} cannot bind a port there: {refused.strerror}"
        finally:
            held.close()
        return found(ranks, told, AllReduce(network=word, backend=self._backend, error=error))

    def _exchanged(self, number: int, asked: Sequence[AskedAllReduce]) -> tuple[dict[int, RankAllReduce], str]:
        told: dict[int, RankAllReduce] = {}
        try:
            for rank, question in enumerate(asked):
                self._mailbox.order([rank], Exchange(number=number, asked=question))
            for rank, answer in self._answers(number):
                if answer.error:
                    return {}, f"{self._facts.ranks[rank].host.hostname} (rank {rank}): {_why(answer)}"
                told[rank] = answer
                if len(told) == len(asked):
                    return told, ""
            silent = some(str(rank) for rank in range(len(asked)) if rank not in told)
            return {}, f"no answer within {LIMIT_S:.0f} s from rank {silent}"
        finally:
            self._mailbox.order_all(EndProcess(number=number))

    def _answers(self, number: int) -> Iterator[tuple[int, RankAllReduce]]:
        for rank, said in self._mailbox.news_within(LIMIT_S):
            if isinstance(said, Exchanged) and said.number == number:
                yield rank, said.told


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
