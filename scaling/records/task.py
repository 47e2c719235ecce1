"""Messages to a child on its stdin: its task, then commands. Also timed all-reduces and fork requests."""

from __future__ import annotations

from typing import Literal

from scaling.records.network import ALONE, NcclChoice, Place
from scaling.records.point import Amount, Device, Index, Point, Record, Workload
from scaling.text import ranges

# ---------------------------------------------------------------- task

Malloc = Literal["keep", "system"]
EVENTS_FD = "SCALING_EVENTS_FD"
# For a worker that replaces itself by another program: its pipe of commands, and its task as JSON.
COMMANDS_FD, GIVEN_TASK = "SCALING_COMMANDS_FD", "SCALING_TASK"


class Clocks(Record, frozen=True, kw_only=True):
    """The timeouts of a child, seconds: until `ready`, without an event, in all."""

    startup_s: float = 300.0
    stall_s: float = 120.0
    deadline_s: float = 1800.0


class Server(Record, frozen=True, kw_only=True):
    """A parameter server: its agent's rank, its place on the network, its reserved port."""

    launch_rank: int
    host: str
    place: Place
    port: int = 0

    @property
    def address(self) -> str:
        """The address at which it listens."""
        return self.place.address


class Task(Record, frozen=True, kw_only=True):
    """All that a child needs for one point.

    `rank`, `local_rank`: counted inside the point; `launch_rank`: the agent's MPI rank.
    `hosts[r]`, `places[r]`: host and place of rank r; `place` is this child's.
    `ports`: reserved at rank 0's address; `rank_ports[r]`: of rank r.
    `cpus`: this child's; all of the host's if it drives all devices.
    `device_indices`: devices that this child computes on; () for servers and for coordinators of helpers.
    `shown_gpu`: the only GPU that it sees, as GPU 0 (a MIG slice); "" if it sees all of its agent's.
    `role`: "worker" or the name of a helper.
    `fresh`: start a new process, not a fork.
    `counts_traffic`: for one child of each host, if several hosts take part.
    `counts_energy`: for one child of each machine that no other host of the launch shares.
    `is_traced`: profiled steps follow the measured windows.
    `times_steps`: time each step, if the framework can; `together`, `held` and `feed` always do.
    `keeps_log`: keep the log also if the child ends well.
    `data_dir`: the folder of the data, "" for data in the package or made.
    `save_weights`: the file to which rank 0 writes the weights, "" for none.
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
    times_steps: bool = False
    keeps_log: bool = True
    clocks: Clocks = Clocks()
    malloc: Malloc = "keep"
    fresh: bool = False
    data_dir: str = ""
    save_weights: str = ""

    @property
    def address(self) -> str:
        """Rank 0's address, where ranks meet."""
        return self.places[0].address if self.places else self.place.address

    @property
    def addresses(self) -> tuple[str, ...]:
        """The address of each rank."""
        return tuple(place.address for place in self.places)


class Run(Record, frozen=True, kw_only=True, tag="run"):
    """Run `windows` windows of `steps` steps.

    `linger`: step on, unmeasured, until the next command, so that other devices see the same load.
    `first`: index of the first window; 0 for warm-up.
    `canary`: the agent runs a canary on the rank's cores first.
    `lead`: uncounted steps before measured or later windows. They give ranks a common start, because commands
      reach ranks at different times, and fill the queue of a GPU.
    """

    windows: int
    steps: int
    measured: bool
    linger: bool = False
    first: int = 0
    canary: bool = False
    lead: int = 1

    @property
    def last(self) -> int:
        """The index of the last window."""
        return self.first + self.windows - 1

    @property
    def is_later(self) -> bool:
        """Whether it is a turn of the soak."""
        return not self.measured and self.first > 0


class Rest(Record, frozen=True, kw_only=True, tag="rest"):
    """Stop lingering, give back unused device memory, and answer Rested. A child that is stopped within a step
    would end it in the next window."""


class Inspect(Record, frozen=True, kw_only=True, tag="inspect"):
    """Take the digest, then run steps that are not counted; the answer is Inspected.
    First `windows` windows of `steps` steps without any exchange, then `beside_windows` of `steps` exchanges
    during compute, if the trainer has these; then one window of `traced_steps` steps with profilers."""

    windows: int
    steps: int
    traced_steps: int
    beside_windows: int = 0


class Train(Record, frozen=True, kw_only=True, tag="train"):
    """Train epoch `number`, counted from 0, of `steps` steps; the answer is one measured window."""

    number: int
    steps: int


class Evaluate(Record, frozen=True, kw_only=True, tag="evaluate"):
    """Average batch norm's statistics over ranks, then evaluate this rank's held-out samples."""

    number: int


class Finish(Record, frozen=True, kw_only=True, tag="finish"):
    """Report the digest and end."""


Command = Run | Rest | Inspect | Train | Evaluate | Finish


# ---------------------------------------------------------------- a timed all-reduce


class Timed(Record, frozen=True, kw_only=True):
    """All-reduces of `bytes` among `ranks`; `times_s` are those of the slowest rank, by repetition."""

    ranks: int
    bytes: int
    times_s: tuple[float, ...]
    best_busbw_bytes_per_s: float
    median_busbw_bytes_per_s: float


