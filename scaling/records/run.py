"""What a run keeps on disk: its header, and a record of each point with its ranks and helpers.

Times are seconds; `*_unix_s` are wall-clock, all others CLOCK_MONOTONIC of the host that wrote them. A
new field needs a default; a changed meaning a new SCHEMA, a migration in `store.py` and a fixture file.

SCHEMA history:  1  the first;
                 2  a point holds its work and its hardware, ranks and helpers their place whole, warnings have
                    a kind, `Ready` says what must cross nodes;
                 3  windows of points measured side by side have gaps between them; the kind `each`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

from msgspec.structs import replace

from scaling.records.events import Evaluated, Outcome, Ready, Result, Window
from scaling.records.host import HostInfo
from scaling.records.network import ALONE, NcclChoice, Network, Place
from scaling.records.other_code import own
from scaling.records.point import Amount, Count, Device, Index, Pattern, Point, Record, Seconds, Size, UnixSeconds
from scaling.records.telemetry import GpuTime, Telemetry

# ---------------------------------------------------------------- prediction


class Question(Record, frozen=True, kw_only=True):
    """What a point will do, whose devices will be on so many `nodes`."""

    point: Point
    nodes: Size


class Prediction(Record, frozen=True, kw_only=True, tag="prediction"):
    """What was PREDICTED of an exchange before it was measured, once for all of its rounds (`point` is the first).

    Medians with the ends of their 80 % interval; efficiencies are fractions of 1. `up_to` is the largest world
    size that was known then. `refused` says why nothing was predicted; then all figures are None. Not `claimed`:
    the interval is wider than a prediction may be. `notes`: what of the measured was left out, and where the model
    does not fit it.
    """

    point: Point
    nodes: Size
    registered_unix_s: UnixSeconds
    up_to: Index = 0
    samples_per_s: Amount | None = None
    samples_per_s_low: Amount | None = None
    samples_per_s_high: Amount | None = None
    efficiency: Amount | None = None
    efficiency_low: Amount | None = None
    efficiency_high: Amount | None = None
    claimed: bool = True
    refused: str = ""
    notes: tuple[str, ...] = ()


# ---------------------------------------------------------------- imported rows
# What logs of other tools say: a row per log and cell, and what a benchmark of a network measured.
#
# None of it was measured here. A run that holds such rows has them in its header; it has no points.


# What a rate counts. Steps are counted where a log tells neither samples nor their batch.
ImportedUnit = Literal["images", "samples", "sequences", "tokens", "steps"]


class ImportedRow(Record, frozen=True, kw_only=True):
    """What one log says of one cell.

    `rate` is in `unit` per second over all `world_size` devices, None where the training failed, for the reason
    `failed`. `batch_size` is of one device, 0 where the log does not say; neither `model` nor `precision` is ever
    guessed. `audit` says what in the log contradicts its rate. `run` names the import where several are read
    together.
    """

    tool: str
    log: str
    unit: ImportedUnit
    world_size: Size
    rate: Amount | None
    model: str = ""
    batch_size: Index = 0
    precision: str = ""
    synchronous: bool = True
    failed: str = ""
    audit: str = ""
    notes: tuple[str, ...] = ()
    run: str = ""


class ImportedBandwidth(Record, frozen=True, kw_only=True):
    """A line of a benchmark of collectives: `algbw` and `busbw` in units of 1e9 bytes a second.

    `wrong` counts elements with a wrong value, None where nothing was checked. `audit` says that values of the log
    were wrong where no line of it tells which.
    """

    tool: str
    log: str
    collective: str
    world_size: Size
    size_bytes: Count
    dtype: str
    redop: str
    in_place: bool
    time_s: Seconds
    algbw_gbytes_per_s: Amount
    busbw_gbytes_per_s: Amount
    wrong: Count | None = None
    audit: str = ""
    notes: tuple[str, ...] = ()
    run: str = ""


# ---------------------------------------------------------------- emulation


# Whose exchange emulated/scale.py is a model of: DDP's over Gloo's ring, its buckets as they are by default, which
# may be said.
_MODELLED, _DEFAULT_BUCKETS_MB = "torch:gloo", ("25", "25.0")


class Emulation(Record, frozen=True, kw_only=True):
    """Of a point on emulated devices; seconds are those of the cluster that it stands for.

    `samples_per_s` is what one device does alone at the point's batch, `fitted` how that was fitted to published
    batches, "" where it was published itself. The last bucket of gradients that DDP has by default, which nothing
    hides, takes this machine `tail_s` by the model in emulated/scale.py, the links between nodes `wire_s` (0: none
    are between, or their rate is not known), and those inside a node, called `inside`, `inside_s`: nobody slows
    these down here. `error_fraction` is by how much of a step the machine is too late at most; None where that is
    not known, since the point exchanges otherwise.
    """

    samples_per_s: Amount
    fitted: str = ""
    tail_s: Seconds = 0.0
    wire_s: Seconds = 0.0
    error_fraction: Amount | None = 0.0
    inside: str = ""
    inside_s: Seconds = 0.0

    def of(self, point: Point) -> Emulation:
        """The same without a bound where the model is of another exchange than the point's: first versions had one
        for all."""
        return self if _is_modelled(point) else replace(self, error_fraction=None)


def _is_modelled(point: Point) -> bool:
    """Whether the model is of this point's exchange, or nothing is exchanged."""
    if point.kind != "exchange" or point.world_size == 1:
        return True
    buckets_mb = point.options.get("bucket_cap_mb", _DEFAULT_BUCKETS_MB[0])
    return own(point.strategy) == _MODELLED and buckets_mb in _DEFAULT_BUCKETS_MB


