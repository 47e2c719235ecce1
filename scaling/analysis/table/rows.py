"""Types: what an analysis returns, and the entries of the catalogue. Fractions are of 1, times in seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from scaling.analysis.measured.cell import Cell
from scaling.analysis.measured.cpu import ServerUse
from scaling.analysis.measured.device_use import Clocks, DeviceUse, MachineUse, Traced
from scaling.analysis.measured.traffic import Path, Receipt
from scaling.analysis.statistics.intervals import Drift, Estimate, Lasting, is_distinguishable
from scaling.quiet.notes import SLOWER_CORES
from scaling.records.events import Failed
from scaling.records.network import NcclChoice
from scaling.records.point import Hardware, Placement, Record, Regime, ServerHosts, Workload
from scaling.records.run import Emulation


def shared(kind: type[Record], of: object) -> dict[str, Any]:
    """Return the fields of this kind of record that an object has under the same names, such as a point."""
    return {name: getattr(of, name) for name in kind.__struct_fields__ if hasattr(of, name)}


# ---------------------------------------------------------------- loss, data wait


class Breakdown(Record, frozen=True, kw_only=True):
    """Causes of lost efficiency as fractions of the exchange's step time, means over rounds.

    With `unexplained` they add up to 1 - efficiency. A cause is None if the controls do not show it; `straggling`
    also in asynchronous modes. `exposed` needs unknown CPU time; `exchange_cpu`, `servers` and `waiting` known.
    """

    contention: float | None
    straggling: float | None
    exposed: float | None
    small_batch: float | None
    unexplained: float
    exchange_cpu: float | None = None
    servers: float | None = None
    waiting: float | None = None
    data_wait: float | None = None


class DataWait(Record, frozen=True, kw_only=True):
    """Fractions of a step that plain loops wait for data: of a row's step, and of one device's (in the baseline).

    `feed_samples_per_s` is the rate of all feeds alone, which no row can exceed; None if not measured.
    """

    of_step: float
    of_alone: float
    feed_samples_per_s: float | None = None


# ---------------------------------------------------------------- rows


Verdict = Literal["best", "leading", "tied", "not separated", "slower", "faster", "not compared"]
# Half of the range within which an interval shows that two rivals are equally fast, as a fraction.
TIED = 0.02


def compared(difference: Estimate | None) -> Verdict:
    """Return what a difference of rates shows. `tied` is an interval within ± 2 %."""
    if difference is None or difference.low is None or difference.high is None:
        return "not compared"
    if is_distinguishable(difference):
        return "slower" if difference.mean < 0 else "faster"
    return "tied" if difference.low >= -TIED and difference.high <= TIED else "not separated"


class Standing(Record, frozen=True, kw_only=True):
    """The rank of a row among its rivals.

    Rivals have the same world size and work, and are both synchronous or both asynchronous.
    `best`: significantly faster than every rival. `leads`: the fastest as measured, but not faster than every
    rival with significance.
    `difference`: this / fastest - 1 over common rounds; None for the fastest itself and without a common round.
    Its interval holds for the whole table at 95 % (`contrasts.py`). With one common round there is none.
    """

    best: bool
    difference: Estimate | None = None
    leads: bool = False

    @property
    def distinguishable(self) -> bool:
        return self.difference is not None and is_distinguishable(self.difference)

    @property
    def verdict(self) -> Verdict:
        """The claim. `faster` is possible: the fastest over all rounds may lose in the rounds that it shares with
        this row."""
        if self.best:
            return "best"
        if self.leads:
            return "leading"
        return compared(self.difference)


class Row(Record, frozen=True, kw_only=True):
    """One exchange at one world size, over its rounds. Emulated rows are scaled to the emulated cluster.

    A value is None if it is unknown or not measured.

    `rounds`: rounds with a result; `rounds_tried`: failed ones too.
    `samples_per_s`: None if every round failed; `failed` has the reason.
    `tflops`: TFLOP/s of one device, by the network's layers; `mfu`: its fraction of the device's dense peak.
    `speedup`, `efficiency`, `strategy_efficiency`, `breakdown`: None without a baseline or with a claimless mark.
    `strategy_efficiency`: against the strategy's own single rank.
    `breakdown_intervals`: by cause.
    `exchange_cpu_parts`: known parts of `breakdown.exchange_cpu`, by thread or wrapper, as fractions of the step.
    `intra_node`: efficiency at the largest world size on one node; `inter_node`: the factor of crossing nodes.
    `flags`: names of marks; `receipt`: proof of the network; `paths`: between nodes, busiest first.
    `curve`: number of the scaling curve; `group`: number of the rows that may be compared at one world size.
    `standing`: among exchanges of its `framework`; `framework_standing`: among the fastest of each framework.
    `first_loss`, `last_loss`: of the training, warm-up included.
    `loss_at`: after `loss_at_samples` samples, the most that all rows of its group and world size reached.
    `learnt_less`: `loss_at` of an asynchronous row is above that of all synchronous rows.
    `staleness`: steps of other ranks between pull and push, mean; None if synchronous.
    `server_cpu_percent`: of one core, mean of `server_use`.
    `machine_cpu_percent`: of all cores of the emulating machine; `emulation`: its accuracy.
    `clocks`, `device_use`, `nccl`: clocks and use of its GPUs, choices of NCCL.
    `traced`: steps under a profiler.
    `data_wait`: how long plain loops wait for samples.
    `waited_s`: seconds of a step in which a rank was blocked in its feed, mean; devices may compute meanwhile.
    `fed_by`: workers and decoder of a native feed; `read_from`: the source of data in files.
    `machine_energy`: power and energy of processors and memory.
    `lasting`: change of the efficiency during the soak.
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

    @property
    def units_per_s(self) -> Estimate | None:
        """The rate in the workload's unit: tokens/s are sequences/s times their length."""
        return self.samples_per_s and self.samples_per_s.times(self.workload.units_per_sample)


