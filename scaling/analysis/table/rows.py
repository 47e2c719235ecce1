"""What trainings to an accuracy have come to, and with it all that an analysis finds. Times in seconds."""

from __future__ import annotations

from typing import Literal

from scaling.analysis.measured.breakdown import Breakdown
from scaling.analysis.measured.cpu import ServerUse
from scaling.analysis.measured.device_use import Clocks, DeviceUse, MachineUse
from scaling.analysis.measured.lasting import Lasting
from scaling.analysis.measured.rounds import DataWait
from scaling.analysis.measured.traces import Traced
from scaling.analysis.measured.traffic import Path, Receipt
from scaling.analysis.statistics.intervals import Estimate, is_distinguishable
from scaling.records.events import Failed
from scaling.records.network import NcclChoice
from scaling.records.point import (
    Hardware,
    Placement,
    Record,
    Regime,
    ServerHosts,
    Workload,
)
from scaling.records.run import Emulation

# ---------------------------------------------------------------- rows
#
# What an analysis finds: rows, baselines, comparisons. Fractions are of 1, times in seconds.


Verdict = Literal["best", "leading", "slower", "faster", "not compared"]


class Standing(Record, frozen=True, kw_only=True):
    """Where a row stands among those that it is compared with: of the same world size and work, and as synchronous
    or asynchronous as it is.

    `best` says that it was told from each of the others and is faster. `leads` says that it is the fastest as
    measured, but that not all others could be told from it. `difference` is this / fastest - 1, over the rounds
    that both have, with the interval that holds for the whole table at 95 % (contrasts.py); without one where they
    share a single round, and None for the fastest itself and without a shared round.
    """

    best: bool
    difference: Estimate | None = None
    leads: bool = False

    @property
    def distinguishable(self) -> bool:
        """Whether the two differ by more than the rounds do."""
        return self.difference is not None and is_distinguishable(self.difference)

    @property
    def verdict(self) -> Verdict:
        """What is claimed. `leading`: of the group that nobody can be told from the fastest in.

        The fastest by all its rounds may still lose in those that it shares with another: `faster`.
        """
        if self.best:
            return "best"
        if self.leads:
            return "leading"
        if self.difference is None or self.difference.low is None:
            return "not compared"
        if not self.distinguishable:
            return "leading"
        return "slower" if self.difference.mean < 0 else "faster"