# ---------------------------------------------------------------- run

SCHEMA = 3
# Of a turn after the measured windows.
LATER_WINDOWS = 2
# Of a helper in records of schema 1, which did not say.
NOWHERE = Place(address="", interface="")


class RankRecord(Record, frozen=True, kw_only=True):
    """One rank's part of a point: raw windows, warm-up apart.

    `shown_gpu` is the UUID of its GPU where it saw no other. `disturbed` are other tries of the `windows`, before
    or after the one that counts, which something else slowed down. `later` are windows after the measured ones,
    two a turn, counted from 2. `unsynced` are windows after the
    digest: the same steps inside the strategy's wrapper, without any exchange; `beside` are windows of the
    exchange alone while the device computes, after the digest too. `traced` are those with profilers on, then;
    `traces` their files, below the run's folder on the rank's host; `gpu` what those say of the rank's GPU, None
    elsewhere and for other profilers than torch's. `evaluations` follow the epochs of a `train`, each of which is
    one window. `nccl` is what NCCL's own log tells of what it chose, None without NCCL or where the user has that
    log.
    """

    rank: Index
    launch_rank: Index
    host: str
    outcome: Outcome
    cpus: tuple[Index, ...] = ()
    threads: Size = 1
    device_index: Index = 0
    shown_gpu: str = ""
    place: Place = ALONE
    environ: dict[str, str] = {}
    ready: Ready | None = None
    warmup: tuple[Window, ...] = ()
    windows: tuple[Window, ...] = ()
    disturbed: tuple[Window, ...] = ()
    later: tuple[Window, ...] = ()
    unsynced: tuple[Window, ...] = ()
    beside: tuple[Window, ...] = ()
    traced: tuple[Window, ...] = ()
    traces: tuple[str, ...] = ()
    gpu: GpuTime | None = None
    evaluations: tuple[Evaluated, ...] = ()
    result: Result | None = None
    telemetry: Telemetry = Telemetry()
    nccl: NcclChoice | None = None

    def __post_init__(self) -> None:
        """Raises ValueError where windows are not in order, or one is there twice."""
        indices = [window.index for window in self.windows]
        if any(later <= index for index, later in pairwise(indices)):
            raise ValueError(f"rank {self.rank} has windows {indices}")

    @property
    def soaked(self) -> tuple[Window, ...]:
        """Those of the later windows that tell how it trained on. First versions had it go on for one long window,
        of index 0, and the first of each two after that gave ranks a common start."""
        if self.later and self.later[0].index > 0:
            return self.later
        return tuple(window for window in self.later if window.index % LATER_WINDOWS)

    def device_name(self, device: Device) -> str:
        """Which device of its host a rank has: `GPU 3`, `CPU 2`, `CPUs 0-3`; empty where that is not known."""
        if device == "cuda":
            return f"GPU {self.shown_gpu or self.device_index}"
        if len(self.cpus) > 1:
            return f"CPUs {self.cpus[0]}-{self.cpus[-1]}"
        return f"CPU {self.cpus[0]}" if self.cpus else ""

    @property
    def measured_s(self) -> float:
        """Of all windows, each from the common start to this rank's last synchronisation: without gaps from the
        first start to the last end, unless they were measured side by side with those of other points."""
        return sum(window.seconds for window in self.windows)

    def uncounted_steps(self, epoch: int | None) -> int:
        """The steps that gave all ranks a common start: one before each run of windows, which where points take
        turns (`epoch`) is each window. Those that were measured again had theirs."""
        windows = (*self.windows, *self.disturbed)
        return len(windows) if epoch is not None else sum(one.index == windows[0].index for one in windows)