class Baseline(Record, frozen=True, kw_only=True):
    """The plain loop on one device. `samples_per_s` is None if every round failed; `failed` has the reason."""

    strategy: str
    workload: Workload
    hardware: Hardware
    samples_per_s: Estimate | None
    footnotes: tuple[str, ...] = ()
    failed: Failed | None = None


class Contender(Record, frozen=True, kw_only=True):
    """An exchange with its network, options and servers."""

    strategy: str
    interconnect: str
    options: dict[str, str]
    servers: int = 0
    server_hosts: ServerHosts = "shared"


class Comparison(Record, frozen=True, kw_only=True):
    """The fastest row of a world size by mean samples/s against one other row.

    Both are exchanges of one `framework`, or, if that is empty, the fastest exchanges of two frameworks.
    Synchronous and asynchronous rows are never compared.

    `advantage` is best / other - 1, `difference` is other / best - 1, both over common rounds, with intervals as
    in `Standing`. Both are None without a common round. `detects` is the smallest true difference that is found in
    80 of 100 tables.
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
    detects: float | None = None
    framework: str = ""

    @property
    def distinguishable(self) -> bool:
        return self.difference is not None and is_distinguishable(self.difference)


class Resolution(Record, frozen=True, kw_only=True):
    """The smallest true difference of a contest's median pair that its rounds detect in 80 of 100 runs with the
    same noise. Both differences are fractions; `smallest_difference_then` is with `more_rounds`."""

    group: int
    world_size: int
    synchronous: bool
    rivals: int
    rounds: int
    smallest_difference: float
    more_rounds: int
    smallest_difference_then: float


class Minibatch(Record, frozen=True, kw_only=True):
    """One batch size of a sweep, or one pass, of an exchange or of a plain loop (`alone`).

    `step_s`: seconds of one minibatch.
    `efficiency`: its rate over the fastest rate of the sweep.
    `over_smaller`: its time over that of `smaller_batch_size`, the next smaller batch that was measured.
    `flags`: unranked marks; a batch with one has neither ratio.

    Intervals hold for all sweeps of the table at once; they are missing if the two share one round.
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
        """The batch size over the next smaller one; None for the smallest."""
        return None if self.smaller_batch_size is None else self.workload.batch_size / self.smaller_batch_size

    @property
    def is_worse(self) -> bool:
        """Whether several smaller batches are significantly faster: t(2b) > 2 t(b) for twice the batch."""
        over, linear = self.over_smaller, self.linear
        return over is not None and linear is not None and over.low is not None and over.low > linear


