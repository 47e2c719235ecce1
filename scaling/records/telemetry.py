"""What is read beside a child while its measured windows run: of its device, its host's cards and connections."""

from __future__ import annotations

from scaling.records.point import Record


class Sample(Record, frozen=True, kw_only=True, array_like=True):
    """One reading of one GPU while windows were timed, None where this GPU does not tell; `throttle` names
    the reasons that cost speed. `device_index` counts as the child's task does; None in older records, which know
    of a child's first GPU only."""

    unix_s: float
    utilisation_percent: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    memory_used_bytes: int | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()
    device_index: int | None = None


class Traffic(Record, frozen=True, kw_only=True, array_like=True):
    """What one interface (`eth0`) or port of an RDMA card (`mlx5_0/1`) of the host carried while windows were
    timed."""

    name: str
    received_bytes: int
    sent_bytes: int


class Flow(Record, frozen=True, kw_only=True, array_like=True):
    """What this host sent over TCP while windows were timed, from one address of its own to one of a peer: the
    bytes that arrived, and for how long the busiest of the connections had some to send."""

    address: str
    peer: str
    sent_bytes: int
    busy_s: float


class Telemetry(Record, frozen=True, kw_only=True):
    """What was read beside one child while measured windows ran.

    `samples` are of all its GPUs, one GPU after the other; `energy_j` is theirs together, None where any does
    not tell. `load_1m` is the host's at the end, `affinity_cpus` the child's, `cpu_percent` how much of one core
    it used. `traffic` and `flows` are read beside one child of each host, `machine_cpu_percent` (100: all cores)
    where devices are emulated.
    """

    samples: tuple[Sample, ...] = ()
    energy_j: float | None = None
    load_1m: float | None = None
    affinity_cpus: int | None = None
    cpu_percent: float | None = None
    traffic: tuple[Traffic, ...] = ()
    flows: tuple[Flow, ...] = ()
    machine_cpu_percent: float | None = None
