"""What is said between processes and what is kept on disk: points, tasks, messages, events, records.

Times are seconds; `*_unix_s` are wall-clock, all others CLOCK_MONOTONIC of the host that wrote them. A
new field needs a default; a changed meaning a new SCHEMA, a migration in `store.py` and a fixture file.

SCHEMA history:  1  the first.
"""

from __future__ import annotations

from typing import Any

from scaling.hosts.fabric import Network
from scaling.records.point import Device, Pattern, Point, Record
from scaling.records.telemetry import Telemetry

SCHEMA = 1


class Hello(Record, frozen=True, tag="hello"):
    """The child runs and has read its task."""

    pid: int
    affinity: tuple[int, ...]


class Announce(Record, frozen=True, tag="announce"):
    """A helper is up: what the workers must know to reach it."""

    values: dict[str, str]


class Ready(Record, frozen=True, tag="ready"):
    """Framework imported, model built, exchange connected."""

    import_s: float
    build_s: float
    parameters: int
    gradient_bytes: int
    device_name: str
    versions: dict[str, str] = {}
    notes: tuple[str, ...] = ()


class Window(Record, frozen=True, tag="window"):
    """One window of one rank. Consecutive windows of a `Run` share their edges, so their seconds add up
    to the time from the start to the last synchronisation. `loss` is None where there is none (`comm`).

    `staleness` is None in synchronous modes; else how many steps of other ranks came between a step's pull
    of the parameters and its push, mean over the window's steps.
    """

    index: int
    measured: bool
    steps: int
    samples: int
    start_s: float
    end_s: float
    end_unix_s: float
    loss: float | None = None
    staleness: float | None = None

    @property
    def seconds(self) -> float:
        """Between the two device synchronisations."""
        return self.end_s - self.start_s


class Result(Record, frozen=True, tag="result"):
    """The worker's last word: hash of the parameters (None where nothing is trained), memory in bytes."""

    digest: str | None
    peak_memory_bytes: int
    peak_rss_bytes: int


class Error(Record, frozen=True, tag="error"):
    """The child caught an exception: `cause` as in `Failed`."""

    cause: str
    message: str
    traceback: str = ""


class Finished(Record, frozen=True, tag="finished"):
    """It ended as it should."""


class Failed(Record, frozen=True, tag="failed"):
    """Why a child or a point has no result.

    cause: oom | crash(SIGNAL) | exit(CODE) | error | hang | timeout | startup | missing | nan-loss |
    digest | port-taken | no-result | refused | cancelled | interrupted
    """

    cause: str
    message: str
    rank: int = 0
    host: str = ""
    log: str = ""
    log_tail: str = ""


Outcome = Finished | Failed


class Ended(Record, frozen=True, tag="ended"):
    """From the agent, once per child: how it ended; nothing of it runs any more."""

    outcome: Outcome
    environ: dict[str, str] = {}
    telemetry: Telemetry = Telemetry()
    strays: int = 0


Event = Hello | Announce | Ready | Window | Result | Error | Ended


class Gpu(Record, frozen=True):
    """One GPU as NVML tells it. `links[j]` is how it reaches GPU j of its host (NV4, PIX, SYS, self) and
    `p2p[j]` whether peer access works."""

    index: int
    name: str
    uuid: str
    memory_bytes: int
    power_limit_w: float | None = None
    max_sm_clock_mhz: float | None = None
    links: tuple[str, ...] = ()
    p2p: tuple[bool, ...] = ()


class Nic(Record, frozen=True):
    """One network interface; `speed_bits_per_s` is None where the kernel does not know it."""

    name: str
    address: str
    netmask: str
    up: bool
    mtu: int
    speed_bits_per_s: float | None = None


class Hca(Record, frozen=True):
    """One port of an RDMA card. `interfaces` are the card's network interfaces (IPoIB, or Ethernet's own);
    `link_layer` is InfiniBand or Ethernet (RoCE)."""

    name: str
    port: int
    link_layer: str
    active: bool
    rate_bits_per_s: float | None = None
    interfaces: tuple[str, ...] = ()


class HostInfo(Record, frozen=True):
    """The machine of one agent. `cores` are the physical cores that this agent may use, each the tuple
    of its hardware threads. Hosts with one `boot_id` are one machine: containers, or nodes of a lab."""

    hostname: str
    os: str
    kernel: str
    cpu_model: str
    sockets: int
    cores: tuple[tuple[int, ...], ...]
    memory_bytes: int
    load_1m: float
    python: str
    versions: dict[str, str]
    nics: tuple[Nic, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    gpu_driver: str = ""
    virtual: str = ""
    hcas: tuple[Hca, ...] = ()
    boot_id: str = ""


class RankRecord(Record, frozen=True):
    """One rank's part of a point: raw windows, warm-up apart."""

    rank: int
    launch_rank: int
    host: str
    outcome: Outcome
    cpus: tuple[int, ...] = ()
    threads: int = 1
    device_index: int = 0
    interface: str = "lo"
    hca: str = ""
    environ: dict[str, str] = {}
    ready: Ready | None = None
    warmup: tuple[Window, ...] = ()
    windows: tuple[Window, ...] = ()
    result: Result | None = None
    telemetry: Telemetry = Telemetry()

    @property
    def measured_s(self) -> float:
        """From the common start to this rank's last synchronisation."""
        return self.windows[-1].end_s - self.windows[0].start_s if self.windows else 0.0


class HelperRecord(Record, frozen=True):
    """A server, scheduler or rendezvous of a point: where it ran, how it ended and, while the measured
    windows ran, how much of one core it used (`telemetry.cpu_percent`)."""

    name: str
    launch_rank: int
    host: str
    outcome: Outcome
    environ: dict[str, str] = {}
    announced: dict[str, str] = {}
    telemetry: Telemetry = Telemetry()
    interface: str = ""
    hca: str = ""


class PointRecord(Record, frozen=True, tag="point"):
    """One measurement of one point, however it ended.

    `ranks` are its workers: one per device, or a single one that drives all devices. `hosts[r]` is the host of
    device r, `pattern` how gradients travel ("" in older records). Asynchronous ranks do not wait for each other.
    """

    point: Point
    outcome: Outcome
    ranks: tuple[RankRecord, ...]
    started_unix_s: float
    wall_s: float
    startup_s: float
    measured_s: float
    settled: bool = True
    oversubscribed: bool = False
    retries: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    helpers: tuple[HelperRecord, ...] = ()
    hosts: tuple[str, ...] = ()
    synchronous: bool = True
    pattern: Pattern = ""

    @property
    def nodes(self) -> int:
        """Hosts whose devices took part."""
        return len(set(self.hosts) or {rank.host for rank in self.ranks})


class Header(Record, frozen=True, tag="header"):
    """The first line of a run. `config` is the SweepConfig as plain data."""

    schema: int
    version: str
    code: str
    git: str
    created_unix_s: float
    command: tuple[str, ...]
    launch_size: int
    mpi: str
    seed: int
    config: dict[str, Any]
    hosts: tuple[HostInfo, ...]
    host_of_rank: tuple[str, ...]
    device: Device
    why_default: str = ""
    estimate_s: float = 0.0
    networks: tuple[Network, ...] = ()
    emulation: str = ""
