"""What is measured: one cell of the sweep, and the words it is described with."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Kind = Literal["exchange", "solo", "together", "comm"]
# How strategies name the helpers that hold parameters: server-0, server-1, ...
SERVER = "server-"
EXCHANGING: tuple[Kind, ...] = ("exchange", "comm")
Device = Literal["cpu", "cuda", "emulated"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
BatchRule = Literal["weak", "strong"]
Placement = Literal["pack", "spread"]
MemoryFormat = Literal["contiguous", "channels_last"]
ServerHosts = Literal["shared", "dedicated"]
# How gradients travel: in a ring of all ranks, to servers and back, or inside one process.
Pattern = Literal["", "ring", "servers", "inside"]


class Record(Struct, frozen=True, kw_only=True):
    """The base of all: immutable, fields by keyword."""


class Point(Record, frozen=True):
    """One cell of the sweep. `batch_size` is per device; the controls of the plain loop (`solo`,
    `together`) carry the strategy `<framework>:plain`, so that strategies of a framework share them.

    `servers` is the number of parameter servers, 0 for strategies without any; `server_hosts` whether they
    share the training nodes or have nodes of their own.

    Of an emulated device: `profile` (emulated/profiles.toml); gradients' bytes were divided by `shrink`, times
    multiplied by `dilate`, links' rates divided by both. Times in records are those that the clock showed.
    """

    strategy: str
    kind: Kind
    world_size: int
    round: int
    model: str
    data: str
    device: Device
    batch_rule: BatchRule
    batch_size: int
    precision: Precision = "fp32"
    memory_format: MemoryFormat = "contiguous"
    compile: bool = False
    placement: Placement = "pack"
    interconnect: str = "auto"
    options: dict[str, str] = {}
    servers: int = 0
    server_hosts: ServerHosts = "shared"
    profile: str = ""
    shrink: float = 1.0
    dilate: float = 1.0

    @property
    def global_batch_size(self) -> int:
        """Samples of one step over all devices."""
        return self.batch_size * self.world_size

    @property
    def cell(self) -> str:
        """Identity without the round: what is repeated."""
        options = ",".join(f"{k}={v}" for k, v in sorted(self.options.items()))
        servers = (f"{self.servers} servers {self.server_hosts}",) if self.servers else ()
        emulated = (f"{self.profile} / {self.shrink:g} x {self.dilate:g}",) if self.profile else ()
        parts = (
            self.strategy, self.kind, f"n{self.world_size}", self.model, self.data, self.device,
            self.batch_rule, f"b{self.batch_size}", self.precision, self.memory_format,
            "compiled" if self.compile else "eager", self.placement, self.interconnect, options, *servers,
            *emulated,
        )  # fmt: skip
        return "/".join(parts)

    @property
    def key(self) -> str:
        """Identity of one measurement; `--resume` measures the keys that a run lacks."""
        return f"{self.cell}/r{self.round}"

    @property
    def label(self) -> str:
        """Short name for people: `torch:gloo exchange N=2 round 1`."""
        return f"{self.strategy} {self.kind} N={self.world_size} round {self.round + 1}"
