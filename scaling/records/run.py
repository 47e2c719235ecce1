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

from scaling.records.bounds import Index, Seconds, Size, UnixSeconds
from scaling.records.emulation import Emulation
from scaling.records.events import Evaluated, Outcome, Ready, Result, Window
from scaling.records.gpu_time import GpuTime
from scaling.records.host import HostInfo
from scaling.records.imported import ImportedBandwidth, ImportedRow
from scaling.records.nccl import NcclChoice
from scaling.records.network import ALONE, Network, Place
from scaling.records.point import Device, Pattern, Point, Record
from scaling.records.telemetry import Telemetry

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
