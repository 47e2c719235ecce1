"""Points, with their workload and hardware."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import astuple, replace

# ---------------------------------------------------------------- bounds
# Anybody may have written a run's file. The decoder refuses values outside these bounds.


MOST = 2**53
Count = Annotated[int, Meta(ge=0, le=MOST)]
Size = Annotated[int, Meta(ge=1, le=2**31)]
Index = Annotated[int, Meta(ge=0, le=2**31)]
# A duration, or a time of CLOCK_MONOTONIC.
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
# Up to the year 9999, datetime's last.
UnixSeconds = Annotated[float, Meta(ge=0, le=253_402_300_799)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Taken = Annotated[float, Meta(ge=0, le=1e300)]
Factor = Annotated[float, Meta(ge=1e-6, le=1e6)]
# Of either sign: losses, and differences of counters that may go back.
Signed = Annotated[float, Meta(ge=-1e39, le=1e39)]
LEAST_S = 1e-9


# ---------------------------------------------------------------- point

Kind = Literal["exchange", "solo", "each", "together", "comm", "train", "feed", "held"]
# Names of parameter servers: server-0, server-1, ...
SERVER = "server-"
EXCHANGING: tuple[Kind, ...] = ("exchange", "comm", "train")
# Kinds of rows; the others explain them.
WANTED: tuple[Kind, ...] = ("exchange", "train")
# All ranks run at the same time without an exchange.
BESIDE: tuple[Kind, ...] = ("together", "held", "feed")
# `steps`: of a script whose samples are unknown.
Unit = Literal["images", "samples", "tokens", "steps"]
Optimizer = Literal["sgd", "rmsprop", "adadelta", "adam", "adamw"]
Device = Literal["cpu", "cuda", "emulated"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
# The batch that is fixed as devices are added: of a device, of all devices, of a node.
BatchRule = Literal["weak", "strong", "node"]
Placement = Literal["pack", "spread"]
MemoryFormat = Literal["contiguous", "channels_last"]
ServerHosts = Literal["shared", "dedicated"]
# How the learning rate grows with the samples of an update: in proportion (Goyal 2017), by the root, not at all.
LrScale = Literal["linear", "sqrt", "none"]
Pass = Literal["forward", "backward", "step"]
# The pipeline that all frameworks share, or each framework's own.
Feed = Literal["reference", "native"]
Skill = Literal["evaluate", "rate", "statistics"]
# How gradients are sent: in a ring of ranks, to servers and back, or inside one process.
Pattern = Literal["", "ring", "servers", "inside"]


# Fields that older files lack, with their defaults. A default is left out of a cell's name.
LATER: Mapping[str, object] = {
    "pass_": "step", "cores": 0, "train_samples": 0, "test_samples": 0,
    "feed": "reference", "feed_workers": 0, "drop_caches": False,
    "script": "", "samples_per_step": 0, "in_place": False,
}  # fmt: skip
# What a script decides itself. Records have what was found (store.settled), and a cell's name has none of it.
FOUND = ("batch_rule", "batch_size", "unit")


class Record(Struct, frozen=True, kw_only=True):
    """The base of all immutable data. msgspec does not inherit `kw_only`: each subclass repeats it."""


class Workload(Record, frozen=True, kw_only=True, order=True, rename={"pass_": "pass"}):
    """The work of a step and its settings. Two rates are of the same work if these are equal.

    `batch_size`: samples of one step on one device.
    `unit`: the unit of a rate; a sample is one unit, or a sequence of `sequence_length` tokens.
    `image_size`: pixels, 0 for the model's own; `sequence_length`: tokens, 0 for models without.
    `optimizer`: "" for that of the model's recipe.
    `node_devices`: devices of each node that share its batch (`node` rule).
    `pass_`: forward (in training mode), backward (both passes), or step (with exchange and update).
    `feed_workers`: processes or threads of each rank's feed, 0 for its default.
    `drop_caches`: drop the data's files from the page cache before each point.
    `script`: the command of a user's own training, "" for models of this package; `model` is then its label.
    `samples_per_step`: of a rank's step of a script, 0 to count them.
    `in_place`: run the script in the working directory, not in a copy.
    """

    model: str
    data: str
    batch_rule: BatchRule
    batch_size: Size
    precision: Precision | Literal["own"] = "fp32"
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
    script: str = ""
    samples_per_step: Index = 0
    in_place: bool = False

    @property
    def units_per_sample(self) -> int:
        """How many of `unit` a sample is: a sequence's tokens, else 1."""
        return max(self.sequence_length, 1) if self.unit == "tokens" else 1

    @property
    def sample_size(self) -> str:
        """`64 px` or `128 tokens`; "" for images of the model's own size."""
        if self.sequence_length:
            return f"{self.sequence_length:,} tokens"
        return f"{self.image_size} px" if self.image_size else ""

    @property
    def trains(self) -> bool:
        """Whether a step changes the parameters."""
        return self.pass_ == "step"

    @property
    def is_strong(self) -> bool:
        """Whether a rule divides a fixed batch among devices."""
        return self.batch_rule != "weak"

    def share(self, world_size: int) -> int:
        """Return how many devices share the reference's work: all (strong), a node's (node rule), 1 (weak)."""
        return world_size if self.batch_rule == "strong" else self.node_devices

    def reference(self, world_size: int) -> Workload:
        """Return the work of the one device to which efficiency refers: the batch that the rule keeps fixed."""
        return replace(self, batch_size=self.batch_size * self.share(world_size), node_devices=1)

    def alone(self, batch_size: int | None = None) -> Workload:
        """Return the same under the weak rule, as controls have it: at this batch, by default at its own."""
        own = self.batch_size if batch_size is None else batch_size
        return replace(self, batch_rule="weak", batch_size=own, node_devices=1)


