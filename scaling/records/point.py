"""What is measured: one cell of the sweep, the work it does, the hardware it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import astuple, replace

# ---------------------------------------------------------------- bounds
# What numbers of a record can be. Anybody may have written the file: a value outside is an error of its line, so
# that nothing behind the decoder needs to doubt a number.


# Exact as a float, too.
MOST = 2**53
Count = Annotated[int, Meta(ge=0, le=MOST)]
# Ranks, devices, nodes, rounds, samples of a batch.
Size = Annotated[int, Meta(ge=1, le=2**31)]
Index = Annotated[int, Meta(ge=0, le=2**31)]
# A span, or a moment of CLOCK_MONOTONIC.
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
# Up to the year 9999, the last that has a date.
UnixSeconds = Annotated[float, Meta(ge=0, le=253_402_300_799)]
# Rates, watts, per cent, joules.
Amount = Annotated[float, Meta(ge=0, le=1e18)]
# What a canary took, of which no rate is formed.
Taken = Annotated[float, Meta(ge=0, le=1e300)]
# By what something is divided or multiplied.
Factor = Annotated[float, Meta(ge=1e-6, le=1e6)]
# Of either sign: losses, and differences of counters that some kernels set back.
Signed = Annotated[float, Meta(ge=-1e39, le=1e39)]
# The resolution of CLOCK_MONOTONIC.
LEAST_S = 1e-9


# ---------------------------------------------------------------- point

Kind = Literal["exchange", "solo", "each", "together", "comm", "train", "feed", "held"]
# How strategies name the helpers that hold parameters: server-0, server-1, ...
SERVER = "server-"
EXCHANGING: tuple[Kind, ...] = ("exchange", "comm", "train")
# What a table is about; others explain it.
WANTED: tuple[Kind, ...] = ("exchange", "train")
# Ranks at once, none of which waits for another: plain loops, the same on batches that stay on the devices, and
# what feeds them by itself.
BESIDE: tuple[Kind, ...] = ("together", "held", "feed")
# What a sample is.
Unit = Literal["images", "samples", "tokens"]
# What updates the parameters.
Optimizer = Literal["sgd", "rmsprop", "adadelta", "adam", "adamw"]
Device = Literal["cpu", "cuda", "emulated"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
# Whose batch stays as it is while devices grow in number: a device's, that of all devices, a node's.
BatchRule = Literal["weak", "strong", "node"]
Placement = Literal["pack", "spread"]
MemoryFormat = Literal["contiguous", "channels_last"]
ServerHosts = Literal["shared", "dedicated"]
# How the learning rate grows with the samples of an update: in proportion (Goyal 2017), by the root, not at all.
LrScale = Literal["linear", "sqrt", "none"]
# How much of a training step is done: the forward pass; that and the backward one; or all of it.
Pass = Literal["forward", "backward", "step"]
# Who decodes and hands over batches: the pipeline that all frameworks share, or each framework's own.
Feed = Literal["reference", "native"]
# What a trainer can do of a training to an accuracy: evaluate what is held out, change the learning rate on the
# way, average batch norm's statistics over ranks.
Skill = Literal["evaluate", "rate", "statistics"]
# How gradients travel: in a ring of all ranks, to servers and back, or inside one process.
Pattern = Literal["", "ring", "servers", "inside"]


# Fields of works, hardware and regimes that older files lack, with their defaults: these stand in no cell's
# name.
LATER: Mapping[str, object] = {
    "pass_": "step", "cores": 0, "train_samples": 0, "test_samples": 0,
    "feed": "reference", "feed_workers": 0, "drop_caches": False,
}  # fmt: skip


class Record(Struct, frozen=True, kw_only=True):
    """The base of all: immutable. msgspec does not inherit `kw_only`: each subclass says it again."""


class Workload(Record, frozen=True, kw_only=True, order=True, rename={"pass_": "pass"}):
    """What is trained, and how: everything that two rates must share to be of the same work, devices apart.

    `batch_size` counts the samples of one step on one device. `unit` is what a rate counts; a sample is one of
    them, or a sequence of `sequence_length` tokens. `image_size` is 0 for the model's own, `sequence_length` for
    models that read no tokens; `optimizer` is empty for that of the model's recipe. Under the `node` rule the
    batch of a node is shared by `node_devices` of its devices, as many on each node that takes part. `pass_` is
    what one step does: `forward`, in training mode; `backward`, both passes, as studies of pass times count it;
    `step`, with the exchange and the update. Only a whole step trains. `feed` is what hands over batches, with
    `feed_workers` processes or threads on each rank, 0 for those that it takes by itself; with `drop_caches` the
    data's files are dropped from the page cache before each point.
    """

    model: str
    data: str
    batch_rule: BatchRule
    batch_size: Size
    precision: Precision = "fp32"
    memory_format: MemoryFormat = "contiguous"
    compile: bool = False
    unit: Unit = "images"
    node_devices: Size = 1
    image_size: Index = 0
    sequence_length: Index = 0
    optimizer: Optimizer | Literal[""] = ""
    pass_: Pass = "step"
    feed: Feed = "reference"
    feed_workers: Index = 0
    drop_caches: bool = False

    @property
    def units_per_sample(self) -> int:
        """How many of `unit` a sample is: a sequence's tokens, else one."""
        return max(self.sequence_length, 1) if self.unit == "tokens" else 1

    @property
    def sample_size(self) -> str:
        """`64 px` of images that have not the model's own size, `128 tokens` of sequences; "" for others."""
        if self.sequence_length:
            return f"{self.sequence_length:,} tokens"
        return f"{self.image_size} px" if self.image_size else ""

    @property
    def trains(self) -> bool:
        """Whether a step changes the parameters."""
        return self.pass_ == "step"

    @property
    def is_strong(self) -> bool:
        """Whether a fixed batch, over all devices or of a node, is divided, so that each device's part shrinks."""
        return self.batch_rule != "weak"

    def share(self, world_size: int) -> int:
        """Among how many devices the work of the one behind efficiency is divided: 1 under the weak rule, those
        of a node under the node rule."""
        return world_size if self.batch_rule == "strong" else self.node_devices

    def reference(self, world_size: int) -> Workload:
        """The work of the one device behind efficiency: at the batch per device (weak rule), the global one
        (strong rule), or that of a whole node (node rule)."""
        return replace(self, batch_size=self.batch_size * self.share(world_size), node_devices=1)

    def alone(self, batch_size: int) -> Workload:
        """The same at this batch, where no rule shares a batch among devices: what controls have."""
        return replace(self, batch_rule="weak", batch_size=batch_size, node_devices=1)


