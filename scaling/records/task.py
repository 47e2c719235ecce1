"""What a child is told: its task, one JSON line on its stdin, and the commands that follow it there."""

from __future__ import annotations

from scaling.records.network import ALONE, Place
from scaling.records.point import Point, Record

# The variable of a child's environment that names the descriptor on which it reports events.
EVENTS_FD = "SCALING_EVENTS_FD"


class Clocks(Record, frozen=True, kw_only=True):
    """The three clocks of a child, seconds: until `ready`, without an event, in all."""

    startup_s: float = 300.0
    stall_s: float = 120.0
    deadline_s: float = 1800.0


class Server(Record, frozen=True, kw_only=True):
    """Where a parameter server runs: beside which agent, its place on the network, its reserved port."""

    launch_rank: int
    host: str
    place: Place
    port: int = 0

    @property
    def address(self) -> str:
        """What it binds and is reached by."""
        return self.place.address


class Task(Record, frozen=True, kw_only=True):
    """All that a child needs for one point: one JSON line on its stdin.

    `rank` and `local_rank` count inside the point; `launch_rank` is the agent's MPI rank. `hosts[r]` is the
    host of rank r and `places[r]` its place on the network that is used; `place` is this child's own. `ports` are
    reserved at rank 0's address; `rank_ports[r]` is rank r's own. `device_index` and `cpus` are this child's;
    a worker that drives all devices of its host has the CPUs of all. `device_indices` are the devices that this
    child itself computes on: its own, those of its host, or none (servers; a coordinator of helpers that compute).
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
    place: Place = ALONE
    places: tuple[Place, ...] = ()
    ports: tuple[int, ...] = ()
    rank_ports: tuple[int, ...] = ()
    servers: tuple[Server, ...] = ()
    device_indices: tuple[int, ...] = ()
    announced: dict[str, str] = {}
    counts_traffic: bool = False
    clocks: Clocks = Clocks()

    @property
    def address(self) -> str:
        """Rank 0's address, where all meet."""
        return self.places[0].address if self.places else self.place.address

    @property
    def addresses(self) -> tuple[str, ...]:
        """The address of each rank."""
        return tuple(place.address for place in self.places)


class Run(Record, frozen=True, kw_only=True, tag="run"):
    """Run `windows` windows of `steps` steps. With `linger`, go on stepping unmeasured afterwards until
    the next command, so that the devices beside stay as loaded as they were."""

    windows: int
    steps: int
    measured: bool
    linger: bool = False


class Finish(Record, frozen=True, kw_only=True, tag="finish"):
    """Report the digest and end."""


Command = Run | Finish