def timed(ranks: int, size_bytes: int, times_s: tuple[float, ...]) -> Timed:
    """Compute busbw as nccl-tests defines it: 2 (N-1)/N x bytes / time ("Performance reported by NCCL tests")."""
    from statistics import median  # every child imports this file

    moved_bytes = 2 * (ranks - 1) / ranks * size_bytes
    return Timed(
        ranks=ranks,
        bytes=size_bytes,
        times_s=times_s,
        best_busbw_bytes_per_s=moved_bytes / min(times_s),
        median_busbw_bytes_per_s=moved_bytes / median(times_s),
    )


class AskedAllReduce(Record, frozen=True, kw_only=True, tag="all-reduce"):
    """The job of one rank's process. `task` has the peers, the place and the library.

    `largest_bytes`: the largest tensor; `budget_s`: seconds for each group of ranks.
    `inside`: time the ranks of each of several nodes too.
    """

    task: Task
    largest_bytes: int
    budget_s: float
    inside: bool = False


class RankAllReduce(Record, frozen=True, kw_only=True):
    """The result of one rank's process: for all ranks, and for those of its node if it has several.

    `error`: nothing was timed; `nccl`: from NCCL's log, None without one.
    """

    everyone: Timed | None = None
    inside: Timed | None = None
    library: str = ""
    error: str = ""
    nccl: NcclChoice | None = None


# ---------------------------------------------------------------- a batch that fills a GPU


class BatchTrial(Record, frozen=True, kw_only=True):
    """Try batches from the task's own, on a GPU of `memory_bytes`."""

    task: Task
    memory_bytes: int


class BatchFit(Record, frozen=True, kw_only=True):
    """The largest batch whose step fits, and the device memory that it uses (0 if unknown)."""

    batch_size: int
    used_bytes: int


# ---------------------------------------------------------------- the server that forks children


FORK_FD = "SCALING_FORK_FD"
CHILD_MARK = "SCALING_CHILD"
FORK_READY = b"ready"
# The import has initialised CUDA: forks could not use it.
FORK_TOUCHED = b"touched"
# In a server's arguments: the modules after it may be missing.
OPTIONAL_MODULES = "--"
MOST_REQUEST_BYTES = 1 << 17


class ForkRequest(Record, frozen=True, kw_only=True):
    """Fork a worker with this environment. Its commands, events and log come as file descriptors.
    A message without descriptors is a worker's pid to wait for."""

    environ: dict[str, str]


# ---------------------------------------------------------------- rates of one device
# The rates of one device alone: matrix product, memory, transfers and a training step.

# The fields of `DeviceRates` that are rates.
RATES = (
    "matrix_flops_per_s",
    "copy_bytes_per_s",
    "to_device_bytes_per_s",
    "from_device_bytes_per_s",
    "samples_per_s",
)


class DeviceRates(Record, frozen=True, kw_only=True):
    """The rates of one device, measured by the process of one rank; None: not measured.

    Devices are alike, and their rates comparable, if `kind` is equal.

    `launch_rank`: the first rank on the device; others that share it have no rates of their own.
    `index`: of a GPU as nvidia-smi counts; `uuid`, `serial`: of a GPU, "" if unknown.
    `cpus`: the hardware threads of the rank, on CPUs; empty on GPUs.
    `work`: the work of the step; the matrix product has its precision. None: nothing was tried.
    `matrix_flops_per_s`: multiplications and additions.
    `copy_bytes_per_s`: bytes read and bytes written, in the device's own memory.
    `to_device_bytes_per_s`, `from_device_bytes_per_s`: from and to pinned host memory, one direction at a time.
    `samples_per_s`: of training steps of the plain loop.
    `left_out`: why nothing was tried; `error`: why a rate is missing. Rates measured before the error are kept.
    """

    launch_rank: Index
    host: str
    device: Device
    name: str
    index: Index = 0
    uuid: str = ""
    serial: str = ""
    cpus: tuple[Index, ...] = ()
    work: Workload | None = None
    matrix_flops_per_s: Amount | None = None
    copy_bytes_per_s: Amount | None = None
    to_device_bytes_per_s: Amount | None = None
    from_device_bytes_per_s: Amount | None = None
    samples_per_s: Amount | None = None
    left_out: str = ""
    error: str = ""

    @property
    def kind(self) -> tuple[str, int, Workload | None]:
        """The device's name, the number of its hardware threads (0 for a GPU) and the work."""
        return self.name, len(self.cpus), self.work

    @property
    def place(self) -> str:
        """`node1 GPU 3 (serial 1654922003917)`, or `node1 CPUs 0-3`."""
        if self.device != "cuda":
            return f"{self.host} CPUs {ranges(self.cpus)}"
        return f"{self.host} GPU {self.index}" + (f" (serial {self.serial})" if self.serial else "")


class AskedDeviceRates(Record, frozen=True, kw_only=True, tag="device-rates"):
    """The job of one rank's process.

    `task`: the plain loop's, with the device, CPUs and threads of a worker.
    `device`: what the answer is of, without rates.
    `host_bytes`: the size of a buffer in host memory.
    """

    task: Task
    device: DeviceRates
    host_bytes: int