class Hardware(Record, frozen=True, kw_only=True, order=True):
    """The kind of device that trains.

    `cores`: of a whole CPU that is compared with GPUs; 0 for all other points.
    `profile`, `shrink`, `dilate`: of an emulated device (emulated/profiles.toml). Gradients' bytes are divided by
    `shrink`, times multiplied by `dilate`, link rates divided by both. Times in records are not corrected.
    """

    device: Device
    profile: str = ""
    shrink: Factor = 1.0
    dilate: Factor = 1.0
    cores: Index = 0

    @property
    def link_divisor(self) -> float:
        """How many times slower links are than those of the emulated cluster; 1 for real devices."""
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
    """The training of a point of kind `train`.

    `seed`: of weights and order.
    `rate`: the learning rate: `base_rate` for updates of `base_batch` samples, scaled by the rule `lr_scale`.
    `warmup_epochs`: epochs in which it grows from `base_rate` to `rate`.
    `lr_steps`: epochs at whose beginning it falls to a tenth.
    `augment_epochs`: how many of the last epochs have changed images.
    `target_top1`: a fraction of 1 at which training ends early.
    `train_samples`, `test_samples`: how many are used, the same for every seed; 0 for all.
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
    """One measurement: the exchange, the work, the number and kind of devices.

    `strategy`: `<framework>:plain` for controls of the plain loop, so that strategies of a framework share them.
    `regime`: of a `train`, else None.
    `servers`: the number of parameter servers; `server_hosts`: whether they share nodes with the training.
    `hosts`: the only hosts that it uses; () for the first of the launch (`plan/placement.py`).
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
        """The work of the one device to which efficiency refers."""
        return self.workload.reference(self.world_size)

    @property
    def is_alone(self) -> bool:
        """Whether one rank at a time runs the plain loop, and nothing else of the run."""
        return self.kind in ("solo", "each")

    @property
    def has_own_cpus(self) -> bool:
        """Whether only the worker and foreign processes run on a rank's CPUs.
        A native feed may have processes of its own, and with a GPU most CPUs of a rank are idle."""
        return self.is_alone and self.hardware.device == "cpu" and self.workload.feed == "reference"

    @cached_property
    def sorted_options(self) -> tuple[tuple[str, str], ...]:
        """The strategy's options in a fixed order, hashable."""
        return tuple(sorted(self.options.items()))

    @cached_property
    def cell(self) -> str:
        """Identity without the round."""
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
        """Identity of one measurement; `--resume` measures keys that a run lacks."""
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
        over = f" over {self.interconnect}" if self.interconnect != "auto" and self.kind in EXCHANGING else ""
        return f"{self.strategy}{over} {what}{where} N={self.world_size}{batch}{hosts} {which}"


def _words(of: Workload | Hardware | Regime) -> list[str]:
    fields = zip(of.__struct_fields__, astuple(of), strict=True)
    found = FOUND if isinstance(of, Workload) and of.script else ()
    kept = ((name, value) for name, value in fields if name not in found)
    return [str(value) for name, value in kept if name not in LATER or value != LATER[name]]


# ---------------------------------------------------------------- names of strategies


def shown_name(strategy: str) -> str:
    """Return the name that tables show: a script's own label, other strategies unchanged."""
    framework, _, label = strategy.partition(":")
    return label.replace("plain", "one copy alone") if framework == "script" else strategy
