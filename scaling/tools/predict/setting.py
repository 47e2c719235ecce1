"""The setting and the measurements of a prediction: gradients, exchange, network. Plain data without arrays."""

from __future__ import annotations

from typing import Literal, NamedTuple

from scaling.records.point import Record

Bus = Literal["pcie", "nvlink", "nvswitch", "host", "loopback", "unknown"]
Link = Literal["none", "tcp10", "tcp", "ipoib", "rdma", "rdma_several", "unknown"]
Carrier = Literal["nccl", "cpu"]
Method = Literal["ring", "hierarchical", "servers_apart", "servers_beside", "servers_in_host", "sharded"]
Overlap = Literal["ddp", "horovod", "other", "mwms", "serial"]
Messages = Literal["one", "tensors", "buckets", "fusion"]


class Setting(Record, frozen=True, kw_only=True):
    """The workload, the exchange and the network.

    * gradient_bytes: on the network, one copy
    * gathered_bytes: of the parameters that ZeRO-1 gathers after each step
    * tail: share of the gradients that only the end of backward produces
    * step_s: one micro step of one device alone; `step_spread`, of its logarithm, is 0 unless it is a guess
    * bus_bytes_per_s: of an all-reduce alone in one node (`catalogue.py`); 0 takes the usual one of the bus
    * line_bytes_per_s: of one node over all its `cards`, by the data sheet
    * carrier: "cpu" if CPUs reduce and send the gradients, as Gloo and gRPC do
    * tree: NCCL may use trees (2.4 and newer)
    * sparse_bytes: of each rank, gathered by all
    """

    gradient_bytes: float
    gathered_bytes: float = 0.0
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
    sparse_bytes: float = 0.0
    emulated: bool = False


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


class Observed(Record, frozen=True, kw_only=True):
    """A measured efficiency relative to the anchor. `noise` is the standard deviation of its logarithm."""

    at: At
    value: float
    noise: float = 0.005


class Exchange(NamedTuple):
    """A measured `comm`, or an all-reduce of other bytes with its own `setting`. `noise` is of the logarithm."""

    at: At
    seconds: float
    noise: float
    setting: Setting | None = None


class Constant(NamedTuple):
    """A constant that was measured directly, by its role in the equations; "network" in bytes/s of a node."""

    role: str
    value: float
    noise: float


class Share(NamedTuple):
    """Contention or straggling from controls, as a fraction of the time of one device alone."""

    at: At
    part: Literal["contention", "straggling"]
    fraction: float
    noise: float


class Known(NamedTuple):
    """All measurements. Efficiencies are relative to `anchor`, where `setting.step_s` was measured."""

    anchor: At
    observed: tuple[Observed, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    shares: tuple[Share, ...] = ()
    constants: tuple[Constant, ...] = ()
