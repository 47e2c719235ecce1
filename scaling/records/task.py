"""What a child is told: its task, one JSON line on its stdin, and the commands that follow it there."""

from __future__ import annotations

from typing import Literal

from scaling.records.network import ALONE, NcclChoice, Place
from scaling.records.point import Point, Record

# ---------------------------------------------------------------- task

# Whether the C library keeps what a child has freed, or gives it back to the kernel as it likes.
Malloc = Literal["keep", "system"]
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

    `rank` and `local_rank` count inside the point; `launch_rank` is the agent's MPI rank. `hosts[r]` is the host
    of rank r and `places[r]` its place on the network that is used; `place` is this child's own. `ports` are
    reserved at rank 0's address; `rank_ports[r]` is rank r's own. `device_index` and `cpus` are this child's; a
    worker that drives all devices of its host has the CPUs of all. `device_indices` are the devices that this
    child itself computes on: its own, those of its host, or none (servers; a coordinator of helpers that compute).
    With `fresh` it is no fork of a process that has imported its framework. `shown_gpu` is the UUID of the only
    GPU that it is shown, as its number 0, where a process can see no more than one (slices of a GPU, MIG); ""
    where it is shown those of its agent. `role` is "worker" or the name of a helper. Beside one child of each host
    of several its traffic is counted (`counts_traffic`), and beside one of each machine that is its host's alone
    what that uses (`counts_energy`). `is_traced`: profiled steps will follow the measured windows. `data_dir` is
    where the data lies on every host, "" for data that comes with the package or is made. `code` is the folder
    whose revision of this package the child runs, "" for that of its agent. `save_weights` is the file that rank 0
    writes what was learnt to, "" for none.
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
    shown_gpu: str = ""
    announced: dict[str, str] = {}
    counts_traffic: bool = False
    counts_energy: bool = False
    is_traced: bool = False
    clocks: Clocks = Clocks()
    malloc: Malloc = "keep"
    fresh: bool = False
    data_dir: str = ""
    code: str = ""
    save_weights: str = ""

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
    the next command, so that the devices beside stay as loaded as they were. `first` is the index of the first
    window, 0 for those of a warm-up; with `canary` the agent has a fixed piece of work done on the rank's
    cores before it hands this on."""

    windows: int
    steps: int
    measured: bool
    linger: bool = False
    first: int = 0
    canary: bool = False

    @property
    def last(self) -> int:
        """The index of the last window."""
        return self.first + self.windows - 1

    @property
    def is_later(self) -> bool:
        """Whether it goes on after the measured windows."""
        return not self.measured and self.first > 0


class Rest(Record, frozen=True, kw_only=True, tag="rest"):
    """Leave off lingering between two steps, and say so: who is stopped within a step ends it in the next window's
    time."""


class Inspect(Record, frozen=True, kw_only=True, tag="inspect"):
    """Take the digest; then run steps that no figure counts, and tell of them in one answer.

    First `windows` windows of `steps` steps inside the strategy's wrapper without any exchange, where the trainer
    has such steps; then `beside_windows` of as many exchanges alone while the device computes, where the trainer
    can; then one window of `traced_steps` steps with profilers on.
    """

    windows: int
    steps: int
    traced_steps: int
    beside_windows: int = 0


class Train(Record, frozen=True, kw_only=True, tag="train"):
    """Train for the epoch of this number, counted from 0: so many steps, reported as one measured window."""

    number: int
    steps: int


class Evaluate(Record, frozen=True, kw_only=True, tag="evaluate"):
    """Average what batch norm has gathered over ranks, then count on this rank's part of what is held out, after
    the epoch of this number."""

    number: int


class Finish(Record, frozen=True, kw_only=True, tag="finish"):
    """Report the digest and end."""


Command = Run | Rest | Inspect | Train | Evaluate | Finish


# ---------------------------------------------------------------- a timed all-reduce


class Timed(Record, frozen=True, kw_only=True):
    """All-reduces of `bytes` among `ranks`: `times_s` has each repetition's, as the slowest rank took it; the
    busbw of the fastest and of the usual one follow from it (`timed`)."""

    ranks: int
    bytes: int
    times_s: tuple[float, ...]
    best_busbw_bytes_per_s: float
    median_busbw_bytes_per_s: float


def timed(ranks: int, size_bytes: int, times_s: tuple[float, ...]) -> Timed:
    """With busbw as nccl-tests defines it, what each rank's link carries each way whatever the number of ranks:
    2 (N-1)/N x bytes / time ("Performance reported by NCCL tests" in its documentation)."""
    from statistics import median  # every child imports this file

    moved_bytes = 2 * (ranks - 1) / ranks * size_bytes
    return Timed(
        ranks=ranks,
        bytes=size_bytes,
        times_s=times_s,
        best_busbw_bytes_per_s=moved_bytes / min(times_s),
        median_busbw_bytes_per_s=moved_bytes / median(times_s),
    )


class AskedAllReduce(Record, frozen=True, kw_only=True):
    """What one rank's process is to do: its task says with whom, over which place and with which library; no
    tensor is larger than `largest_bytes`, and each group may take about `budget_s`. With `inside` the ranks of
    each of several nodes are timed too."""

    task: Task
    largest_bytes: int
    budget_s: float
    inside: bool = False


class RankAllReduce(Record, frozen=True, kw_only=True):
    """What one rank's process tells: of all ranks, and of those of its node where it has several. With an `error`
    nothing was timed. `nccl` is read from NCCL's own log, None without one."""

    everyone: Timed | None = None
    inside: Timed | None = None
    library: str = ""
    error: str = ""
    nccl: NcclChoice | None = None


# ---------------------------------------------------------------- the server that forks children


# The variable that names the server's end of the socket.
FORK_FD = "SCALING_FORK_FD"
# The variable by which the descendants of a child are known, unless they drop it.
CHILD_MARK = "SCALING_CHILD"
# What the server says once its framework is imported.
FORK_READY = b"ready"
# Among a server's arguments: what follows may be lacking.
OPTIONAL_MODULES = "--"
# The longest request: an environment.
MOST_REQUEST_BYTES = 1 << 17


class ForkRequest(Record, frozen=True, kw_only=True):
    """Fork a worker with this environment; its commands, its events and its log come as file descriptors. A
    message without any is a worker's pid, to be waited for."""

    environ: dict[str, str]
