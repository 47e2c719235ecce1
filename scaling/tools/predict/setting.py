"""What a prediction is made for: the gradients, the exchange, the network. Plain data, no arrays."""

from __future__ import annotations

from typing import Literal

from scaling.records.point import Record

Bus = Literal["pcie", "nvlink", "nvswitch", "host", "loopback"]
Link = Literal["none", "tcp10", "tcp", "rdma", "rdma_several", "unknown"]
Method = Literal["ring", "hierarchical", "servers_apart", "servers_beside", "servers_in_host", "sharded"]
Overlap = Literal["ddp", "horovod", "other", "mwms", "serial"]
Messages = Literal["one", "tensors", "buckets", "fusion"]
Wire = Literal["full", "half", "unknown"]


class Setting(Record, frozen=True, kw_only=True):
    """What is trained and over what its gradients travel.

    `gradient_bytes` are those of float32; `wire` says whether they travel as such, in half, or nobody knows.
    `tail` is the share of them that only the end of backward makes. `step_s` is one micro step of one device
    alone, `step_spread` the standard deviation of its logarithm where it is a guess. `line_bytes_per_s` is what
    the data sheet gives one node, over all its cards. `tree`: NCCL may take trees (2.4 and newer). `sparse_bytes`
    are of each rank and gathered by all. `compress` divides the bytes of all gradients. `emulated` devices sleep
    in place of computing, on links that are shaped to their line.
    """

    gradient_bytes: float
    tail: float = 0.0
    step_s: float
    step_spread: float = 0.0
    bus: Bus = "pcie"
    link: Link = "none"
    line_bytes_per_s: float = 0.0
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
    """A world size: its devices, their nodes, and the micro steps between two exchanges."""

    world_size: int
    nodes: int
    accumulation: int = 1

    @property
    def devices_per_node(self) -> float:
        """Mean over the nodes in use."""
        return self.world_size / self.nodes


class Observed(Record, frozen=True, kw_only=True):
    """An efficiency that was measured: `value` against one device, `noise` the standard deviation of its
    logarithm."""

    at: At
    value: float
    noise: float = 0.005
