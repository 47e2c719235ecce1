"""Events that a child reports, the end of a child as its agent saw it, and outcomes."""

from __future__ import annotations

from typing import Literal

from scaling.records.crossing import Bounds
from scaling.records.network import NcclChoice
from scaling.records.point import LEAST_S, Amount, Count, Index, Record, Seconds, Signed, Size, Taken, UnixSeconds
from scaling.records.telemetry import GpuTime, Sample, Telemetry


class Hello(Record, frozen=True, kw_only=True, tag="hello"):
    """The child runs and has read its task."""

    pid: int
    affinity: tuple[int, ...]


class Announce(Record, frozen=True, kw_only=True, tag="announce"):
    """A helper runs; `values` tell the workers how to reach it."""

    values: dict[str, str]


class Ready(Record, frozen=True, kw_only=True, tag="ready"):
    """The framework is imported, the model built, the exchange connected.

    `crossing_bytes_per_step`: least and most bytes that a step of the point sends between nodes; None if unknown.
    `operations_per_sample`: floating-point operations, forward and backward; 0 without compute.
    `training_samples`: samples of an epoch over all ranks; 0 without a training to an accuracy.
    `data_samples`: all samples of each split of the data, of which a training may use a part.
    `fed_by`: processes or threads and decoder of a native feed; "" for the reference feed.
    `read_from`: the source of data in files; "" for data in memory.
    `cached_fraction`: the part that the page cache kept despite --drop-caches; None if unknown.
    """

    import_s: Seconds
    build_s: Seconds
    parameters: Count
    gradient_bytes: Count
    device_name: str
    versions: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    crossing_bytes_per_step: Bounds | None = None
    operations_per_sample: Count = 0
    training_samples: Count = 0
    data_samples: dict[str, Count] = {}
    fed_by: str = ""
    read_from: Literal["", "page cache", "disk"] = ""
    cached_fraction: Amount | None = None


class Window(Record, frozen=True, kw_only=True, tag="window"):
    """One window of one rank. Consecutive windows of a `Run` share their edges, which are device synchronisations,
    or marks in the queue of a device with a clock.

    `loss`: None without a loss (`comm`).
    `index`: the block's number if points take turns.
    `staleness`: steps of other ranks between a step's pull and its push, mean; None for synchronous exchanges.
    `uncounted_samples`: samples trained on, untimed, before this window.
    `step_s`: seconds of each step, if steps are timed one by one (`together`).
    `canary_s`: seconds of the canary on the rank's slowest core just before; None without one.
    `canary_queued_s`: how long another program ran on that core meanwhile.
    `waited_s`: seconds blocked in the feed; None if the batch stays the same. A device may compute meanwhile.
    `paused_s`: seconds of a script's pauses (evaluation, checkpoints), which the window's times leave out.
    `gpus`: readings of the rank's GPUs at the end of a warm-up window.
    `turn_s`, `turn_device_s`: seconds of a turn that a device's clock times, with its uncounted steps, by the
      host's clock and by the device's. Its last window has them.
    """

    index: Index
    measured: bool
    steps: Size
    samples: Count
    start_s: Seconds
    end_s: Seconds
    end_unix_s: UnixSeconds
    loss: Signed | None = None
    staleness: Amount | None = None
    uncounted_samples: Count = 0
    step_s: tuple[Seconds, ...] = ()
    canary_s: Taken | None = None
    canary_queued_s: Signed = 0.0
    waited_s: Seconds | None = None
    paused_s: Seconds = 0.0
    gpus: tuple[Sample, ...] = ()
    turn_s: Seconds | None = None
    turn_device_s: Seconds | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a window too short to have a rate."""
        if self.seconds < LEAST_S:
            raise ValueError(f"window {self.index} ends {self.seconds:g} s after its start")

    @property
    def seconds(self) -> float:
        """Seconds between the two edges."""
        return self.end_s - self.start_s


class Rested(Record, frozen=True, kw_only=True, tag="rested"):
    """The answer to `Rest`: nothing runs."""


class Inspected(Record, frozen=True, kw_only=True, tag="inspected"):
    """The answer to `Inspect`.

    `unsynced`: windows without an exchange; `beside`: windows of the exchange during compute.
    `traced`: the window of profiled steps; `traces`: its files, relative to the run's folder; `gpu`: a summary.
    `notes`: why a trace is missing.
    """

    unsynced: tuple[Window, ...] = ()
    beside: tuple[Window, ...] = ()
    traced: tuple[Window, ...] = ()
    traces: tuple[str, ...] = ()
    gpu: GpuTime | None = None
    notes: tuple[str, ...] = ()


class Progress(Record, frozen=True, kw_only=True, tag="progress"):
    """A sign of life during an epoch or evaluation: `steps` are done."""

    steps: Index


class Evaluated(Record, frozen=True, kw_only=True, tag="evaluated"):
    """The answer to `Evaluate`: how many of this rank's `seen` held-out samples were `correct`.

    Each sample of the split is on one rank. The time includes the averaging of batch norm's statistics.
    `confusion`: samples by true class (row) and predicted class (column); () with too many classes.
    """

    number: Index
    seen: Count
    correct: Count
    start_s: Seconds
    end_s: Seconds
    confusion: tuple[tuple[Count, ...], ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError if `confusion` is not square."""
        if any(len(row) != len(self.confusion) for row in self.confusion):
            raise ValueError(f"the confusion of {len(self.confusion)} classes has rows of another length")