class OverCpu(Record, frozen=True, kw_only=True):
    """Samples/s on GPUs over samples/s on the CPU (`cpu`), of an exchange or of a plain loop (`alone`). `ratio` is
    None if either has no result."""

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


# ---------------------------------------------------------------- trainings


class Training(Record, frozen=True, kw_only=True):
    """A training to an accuracy, over its seeds. The seed in `regime` means nothing.

    `update_samples`: samples of one update: of all ranks, or of one rank if asynchronous.
    `seeds`: those that ended well; `top1_by_seed` has their order.
    `top1`: by epoch, mean over the seeds that reached the epoch, on `held_out` samples.
    `data_samples`: samples of the data by split; {} if unknown.
    `train_s`, `evaluate_s`: seconds, means over seeds.
    `target_s`: seconds to the target, mean over the `reached` seeds that reached it.
    `confusion`: over seeds, after the last epoch: a row a class, a column an answer; () with many classes.
    `less_than_samples`: the smallest update that learnt significantly more; None without one.
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
    """Everything that the analysis of a run's records returns."""

    rows: tuple[Row, ...]
    baselines: tuple[Baseline, ...]
    comparisons: tuple[Comparison, ...]
    resolutions: tuple[Resolution, ...] = ()
    minibatches: tuple[Minibatch, ...] = ()
    over_cpu: tuple[OverCpu, ...] = ()
    trainings: tuple[Training, ...] = ()


# ---------------------------------------------------------------- catalogue: columns, marks, explanations


PERCENT = "%"
ENDS = ("", "_low", "_high")
Value = str | int | float | Estimate | Standing | None
# One curve; exchanges or frameworks at one world size; all rows of a page.
Table = Literal["curve", "comparison", "frameworks", "page"]
# Rows that have a cell: all; those with a result; those that claim an efficiency.
Basis = Literal["plan", "result", "claim"]
BASES: tuple[Basis, ...] = ("plan", "result", "claim")


class Column(Record, frozen=True, kw_only=True):
    """A column: its look, its value for a row, and the tables that have it.

    * `key`: finds its cells in a line.
    * `title`, `unit`: may contain `{unit}`, the unit of the rows' samples. Fractions are shown in percent.
    * `short`: heading in two lines, for a terminal; `group`: name over adjacent columns.
    * `unit_in_cells`: the unit follows each number, otherwise it is in the heading.
    * `shows_interval`: False shows the mean only; `brackets_noise`: noise is in parentheses.
    * `is_text`: aligned to the left.
    * `value`: value for programs; `shown`: value for people, if it differs.
    * `interval`: interval, if it is estimated apart from the value.
    * `tables`: condition for each table that may have the column; `place`: position in a table.
    * `csv`: name in CSV, once for each of `ends`; `csv_if`: only in files with a row for which this holds.
    * `explanation`: text for How to read; `phrase`, `color`: of a cause of loss, its words in a sentence, and the
      colour for figures.
    """

    key: str
    title: str = ""
    short: tuple[str, str] | None = None
    unit: str = ""
    digits: int | Callable[[float], int] = 2
    group: str = ""
    is_text: bool = False
    unit_in_cells: bool = False
    shows_interval: bool = True
    brackets_noise: bool = False
    value: Callable[[Row], Value] | None = None
    shown: Callable[[Row], Value] | None = None
    interval: Callable[[Row], Estimate | None] | None = None
    basis: Basis = "result"
    tables: Mapping[Table, Callable[[Column, Sequence[Row]], bool]] = {}
    place: int = 100
    csv: str = ""
    ends: tuple[str, ...] = ("",)
    csv_if: Callable[[Row], bool] | None = None
    explanation: str = ""
    phrase: str = ""
    color: str = ""

    @property
    def heading(self) -> str:
        """The title, with the unit unless cells or title have it: `contention, %`."""
        return self.title if self.unit_in_cells or self.unit in ("", self.title) else f"{self.title}, {self.unit}"

    def digits_of(self, value: float) -> int:
        return self.digits if isinstance(self.digits, int) else self.digits(value)

    def of_unit(self, unit: str) -> Column:
        """Return the column for rows whose samples are `images`, `tokens`, ..."""
        return replace(self, title=self.title.format(unit=unit), unit=self.unit.format(unit=unit))

    def of_rows(self, rows: Sequence[Row]) -> Column:
        """Return the column for these rows. If their units differ, cells contain the unit."""
        units = {row.workload.unit for row in rows}
        found = self.of_unit(rows[0].workload.unit)
        several = len(units) > 1 and "{unit}" in self.title
        return replace(found, title=self.title.format(unit="samples"), unit_in_cells=True) if several else found


