"""What a child is told: its task, one JSON line on its stdin, and the commands that follow it there."""

from __future__ import annotations

from scaling.records.point import Point, Record


class Clocks(Record, frozen=True):
    """The three clocks of a child, seconds: until `ready`, without an event, in all."""

    startup_s: float = 300.0
    stall_s: float = 120.0
    deadline_s: float = 1800.0


class Server(Record, frozen=True):
    """Where a parameter server runs: beside which agent, and its address, interface and reserved port."""

    launch_rank: int
    host: str
    address: str
    interface: str
    port: int = 0


class Task(Record, frozen=True):
    """All that a child needs for one point: one JSON line on its stdin.

    `rank` and `local_rank` count inside the point; `launch_rank` is the agent's MPI rank. `hosts[r]` is the
    host of rank r and `addresses[r]` its address on the network that is used. `address` is rank 0's, where
    `ports` are reserved; `rank_ports[r]` is rank r's own. `interface` and `hca` (fabric.Place) are this child's
    host's on that network. `device_index` and `cpus` are this child's;
    a worker that drives all devices of its host has their `device_indices`, and the CPUs of all.
    `role` is "worker" or the name of a helper. Beside one child of each host of several its traffic is counted
    (`counts_traffic`).
    """

    point: Point
    attempt: int
    rank: int
    launch_rank: int
    local_rank: int
    local_world_size: int
    hosts: tuple[str, ...]
    device_index: int
    cpus: tuple[int, ...]
    threads: int
    seed: int
    log: str
    role: str = "worker"
    retry: int = 0
    address: str = "127.0.0.1"
    interface: str = "lo"
    hca: str = ""
    addresses: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    rank_ports: tuple[int, ...] = ()
    servers: tuple[Server, ...] = ()
    device_indices: tuple[int, ...] = ()
    announced: dict[str, str] = {}
    counts_traffic: bool = False
    clocks: Clocks = Clocks()


class Run(Record, frozen=True, tag="run"):
    """Run `windows` windows of `steps` steps. With `linger`, go on stepping unmeasured afterwards until
    the next command, so that the devices beside stay as loaded as they were."""

    windows: int
    steps: int
    measured: bool
    linger: bool = False


class Finish(Record, frozen=True, tag="finish"):
    """Report the digest and end."""


Command = Run | Finish


EVENTS_FD = "SCALING_EVENTS_FD"