class Row(Record, frozen=True, kw_only=True):
    """One exchange at one world size, over its rounds. What emulated devices shrink and dilate is undone in it.

    `rounds` counts those with a result, `rounds_tried` the failed ones too. `samples_per_s` is None when
    every round failed (then `failed` says why); `speedup`, `efficiency`, `strategy_efficiency` (against the
    strategy's own single rank) and `breakdown` are None without a baseline, or with a claimless mark.
    `breakdown_intervals` are by cause.
    `intra_node` is the efficiency at the largest world size on one node and `inter_node` what crossing
    nodes leaves of it, over the rounds that have both, on rows that cross nodes. `flags` are of FAILED,
    EMULATED, AUDIT, OVERSUBSCRIBED, SUPERLINEAR, UNSETTLED, THROTTLED, DRIFTING, ASYNC, and on rows that cross
    nodes one of VERIFIED, MISLABELLED, UNSENT, UNVERIFIED, with the `receipt` behind it; `paths` are those that
    carried the exchange from node to node, busiest first.

    `first_loss` and `last_loss` are of the training, warm-up included; `loss_at` is its loss after
    `loss_at_samples` samples, the most that all measured rows of its group and world size have reached,
    asynchronous or not.
    `staleness` is None in synchronous modes; else the steps of other ranks between a step's pull and its
    push, mean over ranks, windows and rounds. `server_cpu_percent` is of one core, the mean of
    `server_use`; `standing` is among the exchanges of its `framework`, `framework_standing` among frameworks, for
    the fastest exchange of each; None for a row without rival, or with an unranked mark. Rows of one
    scaling curve share `curve`, those whose rates may be compared at one world size `group`. `learnt_less`: at
    `loss_at_samples` an asynchronous row's loss was above that of all synchronous ones.
    `machine_cpu_percent` is of all cores of the machine that emulated, `emulation` how well it does; None for
    real devices. `traced` is what steps with profilers on show, None where none ran. `exchange_cpu_parts` are
    fractions of the step that are known of `breakdown.exchange_cpu`: threads by name that plain loops do not have,
    and the wrapper; they need not add up to it. `clocks` are those of its GPUs, `device_use` is how these ran,
    `nccl` what NCCL chose; None where nobody has told. `tflops` are TFLOP/s of one device by the operations of the
    network's layers, `mfu` their part of the device's published dense peak, `data_wait` how long plain loops wait
    for samples, `machine_energy` what processors and memory use; None where that is not known. `waited_s` are the
    seconds of a step in which one of its ranks was blocked in its feed, mean over ranks: part of no sum, since
    devices may compute meanwhile. `lasting` is how its efficiency had changed once the same processes had trained
    on for a while, None where they did not. `fed_by` is what a native feed is, `read_from` where data in files
    comes from.
    """

    strategy: str
    workload: Workload
    hardware: Hardware
    interconnect: str
    options: dict[str, str]
    placement: Placement
    global_batch_size: int
    world_size: int
    nodes: int
    rounds: int
    rounds_tried: int
    samples_per_s: Estimate | None = None
    tflops: float | None = None
    mfu: float | None = None
    speedup: Estimate | None = None
    efficiency: Estimate | None = None
    strategy_efficiency: Estimate | None = None
    intra_node: float | None = None
    inter_node: float | None = None
    breakdown: Breakdown | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    flags: tuple[str, ...] = ()
    failed: Failed | None = None
    footnotes: tuple[str, ...] = ()
    breakdown_intervals: dict[str, Estimate] = {}
    curve: int = 0
    group: int = 0
    synchronous: bool = True
    staleness: float | None = None
    loss_at: float | None = None
    loss_at_samples: int | None = None
    servers: int = 0
    server_hosts: ServerHosts = "shared"
    server_use: tuple[ServerUse, ...] = ()
    server_cpu_percent: float | None = None
    standing: Standing | None = None
    receipt: Receipt | None = None
    paths: tuple[Path, ...] = ()
    machine_cpu_percent: float | None = None
    emulation: Emulation | None = None
    traced: Traced | None = None
    framework: str = ""
    framework_standing: Standing | None = None
    learnt_less: bool = False
    exchange_cpu_parts: dict[str, float] = {}
    clocks: Clocks | None = None
    device_use: DeviceUse | None = None
    nccl: NcclChoice | None = None
    is_plain: bool = False
    data_wait: DataWait | None = None
    machine_energy: MachineUse | None = None
    waited_s: float | None = None
    fed_by: str = ""
    read_from: str = ""
    lasting: Lasting | None = None


class Baseline(Record, frozen=True, kw_only=True):
    """The plain loop on one device; `samples_per_s` is None when every round failed, then `failed` says why."""

    strategy: str
    workload: Workload
    hardware: Hardware
    samples_per_s: Estimate | None
    footnotes: tuple[str, ...] = ()
    failed: Failed | None = None


class Contender(Record, frozen=True, kw_only=True):
    """Who is compared."""

    strategy: str
    interconnect: str
    options: dict[str, str]
    servers: int = 0
    server_hosts: ServerHosts = "shared"


class Comparison(Record, frozen=True, kw_only=True):
    """The fastest by mean samples/s of a world size against one other: exchanges of one `framework`, or, where
    that is empty, the fastest exchanges of two frameworks. Synchronous modes are compared with synchronous ones
    and asynchronous with asynchronous: a stale image is not worth a fresh one.

    `advantage` is best / other - 1 and `difference` other / best - 1, over the rounds that both have, with
    intervals as in `Standing`; None without a shared round.
    """

    workload: Workload
    hardware: Hardware
    world_size: int
    placement: Placement
    synchronous: bool
    best: Contender
    other: Contender
    advantage: Estimate | None
    difference: Estimate | None
    framework: str = ""

    @property
    def distinguishable(self) -> bool:
        """Whether the two differ by more than the rounds do."""
        return self.difference is not None and is_distinguishable(self.difference)


