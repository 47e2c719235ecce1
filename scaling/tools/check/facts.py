"""What the preflight learns and what it says of it; `--json` writes exactly this."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Literal

from scaling.records.all_reduce import Timed
from scaling.records.gpu_health import GpuHost
from scaling.records.host import HostInfo, Nic
from scaling.records.nccl import NcclChoice
from scaling.records.network import Network
from scaling.records.point import Record

Level = Literal["ok", "warning", "error"]
Pair = tuple[str, str]
# Keyed by (sender, receiver).
Matrix = dict[Pair, float]


class RankFacts(Record, frozen=True, kw_only=True, tag="rank"):
    """What one rank tells of itself and its host.

    `memlock_bytes` is the soft limit of locked memory, None for unlimited; the sizes of /dev/shm are None where
    there is none. `machine_cores` are the physical cores of the whole machine, whatever this rank may use.
    `hardware` names the interfaces whose speed is that of a card: a veth claims 10 Gb/s whatever it carries.
    `torch_cuda` is the CUDA release that torch was built with, "" for a build without any, None without torch;
    `driver` is what NVIDIA's tells; `name_addresses` as in `Enrol`.
    """

    host: HostInfo
    code: str
    mpi: str
    pid: int
    machine_cores: int
    memlock_bytes: int | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    hardware: tuple[str, ...] = ()
    torch_cuda: str | None = None
    driver: GpuHost = GpuHost()
    name_addresses: dict[str, str] = {}


class Load(Record, frozen=True, kw_only=True):
    """What runs on a host beside the launch, in cores' worth of CPU time; `by` are the largest, by name."""

    other_cores: float = 0.0
    by: tuple[tuple[str, float], ...] = ()


class Prepared(Record, frozen=True, kw_only=True, tag="prepared"):
    """A node listens. `ports` by network; `refused`: why it cannot listen there. `resolved` are the IPv4 addresses
    of every node's name as this node sees them, none where it does not resolve in time."""

    ports: dict[str, int] = {}
    refused: dict[str, str] = {}
    resolved: dict[str, tuple[str, ...]] = {}
    load: Load = Load()


class Link(Record, frozen=True, kw_only=True, tag="link"):
    """What a pair of nodes measured over one network; None what was not reached before `error`.

    `latency_s` is half the median round trip of small messages, `forth_bits_per_s` what one TCP flow carried from
    `client` to `server`, `back_bits_per_s` the other way, `offset_s` the server's wall clock minus the client's.
    """

    network: str
    client: str
    server: str
    latency_s: float | None = None
    offset_s: float | None = None
    forth_bits_per_s: float | None = None
    back_bits_per_s: float | None = None
    error: str = ""


class AllReduce(Record, frozen=True, kw_only=True):
    """A timed all-reduce of all ranks, by torch over `backend`, and those inside the nodes, all nodes at once.

    `network` is "" on a node alone. What was not timed has the reason: `left_out`, since it cannot be or need not
    be, or `error`, since it failed. `nccl` is what NCCL chose in all ranks, None without NCCL.
    """

    network: str
    backend: str = ""
    library: str = ""
    everyone: Timed | None = None
    inside: dict[str, Timed] = {}
    left_out: str = ""
    error: str = ""
    nccl: NcclChoice | None = None


class Facts(Record, frozen=True, kw_only=True, dict=True):
    """All of it. `ranks[r]` is rank r's; `absent[network][node]` says why a node is not on a network;
    `named`: the networks were asked for, by --interconnect (`asked`) or a fabric file, and not just found;
    `left_out` are the (network, node, node) that there was no time to measure."""

    ranks: tuple[RankFacts, ...]
    networks: tuple[Network, ...] = ()
    absent: dict[str, dict[str, str]] = {}
    named: bool = False
    asked: bool = False
    prepared: dict[str, Prepared] = {}
    links: tuple[Link, ...] = ()
    left_out: tuple[tuple[str, str, str], ...] = ()
    all_reduces: tuple[AllReduce, ...] = ()

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Host names in the order of their first ranks."""
        return tuple(self._by_node)

    @cached_property
    def _by_node(self) -> Mapping[str, tuple[RankFacts, ...]]:
        found: dict[str, list[RankFacts]] = {}
        for rank in self.ranks:
            found.setdefault(rank.host.hostname, []).append(rank)
        return {node: tuple(ranks) for node, ranks in found.items()}

    def of(self, node: str) -> tuple[RankFacts, ...]:
        """The ranks of a node."""
        return self._by_node[node]

    def host(self, node: str) -> HostInfo:
        """A node as its first rank sees it."""
        return self.of(node)[0].host

    def nic(self, node: str, network: Network) -> Nic:
        """A node's card on a network that it has."""
        place = network.places[node]
        return next(
            nic for nic in self.host(node).nics if (nic.name, nic.address) == (place.interface, place.address)
        )

    def latencies(self, network: str) -> Matrix:
        """Seconds; each pair both ways."""
        found = [link for link in self.links if link.network == network and link.latency_s is not None]
        return {pair: link.latency_s or 0.0 for link in found for pair in _both(link)}

    def bandwidths(self, network: str) -> Matrix:
        """Bits/s, by (sender, receiver)."""
        return dict(_directions([link for link in self.links if link.network == network]))


def _both(link: Link) -> tuple[Pair, Pair]:
    return (link.client, link.server), (link.server, link.client)


def _directions(links: list[Link]) -> Iterator[tuple[Pair, float]]:
    for link in links:
        forth, back = _both(link)
        if link.forth_bits_per_s is not None:
            yield forth, link.forth_bits_per_s
        if link.back_bits_per_s is not None:
            yield back, link.back_bits_per_s


class Verdict(Record, frozen=True, kw_only=True):
    """One line: `mend` is a command or a setting, "" where nothing needs mending."""

    level: Level
    topic: str
    text: str
    mend: str = ""


class Findings(Record, frozen=True, kw_only=True):
    """The whole preflight, as `--json` writes it."""

    facts: Facts
    verdicts: tuple[Verdict, ...]
    wall_s: float

    @property
    def errors(self) -> int:
        """How many verdicts are errors."""
        return sum(verdict.level == "error" for verdict in self.verdicts)
