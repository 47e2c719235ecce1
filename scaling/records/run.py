"""The data of a run: its header, its points with their ranks and helpers, predictions, imported rows.

Times are seconds: `*_unix_s` wall-clock, all others CLOCK_MONOTONIC of the host that wrote them. A new field needs
a default; a changed meaning needs a new SCHEMA, a migration in `store.py` and a fixture file.

SCHEMA history:  1  the first;
                 2  a point has its workload and hardware, ranks and helpers their place, warnings a kind, `Ready`
                    the bytes that cross nodes;
                 3  windows of points that take turns have gaps between them; the kind `each`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

from msgspec.structs import replace

from scaling.records.events import Evaluated, Outcome, Ready, Result, Window
from scaling.records.host import HostInfo
from scaling.records.network import ALONE, NcclChoice, Network, Place
from scaling.records.point import (
    Amount,
    Count,
    Device,
    Index,
    Pattern,
    Point,
    Record,
    Seconds,
    Size,
    UnixSeconds,
)
from scaling.records.task import DeviceRates
from scaling.records.telemetry import GpuTime, Telemetry

# ---------------------------------------------------------------- prediction


class Prediction(Record, frozen=True, kw_only=True, tag="prediction"):
    """The PREDICTION of an exchange before its measurement, once for all rounds (`point` is of the first).

    Values are medians with their 80 % interval; efficiencies are fractions of 1.
    `up_to`: the largest world size that was measured then.
    `claimed`: False if the interval is too wide for a prediction.
    `refused`: why nothing was predicted; all values are then None.
    `notes`: measured data that was left out, and where the model does not fit.
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


ImportedUnit = Literal["images", "samples", "sequences", "tokens", "steps"]


class ImportedRow(Record, frozen=True, kw_only=True):
    """The result of one cell in one log.

    `rate`: `unit` per second over all devices; None if the training failed, for the reason `failed`.
    `batch_size`: of one device, 0 if unknown; `model` and `precision` are never guessed.
    `audit`: what in the log contradicts its rate.
    `run`: the name of the import if several are read together.
    `device_kind` (gpu, cpu), `framework`, `variables` (their placement): "" if unknown.
    `parallelism`: degrees by which the model is split, `tp=4,pp=2`; degrees of 1 mean none.
    It is "unknown" for a tool of split models that does not say it, "" for a tool that splits none.
    `steps`: rates behind `rate`, 0 if it is a total; `spread`: the middle 90 % of them over their median.
    `same_work`: the user says that unknown values of all logs are equal. `base`: the devices that the user asks
    for as the base of efficiencies, 0 for the default.
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
    device_kind: str = ""
    framework: str = ""
    variables: str = ""
    parallelism: str = ""
    label: str = ""
    steps: Index = 0
    spread: Amount | None = None
    same_work: bool = False
    base: Index = 0


class ImportedBandwidth(Record, frozen=True, kw_only=True):
    """A line of a benchmark of collectives; `algbw` and `busbw` in 1e9 bytes per second.

    `wrong`: elements with a wrong value; None if not checked.
    `audit`: the log reports wrong values but not on which line.
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


# The exchange that emulated/scale.py models: DDP over Gloo's ring, with default buckets.
_MODELLED, _DEFAULT_BUCKETS_MB = "torch:gloo", ("25", "25.0")


class Emulation(Record, frozen=True, kw_only=True):
    """The accuracy of an emulated point. Seconds are those of the emulated cluster.

    `samples_per_s`: of one device alone at the point's batch; `fitted`: how it was fitted, "" if it was published.
    `tail_s`: this machine's time for DDP's last bucket, which no compute hides, by the model of emulated/scale.py.
    `wire_s`: the same over links between nodes; 0 if unknown or without such links.
    `inside`, `inside_s`: name and time of the links inside a node, which are not slowed here.
    `error_fraction`: the largest delay by this machine, as a fraction of a step; None if the model does not apply.
    """

    samples_per_s: Amount
    fitted: str = ""
    tail_s: Seconds = 0.0
    wire_s: Seconds = 0.0
    error_fraction: Amount | None = 0.0
    inside: str = ""
    inside_s: Seconds = 0.0

    def of(self, point: Point) -> Emulation:
        """Return it without the bound if the model is of another exchange than the point's."""
        buckets_mb = point.options.get("bucket_cap_mb", _DEFAULT_BUCKETS_MB[0])
        is_modelled = point.strategy == _MODELLED and buckets_mb in _DEFAULT_BUCKETS_MB
        if is_modelled or point.kind != "exchange" or point.world_size == 1:
            return self
        return replace(self, error_fraction=None)


# ---------------------------------------------------------------- run

SCHEMA = 3
LATER_WINDOWS = 2
NOWHERE = Place(address="", interface="")


