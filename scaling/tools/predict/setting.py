"""The setting and the measurements of a prediction: gradients, exchange, network. Plain data without arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from scaling.records.point import Record


class Exchange(NamedTuple):
    """A measured `comm`, or an all-reduce of other bytes with its own `setting`. `noise` is of the logarithm."""

    at: At
    seconds: float
    noise: float
    setting: Setting | None = None


class Constant(NamedTuple):
    """A constant that was measured directly, by its role in the equations; "network" in bytes/s of a node.

    `noise` is of the logarithm.
    """

    role: str
    value: float
    noise: float


class Share(NamedTuple):
    """Contention or straggling from controls, as a fraction of the time of one device alone."""

    at: At
    part: str
    fraction: float
    noise: float


class Known(NamedTuple):
    """All measurements. Efficiencies are relative to `anchor`, where `setting.step_s` was measured."""

    anchor: At
    observed: Sequence[Observed] = ()
    exchanges: Sequence[Exchange] = ()
    shares: Sequence[Share] = ()
    anchor_noise: float = 0.0
    constants: Sequence[Constant] = ()


Bus = Literal["pcie", "nvlink", "nvswitch", "host", "loopback", "unknown"]
Link = Literal["none", "tcp10", "tcp", "ipoib", "rdma", "rdma_several", "unknown"]
Carrier = Literal["nccl", "cpu"]
Method = Literal["ring", "hierarchical", "servers_apart", "servers_beside", "servers_in_host", "sharded"]
Overlap = Literal["ddp", "horovod", "other", "mwms", "serial"]
Messages = Literal["one", "tensors", "buckets", "fusion"]
Wire = Literal["full", "half", "unknown"]


def tcp_link(gbit: float, *, infiniband: bool = False) -> Link:
    """Return the kind of TCP over a card of this rate: up to 10 Gb/s a host keeps up with its line."""
    if gbit <= 10:
        return "tcp10"
    return "ipoib" if infiniband else "tcp"


class Setting(Record, frozen=True, kw_only=True):
    """The workload, the exchange and the network.

    * gradient_bytes: in float32, divided by `compress`; `wire` is their type on the network
    * tail: share of the gradients that only the end of backward produces
    * step_s: one micro step of one device alone; `step_spread`, of its logarithm, is 0 unless it is a guess
    * bus_bytes_per_s: of an all-reduce alone in one node (`buses.py`); 0 takes the usual one of the bus
    * line_bytes_per_s: of one node over all its `cards`, by the data sheet
    * carrier: "cpu" if CPUs reduce and send the gradients, as Gloo and gRPC do
    * tree: NCCL may use trees (2.4 and newer)
    * sparse_bytes: of each rank, gathered by all
    """

    gradient_bytes: float
    tail: float = 0.0
    step_s: float
    step_spread: float = 0.0
    bus: Bus = "pcie"
    bus_bytes_per_s: float = 0.0
    link: Link = "none"
    line_bytes_per_s: float = 0.0
    cards: int = 1
    carrier: Carrier = "nccl"
    method: Method = "ring"
    overlap: Overlap = "other"
    messages: Messages = "buckets"
    tensors: int = 100
    tree: bool = True
    wire: Wire = "full"
    sparse_bytes: float = 0.0
    compress: float = 1.0
    emulated: bool = False


class At(Record, frozen=True, kw_only=True):
    """A world size. `accumulation` is the number of micro steps between two exchanges."""

    world_size: int
    nodes: int
    accumulation: int = 1

    @property
    def devices_per_node(self) -> float:
        return self.world_size / self.nodes


class Observed(Record, frozen=True, kw_only=True):
    """A measured efficiency relative to the anchor. `noise` is the standard deviation of its logarithm."""

    at: At
    value: float
    noise: float = 0.005
