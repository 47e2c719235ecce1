"""The records of the preflight: facts, verdicts (what `--json` writes) and messages between ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec

from scaling.records.host import GpuHost, HostInfo, Nic
from scaling.records.messages import Signalled
from scaling.records.network import NcclChoice, Network, Place
from scaling.records.point import Record
from scaling.records.task import AskedAllReduce, AskedDeviceRates, DeviceRates, Timed

NAMED = 4


def some(words: Iterable[str]) -> str:
    """Join words, at most four: `node1, node2, node3, node4 and 12 more`."""
    every = list(words)
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more


def grouped(values: Mapping[str, str]) -> str:
    """Group nodes by value: `2.13.0 on node1, node2; 2.12.0 on node3`. Nodes with "" are left out."""
    owners: dict[str, list[str]] = {}
    for node, value in values.items():
        owners.setdefault(value, []).append(node)
    return "; ".join(f"{value} on {some(nodes)}" for value, nodes in owners.items() if value)


def size(count: int | None) -> str:
    """Format a number of bytes: `64.0 MiB`, `9.5 GiB`; None is unlimited."""
    if count is None:
        return "unlimited"
    if count >= 1 << 30:
        return f"{count / 2**30:.1f} GiB"
    return f"{count / 2**20:.1f} MiB" if count >= 1 << 20 else f"{count // 1024} KiB"


Level = Literal["ok", "warning", "error"]
Pair = tuple[str, str]
# by (sender, receiver)
Matrix = dict[Pair, float]


class RankFacts(Record, frozen=True, kw_only=True, tag="rank"):
    """Facts about one rank and its host; None: not available.

    * memlock_bytes: soft limit of locked memory, None if unlimited
    * machine_cores: physical cores of the machine, also those this rank may not use
    * built_for_cuda: CUDA release of the framework that measures here, "" without CUDA, None if not installed
    """

    host: HostInfo
    code: str
    mpi: str
    pid: int
    machine_cores: int
    memlock_bytes: int | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    built_for_cuda: str | None = None
    driver: GpuHost = GpuHost()
    name_addresses: dict[str, str] = {}


class Load(Record, frozen=True, kw_only=True):
    """Other programs' use of a host, in cores. `by` holds the largest ones by process name."""

    other_cores: float = 0.0
    by: tuple[tuple[str, float], ...] = ()


class Prepared(Record, frozen=True, kw_only=True, tag="prepared"):
    """A listening node. `refused`: networks on which it cannot listen. `resolved`: IPv4 addresses by name."""

    ports: dict[str, int] = {}
    refused: dict[str, str] = {}
    resolved: dict[str, tuple[str, ...]] = {}
    load: Load = Load()


class Link(Record, frozen=True, kw_only=True, tag="link"):
    """Measurements of a pair of nodes over one network; None: not reached before `error`. `latency_s` is half the
    median round trip, `offset_s` the server's wall clock minus the client's."""

    network: str
    client: str
    server: str
    latency_s: float | None = None
    offset_s: float | None = None
    forth_bits_per_s: float | None = None
    back_bits_per_s: float | None = None
    error: str = ""

    @property
    def rates(self) -> tuple[float | None, float | None]:
        return self.forth_bits_per_s, self.back_bits_per_s


class AllReduce(Record, frozen=True, kw_only=True):
    """The timed all-reduces over one network ("" on a single node): of all ranks, and of each node's ranks at the
    same time. `left_out` is why it was not tried, `error` why it failed."""

    network: str
    backend: str = ""
    library: str = ""
    everyone: Timed | None = None
    inside: dict[str, Timed] = {}
    left_out: str = ""
    error: str = ""
    nccl: NcclChoice | None = None


class Facts(Record, frozen=True, kw_only=True, dict=True):
    """All facts of a preflight.

    * absent: absent[network][node] is why a node is not on a network
    * named, asked: --interconnect or a fabric file named the networks; --interconnect did
    * left_out: (network, node, node) of pairs not measured for lack of time
    * device_rates: of each device alone; () if they were not asked for
    """

    ranks: tuple[RankFacts, ...]
    networks: tuple[Network, ...] = ()
    absent: dict[str, dict[str, str]] = {}
    named: bool = False
    asked: bool = False
    prepared: dict[str, Prepared] = {}
    links: tuple[Link, ...] = ()
    left_out: tuple[tuple[str, str, str], ...] = ()
    all_reduces: tuple[AllReduce, ...] = ()
    device_rates: tuple[DeviceRates, ...] = ()

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self._by_node)

    @cached_property
    def _by_node(self) -> Mapping[str, tuple[RankFacts, ...]]:
        found: dict[str, list[RankFacts]] = {}
        for rank in self.ranks:
            found.setdefault(rank.host.hostname, []).append(rank)
        return {node: tuple(ranks) for node, ranks in found.items()}

    def of(self, node: str) -> tuple[RankFacts, ...]:
        return self._by_node[node]

    def host(self, node: str) -> HostInfo:
        return self.of(node)[0].host

    def nic(self, node: str, network: Network) -> Nic:
        place = network.places[node]
        own = (place.interface, place.address)
        return next(nic for nic in self.host(node).nics if (nic.name, nic.address) == own)

    def latencies(self, network: str) -> Matrix:
        """Return latencies in seconds, in both directions of each pair."""
        own = (link for link in self.links if link.network == network)
        return {pair: link.latency_s for link in own if link.latency_s is not None for pair in both(link)}

    def bandwidths(self, network: str) -> Matrix:
        """Return bandwidths in bits/s, by (sender, receiver)."""
        own = [link for link in self.links if link.network == network]
        rates = ((pair, rate) for link in own for pair, rate in zip(both(link), link.rates, strict=True))
        return {pair: rate for pair, rate in rates if rate is not None}


