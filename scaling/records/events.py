"""What a child reports while it lives, what its agent saw of its end, and outcomes."""

from __future__ import annotations

from typing import Literal

from scaling.records.bounds import LEAST_S, Amount, Count, Index, Seconds, Signed, Size, Taken, UnixSeconds
from scaling.records.crossing import Bounds
from scaling.records.gpu_time import GpuTime
from scaling.records.nccl import NcclChoice
from scaling.records.point import Record
from scaling.records.telemetry import Telemetry


class Hello(Record, frozen=True, kw_only=True, tag="hello"):
    """The child runs and has read its task."""

    pid: int
    affinity: tuple[int, ...]


class Announce(Record, frozen=True, kw_only=True, tag="announce"):
    """A helper is up: what the workers must know to reach it."""

    values: dict[str, str]


class Ready(Record, frozen=True, kw_only=True, tag="ready"):
    """Framework imported, model built, exchange connected.

    `crossing_bytes_per_step` is what one step of the whole point must send from node to node, at least and at
    most; None where the strategy does not know. `operations_per_sample` are floating-point operations, forward and
    backward, counted from the network's layers; 0 where nothing is computed. `training_samples` are those of an
    epoch, over all ranks; 0 where the point is not trained to an accuracy; `data_samples` are
    those that the data has of each split, of which these may be a part, {} elsewhere. `fed_by` is what a native
    feed is: its processes or threads, its decoder; "" for the reference feed. `read_from` is where data in files
    comes from, "" where it is held in memory; `cached_fraction` how much of it the kernel kept all the same when
    it was to drop it from the page cache, None where that is not known.
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
    """One window of one rank. Consecutive windows of a `Run` share their edges, so their seconds add up
    to the time from the start to the last synchronisation. `loss` is None where there is none (`comm`).

    `staleness` is None in synchronous modes; else how many steps of other ranks came between a step's pull
    of the parameters and its push, mean over the window's steps. `uncounted_samples` were trained on between the
    window before and this one, untimed. `step_s` are the steps one by one where they are timed so (`together`,
    where a step has ended when it returns). Where points are measured side by side, `index` is the number of the
    block. `canary_s` is what a fixed piece of work took on the slowest of the rank's cores just before, None where
    it was not tried (of a `Run` it is before the first window), `canary_queued_s` how long of that others had that
    core. `waited_s` is how long the rank was blocked in its feed; None where its batch stays the same or it has
    none. No step is longer by that where a device computed meanwhile.
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

    def __post_init__(self) -> None:
        """Raises ValueError where no rate can be formed of it."""
        if self.seconds < LEAST_S:
            raise ValueError(f"window {self.index} ends {self.seconds:g} s after its start")

    @property
    def seconds(self) -> float:
        """Between the two device synchronisations."""
        return self.end_s - self.start_s


class Rested(Record, frozen=True, kw_only=True, tag="rested"):
    """The answer to `Rest`: nothing runs."""


class Inspected(Record, frozen=True, kw_only=True, tag="inspected"):
    """The answer to `Inspect`: the windows without an exchange, those of the exchange beside compute, and that of
    the profiled steps.

    `traces` are the files of the latter, below the run's folder; `gpu` is what they say of the rank's GPU. Where
    there should be a file and is none, `notes` say why.
    """

    unsynced: tuple[Window, ...] = ()
    beside: tuple[Window, ...] = ()
    traced: tuple[Window, ...] = ()
    traces: tuple[str, ...] = ()
    gpu: GpuTime | None = None
    notes: tuple[str, ...] = ()


class Progress(Record, frozen=True, kw_only=True, tag="progress"):
    """A sign of life of a rank within an epoch or an evaluation, of which so many steps are taken."""

    steps: Index


class Evaluated(Record, frozen=True, kw_only=True, tag="evaluated"):
    """The answer to `Evaluate`: of `seen` held-out samples, every one of the split on one rank, how many were
    `correct`; and of each class (row) how many were taken for each (column), () where there are too many classes.

    From `start_s` to `end_s`, the averaging of batch norm's statistics included.
    """

    number: Index
    seen: Count
    correct: Count
    start_s: Seconds
    end_s: Seconds
    confusion: tuple[tuple[Count, ...], ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError where the classes are no square."""
        if any(len(row) != len(self.confusion) for row in self.confusion):
            raise ValueError(f"the confusion of {len(self.confusion)} classes has rows of another length")


class Result(Record, frozen=True, kw_only=True, tag="result"):
    """The worker's last word: hash of the parameters (None where nothing is trained), memory in bytes.

    `first_digest` is the hash before the first step, None in other rounds than the first and in older records.
    `saved` is the file with what was learnt, where one was asked for of this rank; else `unsaved` says why not.
    """

    digest: str | None
    peak_memory_bytes: Count
    peak_rss_bytes: Count
    first_digest: str | None = None
    saved: str = ""
    unsaved: str = ""


class Error(Record, frozen=True, kw_only=True, tag="error"):
    """The child caught an exception: `cause` and `may_follow` as in `Failed`."""

    cause: str
    message: str
    traceback: str = ""
    may_follow: bool = False


class Finished(Record, frozen=True, kw_only=True, tag="finished"):
    """It ended as it should."""


class Failed(Record, frozen=True, kw_only=True, tag="failed"):
    """Why a child or a point has no result.

    cause: oom | memlock (pinned memory) | shm (/dev/shm) | driver (none, too old) | no-kernel (built for other
    GPUs) | nccl | feed (a picture, a loader process) | crash(SIGNAL) | exit(CODE) | error | hang | timeout |
    startup | missing | nan-loss | digest | port-taken | no-result | refused | cancelled | interrupted

    `may_follow`: it may be how a child takes the death of a peer, which is then the cause.
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
    """What an agent saw of a child's end. Rank 0 decides what it means (`sweep/ended.py`).

    `code` is the exit code, or minus a signal's number. `reason` is why the agent ended the child, or why the
    child could not start; `signals` are those that the agent sent. `is_late`: the agent ended the child because it
    did not leave its exchange after its result. `oom_kills` is by how much the count of the kernel's out-of-memory
    killer in `oom_file` rose while the child ran. `limit` names the limit of processes that the log points to.
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
    """From the agent, once per child: nothing of it runs any more.

    `nccl` is what NCCL's log tells, None where there is none.
    """

    exit: Exit = Exit()
    environ: dict[str, str] = {}
    telemetry: Telemetry = Telemetry()
    nccl: NcclChoice | None = None
    log_dropped_bytes: Count = 0


class Measured(Record, frozen=True, kw_only=True, tag="measured"):
    """From the agent, once the measured windows are in: what `Ended` would say if the child ended well now."""

    ended: Ended


Heard = Hello | Announce | Ready | Window | Rested | Inspected | Progress | Evaluated | Result | Error
Event = Heard | Measured | Ended