class RankRecord(Record, frozen=True, kw_only=True):
    """One rank's part of a point.

    `shown_gpu`: the UUID of its GPU if it saw no other.
    `disturbed`: other tries of `windows` that another program slowed down; they do not count.
    `later`: windows of the soak, two a turn, counted from 2.
    `unsynced`: windows without any exchange, after the digest; `beside`: windows of the exchange during compute.
    `traced`: the window with profilers on; `traces`: its files, relative to the run's folder on the rank's host.
    `gpu`: GPU time in the traces; None without torch's profiler.
    `evaluations`: follow the epochs of a `train`; each epoch is one window.
    `nccl`: from NCCL's log; None without NCCL or if the user has redirected that log.
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
        """Raise ValueError if windows are not in order or repeated."""
        indices = [window.index for window in self.windows]
        if any(later <= index for index, later in pairwise(indices)):
            raise ValueError(f"rank {self.rank} has windows {indices}")

    @property
    def soaked(self) -> tuple[Window, ...]:
        """The later windows that count for the soak.
        In records of the first versions, which begin with index 0, those of even index do not count."""
        if self.later and self.later[0].index > 0:
            return self.later
        return tuple(window for window in self.later if window.index % LATER_WINDOWS)

    def device_name(self, device: Device) -> str:
        """Return the rank's device on its host: `GPU 3`, `CPU 2`, `CPUs 0-3`; "" if unknown."""
        if device == "cuda":
            return f"GPU {self.shown_gpu or self.device_index}"
        if len(self.cpus) > 1:
            return f"CPUs {self.cpus[0]}-{self.cpus[-1]}"
        return f"CPU {self.cpus[0]}" if self.cpus else ""

    @property
    def measured_s(self) -> float:
        """Seconds of all windows, each from the common start to this rank's last synchronisation."""
        return sum(window.seconds for window in self.windows)

    def uncounted_steps(self, epoch: int | None) -> int:
        """Return the uncounted steps that gave ranks a common start: one before each run of windows. If points
        take turns (`epoch`), each window is such a run. Repeated windows have their own."""
        windows = (*self.windows, *self.disturbed)
        return len(windows) if epoch is not None else sum(one.index == windows[0].index for one in windows)


class HelperRecord(Record, frozen=True, kw_only=True):
    """A helper of a point: its place, its end, and its use of CPU and GPU in measured windows."""

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
    """A warning for readers of a point's row: programs read `kind`, people `text`."""

    kind: WarningKind
    text: str


class PointRecord(Record, frozen=True, kw_only=True, tag="point"):
    """One measurement of one point, however it ended.

    `ranks`: its workers, one per device or one for all.
    `hosts[r]`: the host of device r; `gpus[r]`: its UUID if it is a GPU.
    `oversubscribed`: ranks shared a core or a GPU; `crowding` is the reason.
    `pattern`: how gradients are sent; `updates_all`: each rank updates all parameters. Older records lack both.
    `epoch`: points of one round and epoch took turns; None for a point measured alone.
    `ended`: False for a record written when the measured windows were in. The record of the end replaces it
    (`records/store.py`), unless the run was interrupted.
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
    def children(self) -> tuple[RankRecord | HelperRecord, ...]:
        return (*self.ranks, *self.helpers)

    @property
    def nodes(self) -> int:
        """The number of hosts whose devices took part."""
        return len(set(self.hosts) or {rank.host for rank in self.ranks})


# How `Header.mpi` begins if the ranks talked without MPI.
ZEROMQ = "ZeroMQ"
# What precedes a lab's name in `Header.started`.
IN_LAB = ", in lab "


class Header(Record, frozen=True, kw_only=True, tag="header"):
    """The first line of a run. `config` is the SweepConfig as plain data.

    `program`: the command that `command` has the words of, as `python -m` takes it.
    `started`: how the ranks were started, as `by torchrun (RANK, WORLD_SIZE)`; "" if unknown.
    `imported`, `bandwidths`: data from logs of other tools; such a run has no points.
    """

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
    program: str = "scaling.run"
    started: str = ""

    @property
    def is_import(self) -> bool:
        """Whether its data comes from other tools."""
        return bool(self.imported or self.bandwidths)


# ---------------------------------------------------------------- certificate
# The verdict of `scaling certify`, which is a line of the run's file.

CertificateResult = Literal["PASS", "FAIL", "NO VERDICT"]
PASS: CertificateResult = "PASS"
FAIL: CertificateResult = "FAIL"
NO_VERDICT: CertificateResult = "NO VERDICT"


class Look(Record, frozen=True, kw_only=True):
    """A measured value after some rounds, with its bounds. Each bound is wrong with probability `error`."""

    rounds: Size
    mean: Amount
    low: Amount
    high: Amount
    error: Amount


class Criterion(Record, frozen=True, kw_only=True):
    """A quantity that was judged, look by look; the last look decides.

    `unit`: "" for an efficiency, a fraction of 1. `line`: the least value that passes; `line_variance`, on
    `line_df`, is of its logarithm. `reference`: the reference's value, None without one. `doubt`: why rounds do
    not decide although their bounds do, else "".
    """

    name: str
    unit: str
    line: Amount
    looks: tuple[Look, ...]
    result: CertificateResult
    reference: Amount | None = None
    line_variance: Amount = 0.0
    line_df: Amount = 1.0
    doubt: str = ""


class Certificate(Record, frozen=True, kw_only=True, tag="certificate"):
    """The verdict on a launch.

    `why`: the reason for a FAIL or for NO VERDICT. `where`: the device, link or node that a FAIL points to.
    `error`: the probability of a false FAIL, and of a false PASS. `minutes`: the budget.
    `reference`: name and digest of the reference. `findings`: warnings and errors of the preflight. `devices`: the
    rates of each device alone.
    """

    result: CertificateResult
    why: str
    criteria: tuple[Criterion, ...]
    error: Amount
    minutes: Amount
    where: tuple[str, ...] = ()
    reference: str = ""
    findings: tuple[str, ...] = ()
    devices: tuple[DeviceRates, ...] = ()

    @property
    def word(self) -> str:
        """The verdict as one word for programs: `PASS`, `FAIL` or `NO-VERDICT`."""
        return self.result.replace(" ", "-")