def both(link: Link) -> tuple[Pair, Pair]:
    """Return the link as (client, server) and (server, client)."""
    return (link.client, link.server), (link.server, link.client)


class Look(NamedTuple):
    """A device, a link or another part of a node to look at: what was measured, and what its like measure."""

    node: str
    part: str
    seen: str
    expected: str


class Verdict(NamedTuple):
    """One line of the result. `mend` is a command or a setting, "" if nothing needs fixing."""

    level: Level
    topic: str
    text: str
    mend: str = ""
    looks: tuple[Look, ...] = ()


def ok(topic: str, text: str) -> Verdict:
    return Verdict("ok", topic, text)


def warning(topic: str, text: str, mend: str, looks: Iterable[Look] = ()) -> Verdict:
    return Verdict("warning", topic, text, mend, tuple(looks))


def error(topic: str, text: str, mend: str, looks: Iterable[Look] = ()) -> Verdict:
    return Verdict("error", topic, text, mend, tuple(looks))


def of_nodes(
    level: Level, topic: str, text: str, seen: Mapping[str, str], mend: str, after: str = ""
) -> Iterator[Verdict]:
    """Yield a verdict on the nodes at which something was `seen`, grouped between `text` and `after`; none if
    nothing was seen."""
    if listed := grouped(seen):
        looks = tuple(Look(node, topic, one, "") for node, one in seen.items() if one)
        yield Verdict(level, topic, f"{text} {listed}{after}", mend, looks)


def odd(values: Mapping[str, str], part: str) -> list[Look]:
    """Return the nodes whose value is not the usual one."""
    most = usual(values.values())
    return [Look(node, part, value, most) for node, value in values.items() if value != most]


def usual(values: Iterable[str]) -> str:
    """Return the most frequent value; of equally frequent ones the first."""
    ((value, _),) = Counter(values).most_common(1)
    return value


class Findings(Record, frozen=True, kw_only=True):
    facts: Facts
    verdicts: tuple[Verdict, ...]
    wall_s: float

    @property
    def errors(self) -> int:
        return sum(verdict.level == "error" for verdict in self.verdicts)


class Prepare(Record, frozen=True, kw_only=True, tag="prepare"):
    """Order to a node's first rank: listen at `places`, resolve `names`, measure the load except `mine`."""

    places: dict[str, Place]
    names: tuple[str, ...]
    mine: tuple[int, ...]
    token: bytes


class Measure(Record, frozen=True, kw_only=True, tag="measure"):
    """Order to measure a link, for `latency_s` and twice `bandwidth_s`, at most `limit_s`."""

    network: str
    client: str
    server: str
    source: Place
    address: str
    port: int
    token: bytes
    latency_s: float
    bandwidth_s: float
    limit_s: float


class Start(Record, frozen=True, kw_only=True, tag="start"):
    """Order to start a process that measures by the framework. `number` separates its answers from older ones.
    A process of device rates answers once it is built, and again after `Go`."""

    number: int
    asked: AskedAllReduce | AskedDeviceRates


class Go(Record, frozen=True, kw_only=True, tag="go"):
    """Order to measure the device, now that all processes are built."""


class Told(Record, frozen=True, kw_only=True, tag="told"):
    """A process's answer as JSON, or why there is none; `nccl`: from NCCL's log, None without one."""

    number: int
    line: bytes = b""
    error: str = ""
    nccl: NcclChoice | None = None


class EndProcess(Record, frozen=True, kw_only=True, tag="end-process"):
    """Order to end the process with this number, or to start none."""

    number: int


class Leave(Record, frozen=True, kw_only=True, tag="leave"):
    """The preflight is over. `exit_code`: of all ranks, if a signal ended it. `answer`: the rank's last message is
    `Left`; it waits for this order again, which follows once all have left."""

    exit_code: int = 0
    answer: bool = False


class Left(Record, frozen=True, kw_only=True, tag="left"):
    pass


ToRank = Prepare | Measure | Start | Go | EndProcess | Leave
ToLead = RankFacts | Prepared | Link | Told | Left | Signalled

RANK_DECODER = msgspec.msgpack.Decoder(ToRank)
LEAD_DECODER = msgspec.msgpack.Decoder(tuple[ToLead, ...])