class Result(Record, frozen=True, kw_only=True, tag="result"):
    """The last event of a worker.

    `digest`: hash of the parameters; None without training.
    `first_digest`: hash before the first step; only in the first round, None in older records.
    `saved`: the file of weights, if this rank was to write one; else `unsaved` is the reason.
    `notes`: what was seen of a script. `found`: what must differ between its ranks: hashes of batches, its GPU.
    """

    digest: str | None
    peak_memory_bytes: Count
    peak_rss_bytes: Count
    first_digest: str | None = None
    saved: str = ""
    unsaved: str = ""
    notes: tuple[str, ...] = ()
    found: dict[str, str] = {}


class Error(Record, frozen=True, kw_only=True, tag="error"):
    """The child caught an exception: `cause` and `may_follow` as in `Failed`."""

    cause: str
    message: str
    traceback: str = ""
    may_follow: bool = False


class Finished(Record, frozen=True, kw_only=True, tag="finished"):
    """The child or point ended normally."""


class Failed(Record, frozen=True, kw_only=True, tag="failed"):
    """Why a child or a point has no result.

    cause: oom | memlock (pinned memory) | shm (/dev/shm) | driver (none, too old) | no-kernel (built for other
    GPUs) | busy (another process has the GPU) | nccl | feed (a picture, a loader process) | crash(SIGNAL) |
    exit(CODE) | error | hang | timeout | startup | missing | nan-loss | digest | port-taken | no-result |
    refused | cancelled | interrupted

    `may_follow`: the failure may be a consequence of a peer's death, which is then the cause.
    """

    cause: str
    message: str
    rank: Index = 0
    host: str = ""
    log: str = ""
    log_tail: str = ""
    may_follow: bool = False


Outcome = Finished | Failed


class Exit(Record, frozen=True, kw_only=True):
    """A child's end as its agent saw it. Rank 0 decides what it means (`sweep/ended.py`).

    `code`: the exit code, or minus the signal's number.
    `reason`: why the agent ended the child, or why it could not start; `signals`: those that the agent sent.
    `is_late`: the agent ended the child because it did not leave its exchange after its result.
    `oom_kills`: rise of the kernel's out-of-memory count in `oom_file` while the child ran.
    `limit`: the limit of processes to which the log points.
    """

    is_started: bool = True
    code: int = 0
    reason: Failed | None = None
    signals: frozenset[int] = frozenset()
    is_late: bool = False
    oom_kills: Count = 0
    oom_file: str = ""
    limit: str = ""
    log_tail: str = ""


class Ended(Record, frozen=True, kw_only=True, tag="ended"):
    """Sent by the agent once per child, when none of its processes runs. `nccl` is from NCCL's log."""

    exit: Exit = Exit()
    environ: dict[str, str] = {}
    telemetry: Telemetry = Telemetry()
    nccl: NcclChoice | None = None
    log_dropped_bytes: Count = 0


class Measured(Record, frozen=True, kw_only=True, tag="measured"):
    """Sent by the agent after the measured windows: `Ended` as it would be if the child ended normally now."""

    ended: Ended


Heard = Hello | Announce | Ready | Window | Rested | Inspected | Progress | Evaluated | Result | Error
Event = Heard | Measured | Ended
