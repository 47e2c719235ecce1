"""The data of a prediction: setting, measurements, priors; models, devices and networks by name.

Rates of buses are of an all-reduce alone. A training reaches a share of them, which is learned (`bus.*` in
priors.toml).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from math import log
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from scaling.errors import UsageError, near
from scaling.records.point import Record

Bus = Literal["pcie", "nvlink", "nvswitch", "loopback", "unknown"]
Link = Literal["tcp", "ipoib", "rdma", "unknown"]
Method = Literal["ring", "sharded", "servers_apart", "servers_beside"]
Overlap = Literal["backward", "mwms", "serial"]
Messages = Literal["one", "tensors", "buckets"]


class At(Record, frozen=True, kw_only=True):
    """A world size. `accumulation` is the number of micro steps between two exchanges.

    `each`: devices of the fullest node; 0 if all have as many.
    """

    world_size: int
    nodes: int
    each: int = 0
    accumulation: int = 1

    @property
    def devices_per_node(self) -> float:
        return self.each or self.world_size / self.nodes


class Setting(Record, frozen=True, kw_only=True):
    """The workload, the exchange and the network.

    * gradient_bytes: on the network, one copy
    * gathered_bytes: of the parameters that ZeRO-1 gathers after each step
    * tail: share of the gradients that only the end of backward produces
    * step_s: one micro step of one device at `anchor`; `step_spread`, of its logarithm, is 0 unless it is a guess
    * bus_bytes_per_s: of an all-reduce alone in one node (`bytes_per_s`); 0 takes the usual one of the bus
    * link: "unknown" also if one node alone was measured
    * line_bytes_per_s: of one node over all its `cards`, by the data sheet
    * carrier: "cpu" if CPUs reduce and send the gradients, as Gloo and gRPC do
    * sparse_bytes: of each rank, gathered by all
    """

    gradient_bytes: float
    gathered_bytes: float = 0.0
    tail: float = 0.0
    step_s: float
    step_spread: float = 0.0
    anchor: At = At(world_size=1, nodes=1)
    bus: Bus = "pcie"
    bus_bytes_per_s: float = 0.0
    link: Link = "unknown"
    line_bytes_per_s: float = 0.0
    cards: int = 1
    carrier: Literal["nccl", "cpu"] = "nccl"
    method: Method = "ring"
    overlap: Overlap = "backward"
    messages: Messages = "buckets"
    tensors: int = 100
    sparse_bytes: float = 0.0
    emulated: bool = False


# standard deviations from the middle of a 95 % interval to its ends
NORMAL_95 = 1.96
# noise of a single round, and limits of the noise from any number of rounds: with the largest nothing is known
ONE_ROUND, LEAST_NOISE, MOST_NOISE = 0.02, 0.004, 1.0


class Measured(Record, frozen=True, kw_only=True):
    """A world size with its efficiency relative to the setting's anchor; the ends are of the 95 % interval."""

    at: At
    samples_per_s: float = 0.0
    efficiency: float
    low: float | None = None
    high: float | None = None

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm; an interval that reaches 0 tells nothing."""
        if self.low is None or self.high is None:
            return ONE_ROUND
        wide = log(self.high / self.low) / 2 / NORMAL_95 if self.low > 0 else MOST_NOISE
        return min(max(LEAST_NOISE, wide), MOST_NOISE)


# ---------------------------------------------------------------- priors


class Prior(Record, frozen=True, kw_only=True):
    """A constant before measurements: normal in its logarithm, `hide` in its logit. How many series and publishers
    taught it is for readers of the file, which has more for them."""

    mean: float
    sd: float
    series: int = 0
    publishers: int = 0


class Priors(Record, frozen=True, kw_only=True):
    """`walk`: the model's error, a random walk of the loss over log2 N; its steps are standard deviations per
    doubling `inside` a node, on `leaving` one node, per doubling of nodes `beyond`.
    `quantiles`: by what is known, factors on the standard deviation below and above, which cover 80 %."""

    walk: Mapping[str, float]
    quantiles: Mapping[str, tuple[float, float]]
    constants: Mapping[str, Prior]


FILE = Path(__file__).with_name("priors.toml")


@cache
def read() -> Priors:
    return msgspec.toml.decode(FILE.read_bytes(), type=Priors)


# ---------------------------------------------------------------- models, devices, buses


class KnownModel(Record, frozen=True, kw_only=True):
    name: str
    parameters: int
    tail: float = 0.05
    tensors: int = 200
    pattern: str = ""


class _Device(Record, frozen=True, kw_only=True):
    pattern: str
    links: float
    pcie: float


class _File(Record, frozen=True, kw_only=True):
    models: tuple[KnownModel, ...]
    devices: tuple[_Device, ...]
    covered: str
    unlinked: str
    usual: Mapping[Bus, float]


_FILE = msgspec.toml.decode(Path(__file__).with_name("catalogue.toml").read_bytes(), type=_File)
MODELS, USUAL_BYTES_PER_S = _FILE.models, _FILE.usual


def known_model(words: str) -> KnownModel | None:
    return next((one for one in MODELS if re.search(one.pattern, words.lower())), None)


def is_covered(device: str) -> bool:
    return re.search(_FILE.covered, device.lower()) is not None


def bytes_per_s(bus: Bus, device: str) -> float | None:
    """Return the rate of a bus between devices of this name: 0 if they lack it, None if the name is unknown."""
    known = next((one for one in _FILE.devices if re.search(one.pattern, device.lower())), None)
    if known is None:
        return None
    return {"pcie": known.pcie, "nvlink": known.links, "nvswitch": known.links}.get(bus, 0.0)


def named_bus(words: str, device: str) -> tuple[Bus, float | None]:
    """Parse `nvswitch` or `nvswitch:450` into a bus and its bytes/s, as `bytes_per_s`. Raises UsageError."""
    buses: dict[str, Bus] = {"": "unknown", "pcie": "pcie", "nvlink": "nvlink", "nvswitch": "nvswitch"}
    word, colon, rate = words.strip().lower().partition(":")
    if (bus := buses.get(word)) is None or (colon and not word):
        raise UsageError(f"--bus {words}: unknown bus; {near(word, [*buses][1:])}")
    if bus in ("nvlink", "nvswitch") and re.search(_FILE.unlinked, device.lower()):
        raise UsageError(f"--bus {words}: {device} has no NVLink; take --bus pcie")
    if not colon:
        return bus, bytes_per_s(bus, device)
    if not re.fullmatch(r"\d{1,4}(\.\d{1,3})?", rate) or float(rate) == 0:
        raise UsageError(f"--bus {words}: write {bus} or {bus}:GB/s of an all-reduce alone, such as {bus}:100")
    return bus, 1e9 * float(rate)


# ---------------------------------------------------------------- networks

# words of --network
RDMA, TCP = ("ib", "roce", "rdma"), ("tcp", "eth", "ipoib")
# Gb/s of one card and cards of a node: Fast Ethernet to twice what is sold
SLOWEST_GBIT, FASTEST_GBIT, MOST_CARDS = 0.1, 1600, 16


class Wires(NamedTuple):
    """A network between nodes, as fields of a Setting."""

    link: Link
    line_bytes_per_s: float
    cards: int = 1


def network(words: str, *, verbs: bool = True) -> Wires:
    """Parse `ib:200` or `tcp:25x2`. Raises UsageError. Without verbs, RDMA cards carry TCP."""
    parsed = re.fullmatch(r"([a-z]+):(\d{1,6}(?:\.\d{1,6})?)(?:x(\d{1,3}))?", words.strip().lower())
    if not parsed:
        raise UsageError(f"--network {words}: write KIND:GBIT or KIND:GBITxCARDS, such as ib:200 or tcp:25x2")
    kind, gbit, cards = parsed[1], float(parsed[2]), int(parsed[3] or 1)
    if kind not in (*RDMA, *TCP):
        raise UsageError(f"--network {words}: unknown kind; {near(kind, (*RDMA, *TCP))}")
    if not (SLOWEST_GBIT <= gbit <= FASTEST_GBIT and 1 <= cards <= MOST_CARDS):
        limits = f"{SLOWEST_GBIT:g} to {FASTEST_GBIT:,} Gb/s of one card, 1 to {MOST_CARDS} cards of a node"
        raise UsageError(f"--network {words}: give {limits}")
    link: Link = "rdma" if kind in RDMA and verbs else "ipoib" if kind == "ipoib" else "tcp"
    return Wires(link, gbit * cards * 1e9 / 8, cards)