class Resolution(Record, frozen=True, kw_only=True):
    """What the rounds of a contest can tell: the smallest true difference, as a fraction, that is found in 80 of
    100 runs as noisy as this one, and the same with `more_rounds`. `group` is that of its rows."""

    group: int
    world_size: int
    synchronous: bool
    rivals: int
    rounds: int
    smallest_difference: float
    more_rounds: int
    smallest_difference_then: float


class Minibatch(Record, frozen=True, kw_only=True):
    """One batch of a sweep over batches, or one pass: of an exchange, or of a plain loop `alone` behind others.

    `step_s` are the seconds of one minibatch, `efficiency` is its rate over that of the sweep's fastest,
    `over_smaller` its time over that of the next smaller batch that was measured, `smaller_batch_size`; with
    intervals that hold for all sweeps of the table at once, without one where they share a single round.
    `placement` is that of an exchange. `flags` are unranked marks: such a batch is compared
    with no other and has neither ratio.
    """

    contender: Contender
    alone: bool
    workload: Workload
    hardware: Hardware
    world_size: int
    step_s: Estimate | None = None
    samples_per_s: Estimate | None = None
    efficiency: Estimate | None = None
    over_smaller: Estimate | None = None
    smaller_batch_size: int | None = None
    failed: Failed | None = None
    footnotes: tuple[str, ...] = ()
    placement: Placement = "pack"
    flags: tuple[str, ...] = ()

    @property
    def linear(self) -> float | None:
        """How many times the next smaller batch it is."""
        return None if self.smaller_batch_size is None else self.workload.batch_size / self.smaller_batch_size

    @property
    def is_worse(self) -> bool:
        """Whether as many smaller batches as make it up are faster: t(2b) > 2 t(b), beyond the interval."""
        over, linear = self.over_smaller, self.linear
        return over is not None and linear is not None and over.low is not None and over.low > linear


class OverCpu(Record, frozen=True, kw_only=True):
    """How many times as fast as the CPU beside them GPUs train: an exchange, or the plain loop of one `alone`.

    `ratio` is None where either has no result; `cpu` is what it is over.
    """

    contender: Contender
    alone: bool
    workload: Workload
    hardware: Hardware
    world_size: int
    samples_per_s: Estimate | None
    ratio: Estimate | None
    cpu: Baseline
    failed: Failed | None = None
    footnotes: tuple[str, ...] = ()


# ---------------------------------------------------------------- training rows


class Training(Record, frozen=True, kw_only=True):
    """A training to an accuracy, its seeds in one row: the regime's own seed says nothing.

    `update_samples` are those behind one update: of all ranks, or of one where these do not wait for each other.
    `top1` is by epoch, mean over the seeds that came to it, and `top1_by_seed` is in the order of `seeds`, which
    ended well; of `held_out` samples each. `data_samples` are all that the data has by split, {} where unknown.
    `train_s`, `evaluate_s` and `target_s` are seconds, means over seeds; `target_s` over those, `reached`, whose
    top-1 came to the target. `confusion` counts after the last epoch, a
    row for each class and a column for what its samples were taken for, over all seeds; () with too many classes.
    `less_than_samples`: the smallest update of the same task that this one has learnt less than, None where chance
    may explain it.
    """

    contender: Contender
    workload: Workload
    hardware: Hardware
    world_size: int
    regime: Regime
    synchronous: bool
    update_samples: int
    flags: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    held_out: int = 0
    data_samples: dict[str, int] = {}
    top1: tuple[float, ...] = ()
    top1_by_seed: tuple[tuple[float, ...], ...] = ()
    train_s: float | None = None
    evaluate_s: float | None = None
    target_s: float | None = None
    reached: int = 0
    samples_per_s: float | None = None
    confusion: tuple[tuple[int, ...], ...] = ()
    less_than_samples: int | None = None
    failed: Failed | None = None
    warnings: tuple[str, ...] = ()


class Analysis(Record, frozen=True, kw_only=True):
    """All that the records say."""

    rows: tuple[Row, ...]
    baselines: tuple[Baseline, ...]
    comparisons: tuple[Comparison, ...]
    resolutions: tuple[Resolution, ...] = ()
    minibatches: tuple[Minibatch, ...] = ()
    over_cpu: tuple[OverCpu, ...] = ()
    trainings: tuple[Training, ...] = ()