def always(_: Column, __: Sequence[Row]) -> bool:
    """Put the column into every table."""
    return True


def known(column: Column, rows: Sequence[Row]) -> bool:
    """Put the column into tables where any row has a value."""
    return column.value is not None and any(column.value(row) is not None for row in rows)


def four_digits(value: float) -> int:
    """Return the decimals for about four digits in all."""
    return 2 if value < 10 else 1 if value < 1000 else 0


def tera_digits(value: float) -> int:
    return 4 if value < 0.1 else 3 if value < 1 else four_digits(value)


class Found(NamedTuple):
    """What decides the marks of a row: its cell and its estimates."""

    cell: Cell
    efficiency: Estimate | None = None
    rate: Estimate | None = None
    drifts: Sequence[Drift] = ()
    clocks: Clocks | None = None
    later: Lasting | None = None


class Mark(Record, frozen=True, kw_only=True):
    """A word next to the numbers of a row.

    * `of_cell`: condition on the records of any cell, control runs included; `of_row`: condition on rows only.
    * `harmless_in`: kinds of control runs for which the mark means nothing.
    * `claimless`: reason why a row claims no speedup, efficiency, loss, rank or cost.
    * `unranked`: reason why a row is neither ranked nor priced.
    * `is_wrong`: the row is not what its name says, or its counts disagree.
    * `meaning`: text for How to read; `about`: text for the banner of a page.
    * `serious`: order in banners and stamps of figures; 0: not there.
    * `drawn`: which of several marks a figure shows, lowest first; 0: none.
    * `hollow`, `line`, `across`: in figures, hollow dots, line to them (None: no line), word across the plot.
    * `is_complaint`: a terminal prints the mark below the row, otherwise in the row.
    """

    name: str
    of_cell: Callable[[Cell], bool] | None = None
    of_row: Callable[[Found], bool] | None = None
    harmless_in: tuple[str, ...] = ()
    claimless: str = ""
    unranked: str = ""
    is_wrong: bool = False
    meaning: str = ""
    about: str = ""
    serious: int = 0
    drawn: int = 0
    hollow: bool = False
    line: str | None = "-"
    across: bool = False
    is_complaint: bool = True


class Report(NamedTuple):
    """What decides which explanations a report has."""

    analysis: Analysis
    compares: bool
    predicts: bool
    has_times: bool = False

    @property
    def rows(self) -> Sequence[Row]:
        return self.analysis.rows

    @property
    def has_oom(self) -> bool:
        failures = (one.failed for of in (self.rows, self.analysis.baselines) for one in of)
        return any(failed is not None and failed.cause == "oom" for failed in failures)

    @property
    def has_slower_cores(self) -> bool:
        notes = (note for of in (self.rows, self.analysis.baselines) for one in of for note in one.footnotes)
        return any(SLOWER_CORES in note for note in notes)


class Explanation(Record, frozen=True, kw_only=True):
    """A line of How to read, in reports for which `applies` holds. `report/document.py` fills the names in braces
    in `text`: `{rates}` is `images/s`."""

    label: str
    text: str
    applies: Callable[[Report], bool]