class Hardware(Record, frozen=True, kw_only=True, order=True):
    """The kind of device that trains.

    `cores` are those of a CPU that stands beside GPUs and is taken whole, all of a host's; 0 elsewhere, where a
    rank on a CPU has its share.
    Of an emulated one: `profile` (emulated/profiles.toml); gradients' bytes were divided by `shrink`, times
    multiplied by `dilate`, links' rates divided by both. Times in records are those that the clock showed.
    """

    device: Device
    profile: str = ""
    shrink: Factor = 1.0
    dilate: Factor = 1.0
    cores: Index = 0

    @property
    def link_divisor(self) -> float:
        """By how much links are slower than those of the cluster that is emulated; 1 for real devices."""
        return self.shrink * self.dilate

    @property
    def label(self) -> str:
        """`cuda`, `cpu (16 cores)`, or `emulated:p100 (sizes / 10, times x 4)`."""
        if self.cores:
            return f"{self.device} ({self.cores} core{'s' if self.cores > 1 else ''})"
        if not self.profile:
            return self.device
        return f"{self.device}:{self.profile} (sizes / {self.shrink:g}, times x {self.dilate:g})"


class Regime(Record, frozen=True, kw_only=True, order=True):
    """How a point of the kind `train` is trained to an accuracy, from the weights and the order of its `seed`.

    The learning rate is `base_rate`, meant for updates of `base_batch` samples, times what `lr_scale` makes of the
    point's own: `rate`. In the first `warmup_epochs` it grows from the one to the other, and from each epoch of
    `lr_steps` on it is a tenth of what it was. The last `augment_epochs` of all `epochs` see changed images.
    `target_top1` is a fraction of 1, at which training ends early. `weights` is a file to begin with.
    `optimizer` updates, whoever chose it. `train_samples` are those that are trained on and `test_samples` those
    that top-1 is of, both the same for every seed; 0 for all that the data has.
    """

    epochs: Size
    seed: int
    rate: Amount
    base_rate: Amount
    base_batch: Size
    optimizer: Optimizer = "sgd"
    lr_scale: LrScale = "none"
    warmup_epochs: Index = 0
    lr_steps: tuple[int, ...] = ()
    augment_epochs: Index = 0
    target_top1: Amount | None = None
    weights: str = ""
    train_samples: Count = 0
    test_samples: Count = 0