class HelperRecord(Record, frozen=True, kw_only=True):
    """A server, scheduler, rendezvous or computing helper of a point: where it ran, how it ended and what it used
    while the measured windows ran (`telemetry.cpu_percent`; where it computes, its GPU as well)."""

    name: str
    launch_rank: Index
    host: str
    outcome: Outcome
    environ: dict[str, str] = {}
    announced: dict[str, str] = {}
    telemetry: Telemetry = Telemetry()
    place: Place = NOWHERE


WarningKind = Literal[
    "unsettled", "throttled", "busy-cpus", "lost-cpus", "shared-servers", "foreign-load", "other"
]


class PointWarning(Record, frozen=True, kw_only=True):
    """What a reader of a point's row must know: programs go by `kind`, people read `text`."""

    kind: WarningKind
    text: str


class PointRecord(Record, frozen=True, kw_only=True, tag="point"):
    """One measurement of one point, however it ended.

    `ranks` are its workers: one per device, or a single one that drives all devices. `hosts[r]` is the host of
    device r, `gpus[r]` its UUID if it is a GPU. `oversubscribed`: ranks shared a core or a GPU. `pattern` is how
    gradients travel ("" in older records), `updates_all` whether each rank updates all parameters (False in older
    records). Asynchronous ranks do not wait for each other.

    Records of one round and one `epoch` lived side by side: their windows of equal `index` were measured shortly
    after each other, everyone else stopped. None: it was measured by itself. `emulation` is None for real devices.

    A record that has not `ended` was written when the measured windows were in. The record of the point's end
    follows and replaces it (`records/store.py`). It stands if the run was broken off in between.
    `crowding` is why it is `oversubscribed`, "" in older records: more workers than cores.
    """

    point: Point
    outcome: Outcome
    ranks: tuple[RankRecord, ...]
    started_unix_s: UnixSeconds
    wall_s: Seconds
    startup_s: Seconds
    measured_s: Seconds
    settled: bool = True
    oversubscribed: bool = False
    retries: tuple[str, ...] = ()
    warnings: tuple[PointWarning, ...] = ()
    helpers: tuple[HelperRecord, ...] = ()
    hosts: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    synchronous: bool = True
    pattern: Pattern = ""
    updates_all: bool = False
    epoch: Index | None = None
    emulation: Emulation | None = None
    ended: bool = True
    crowding: str = ""

    @property
    def nodes(self) -> int:
        """Hosts whose devices took part."""
        return len(set(self.hosts) or {rank.host for rank in self.ranks})


class Header(Record, frozen=True, kw_only=True, tag="header"):
    """The first line of a run. `config` is the SweepConfig as plain data. `imported` and `bandwidths` are what was
    read from logs of other tools: such a run has no points."""

    schema: int
    version: str
    code: str
    git: str
    created_unix_s: UnixSeconds
    command: tuple[str, ...]
    launch_size: Index
    mpi: str
    seed: int
    config: dict[str, Any]
    hosts: tuple[HostInfo, ...]
    host_of_rank: tuple[str, ...]
    device: Device
    why_default: str = ""
    estimate_s: Seconds = 0.0
    networks: tuple[Network, ...] = ()
    emulation: str = ""
    imported: tuple[ImportedRow, ...] = ()
    bandwidths: tuple[ImportedBandwidth, ...] = ()

    @property
    def is_import(self) -> bool:
        """Whether nothing of it was measured here."""
        return bool(self.imported or self.bandwidths)