class Point(Record, frozen=True, kw_only=True, dict=True):
    """One cell of the sweep: which exchange trains what, on how many devices of which kind.

    The controls of the plain loop (`solo`, `each`, `together`, `held`, `feed`) carry the strategy
    `<framework>:plain`, so that strategies of a framework share them. `regime` is that of a `train`, else None.
    `servers` is the number of parameter servers, 0 for strategies without any; `server_hosts` whether they share
    the training nodes or have nodes of their own. `hosts` are the only ones that it takes, by name; none named:
    the first of the launch (`plan/placement.py`).
    """

    strategy: str
    kind: Kind
    world_size: Size
    round: Index
    workload: Workload
    hardware: Hardware
    placement: Placement = "pack"
    interconnect: str = "auto"
    options: dict[str, str] = {}
    servers: Index = 0
    server_hosts: ServerHosts = "shared"
    regime: Regime | None = None
    hosts: tuple[str, ...] = ()

    @property
    def global_batch_size(self) -> int:
        """Samples of one step over all devices."""
        return self.workload.batch_size * self.world_size

    @property
    def reference(self) -> Workload:
        """The work of the one device behind efficiency."""
        return self.workload.reference(self.world_size)

    @property
    def is_alone(self) -> bool:
        """Whether nothing else of the run runs beside a rank: the plain loop on one device at a time."""
        return self.kind in ("solo", "each")

    @property
    def has_own_cpus(self) -> bool:
        """Whether all that runs on the CPUs of a rank is its worker's process, or somebody else's. A framework's
        own feed may have processes of its own, and beside a GPU a rank leaves most of its CPUs idle."""
        return self.is_alone and self.hardware.device == "cpu" and self.workload.feed == "reference"

    @cached_property
    def sorted_options(self) -> tuple[tuple[str, str], ...]:
        """The strategy's options in a fixed order, hashable."""
        return tuple(sorted(self.options.items()))

    @cached_property
    def cell(self) -> str:
        """Identity without the round: what is repeated."""
        options = ",".join(f"{k}={v}" for k, v in self.sorted_options)
        servers = (f"{self.servers} servers {self.server_hosts}",) if self.servers else ()
        parts = (
            self.strategy, self.kind, f"n{self.world_size}", *_words(self.workload), *_words(self.hardware),
            self.placement, self.interconnect, options, *servers, *(_words(self.regime) if self.regime else ()),
            *((f"on {','.join(self.hosts)}",) if self.hosts else ()),
        )  # fmt: skip
        return "/".join(parts)

    @cached_property
    def key(self) -> str:
        """Identity of one measurement; `--resume` measures the keys that a run lacks."""
        return f"{self.cell}/r{self.round}"

    @property
    def label(self) -> str:
        """Short name for people: `torch:gloo exchange N=2 round 1`, `torch:plain forward N=1 batch 32 round 1`."""
        work = self.workload
        what = self.kind if work.trains else work.pass_
        batch = "" if work.trains else f" batch {work.batch_size}"
        where = f" on {self.hardware.label}" if self.hardware.cores else ""
        which = f"round {self.round + 1}"
        if self.regime:
            which = f"batch {work.batch_size} rate {self.regime.rate:.4g} seed {self.regime.seed}"
        hosts = f" on {','.join(self.hosts)}" if self.hosts else ""
        return f"{self.strategy} {what}{where} N={self.world_size}{batch}{hosts} {which}"


def _words(of: Workload | Hardware | Regime) -> list[str]:
    """Its values in order; those that came later only where they are not the default."""
    fields = zip(of.__struct_fields__, astuple(of), strict=True)
    return [str(value) for name, value in fields if name not in LATER or value != LATER[name]]
