"""The catalogue of the report: every column of its tables and of its CSV, and every mark, declared once. Pure.

A column is an entry of `COLUMNS` with a function that computes it from a row. A mark is an entry of `MARKS` with a
condition, its consequences, and its looks. Terminal, Markdown, LaTeX, page,
CSV, JSON and its schema are made from the entries; no format has a list of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from scaling.analysis.measured import audit
from scaling.analysis.measured.cell import Cell
from scaling.analysis.measured.device_use import Clocks, DeviceUse, MachineUse
from scaling.analysis.measured.lasting import Lasting
from scaling.analysis.measured.pools import Drift
from scaling.analysis.measured.traffic import Verdict, nccl_text
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.rows import Row, Standing
from scaling.records.point import Record

PERCENT = "%"
ENDS = ("", "_low", "_high")
Value = str | int | float | Estimate | Standing | None
# The tables of a report: one curve; the exchanges and the frameworks of one world size; all rows of a page.
Table = Literal["curve", "comparison", "frameworks", "page"]
# Which rows have a cell: all, those with a result, those that claim an efficiency.
Basis = Literal["plan", "result", "claim"]
BASES: tuple[Basis, ...] = ("plan", "result", "claim")


class Column(Record, frozen=True, kw_only=True):
    """A column: how it looks, and, for a column of rows, what it holds and where it appears.

    `key` finds its cells. `{unit}` in title and unit is what the rows' samples are. `short` is the heading in two
    lines of a terminal. The unit stands in the heading or, with `unit_in_cells`, behind each number; fractions are
    shown in percent. Columns of one `group` stand side by side under its name. Without `shows_interval` a table
    has room for the mean alone. `is_text` is set to the left. `brackets_noise`: numbers that are noise stand in
    parentheses.

    `value` computes it from a row, for programs; `shown` for people where that differs. `interval` is of values
    whose interval is estimated apart from them. `tables` says in which tables it stands, and for which rows;
    `place` orders the columns of a table. `csv` is its name in CSV, once for each of `ends`, and only in files
    with a row of which `csv_if` holds. `json` is its type in JSON; fields of `Row` are there without.
    `explanation` is for How to read. A cause of loss has an `advice`, and a `color` in figures.
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
    json: Any = None
    explanation: str = ""
    advice: str = ""
    color: str = ""

    @property
    def heading(self) -> str:
        """The title with the unit that the cells leave out: `contention, %`; a rate's title is its unit."""
        return self.title if self.unit_in_cells or self.unit in ("", self.title) else f"{self.title}, {self.unit}"

    def digits_of(self, value: float) -> int:
        """The digits behind the point of a value."""
        return self.digits if isinstance(self.digits, int) else self.digits(value)

    def of_unit(self, unit: str) -> Column:
        """The same of rows whose samples are `images`."""
        return replace(self, title=self.title.format(unit=unit), unit=self.unit.format(unit=unit))

    def of_rows(self, rows: Sequence[Row]) -> Column:
        """The same of these rows. Rates of several units have theirs in the cells."""
        units = {row.workload.unit for row in rows}
        found = self.of_unit(rows[0].workload.unit)
        several = len(units) > 1 and "{unit}" in self.title
        return replace(found, title=self.title.format(unit="samples"), unit_in_cells=True) if several else found


# ---------------------------------------------------------------- marks


class Found(NamedTuple):
    """What decides the marks of a row: its cell, and what was estimated of it."""

    cell: Cell
    efficiency: Estimate | None = None
    drifts: Sequence[Drift] = ()
    clocks: Clocks | None = None
    later: Lasting | None = None


class Mark(Record, frozen=True, kw_only=True):
    """A word beside the numbers of a row.

    `of_cell` is its condition on the records of any cell, also of a control run; `of_row` a condition on rows
    alone. Against a control run of the kinds `harmless_in` it says nothing. With a reason in `claimless` a row
    claims no speedup, efficiency, loss or rank and has no cost; with one in `unranked` it is neither ranked nor
    priced. `is_wrong`: the row is not what its name says, or its counts disagree.

    `meaning` is for How to read, `about` for the banner of a page. `serious` orders banners and the stamps of
    figures, `drawn` decides which of several marks a figure shows; 0 for neither. In figures dots are `hollow`, a
    `line` leads to them (None: no line), and the word stands `across` the plot. No `is_complaint` stands beside
    its row in a terminal, and not below it.
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


def _proves(verdict: Verdict) -> Callable[[Found], bool]:
    return lambda found: found.cell.receipt is not None and found.cell.receipt.verdict == verdict


# In the order in which a row names them.
MARKS: tuple[Mark, ...] = (
    Mark(name="FAILED", of_row=lambda found: found.cell.failure is not None, about="these have no result",
         serious=5, drawn=1),
    Mark(name="EMULATED",
         of_cell=lambda cell: any(record.point.hardware.device == "emulated" for record in cell.records),
         harmless_in=("solo", "each", "together", "comm", "held", "feed"), serious=6, drawn=6, hollow=True,
         line="--", across=True, is_complaint=False),
    # The control run `comm` feeds nothing.
    Mark(name="AUDIT", of_cell=lambda cell: bool(cell.audits or cell.less_work), harmless_in=("comm",),
         claimless="its own counts disagree", is_wrong=True, serious=3, drawn=5, line="--",
         about="rate, samples and clocks of these rows disagree"),
    Mark(name="OVERSUBSCRIBED", of_cell=lambda cell: audit.oversubscribed(cell.records),
         claimless="ranks share cores or a GPU", serious=4, drawn=4, hollow=True, line=None,
         about="ranks shared cores or a GPU: neither speedup nor efficiency is claimed"),
    Mark(name="SUPERLINEAR", of_row=lambda found: audit.superlinear(found.efficiency)),
    Mark(name="UNSETTLED", of_cell=lambda cell: any(not record.settled for record in cell.records)),
    Mark(name="THROTTLED", of_cell=lambda cell: bool(cell.throttle_reasons),
         of_row=lambda found: found.clocks is not None and found.clocks.differ),
    Mark(name="DRIFTING",
         of_row=lambda found: bool(found.drifts) or (found.later is not None and found.later.is_told)),
    Mark(name="ASYNC", of_row=lambda found: not found.cell.synchronous, drawn=8, line=":", is_complaint=False),
    Mark(name="UNSENT", of_row=_proves("UNSENT"), claimless="the gradients did not cross the network",
         is_wrong=True, serious=1, drawn=2, line="--",
         about="the counters saw less than half of the bytes that these rows must send"),
    Mark(name="MISLABELLED", of_row=_proves("MISLABELLED"), unranked="another network carried it", is_wrong=True,
         serious=2, drawn=3, line="--", about="the bytes took another network than these rows asked for"),
    Mark(name="UNVERIFIED", of_row=_proves("UNVERIFIED")),
    Mark(name="VERIFIED", of_row=_proves("VERIFIED"), is_complaint=False),
    # Of rows that nobody measured here.
    Mark(name="PREDICTED", about="nobody measured these rows", serious=7, drawn=7, hollow=True, line="--",
         across=True),
    Mark(name="IMPORTED", is_complaint=False),
)  # fmt: skip


def mark_named(name: str) -> Mark:
    """The mark of this name; an unknown one has no consequences."""
    return next((mark for mark in MARKS if mark.name == name), Mark(name=name))


def marks_of(found: Found) -> tuple[str, ...]:
    """The marks of a row, in order."""
    return tuple(
        mark.name
        for mark in MARKS
        if (mark.of_cell and mark.of_cell(found.cell)) or (mark.of_row and mark.of_row(found))
    )


def marks_of_control(cell: Cell) -> tuple[str, ...]:
    """The marks that records put on a control run, in order."""
    return tuple(mark.name for mark in MARKS if mark.of_cell and mark.of_cell(cell))


def serious(flags: Iterable[str]) -> tuple[str, ...]:
    """Of these marks those of banners and figures, worst first."""
    known = {mark.name for mark in MARKS if mark.serious}.intersection(flags)
    return tuple(sorted(known, key=lambda name: mark_named(name).serious))


def drawn(flags: Iterable[str]) -> str:
    """The worst of these marks that changes how a row is drawn; "" without one."""
    known = [mark for name in flags if (mark := mark_named(name)).drawn]
    return min(known, key=lambda mark: mark.drawn).name if known else ""


def claimless_marks() -> dict[str, str]:
    """The marks of rows that claim nothing, worst first: by mark, why."""
    ordered = sorted(MARKS, key=lambda mark: mark.serious)
    return {mark.name: mark.claimless for mark in ordered if mark.claimless}


def unranked_marks() -> dict[str, str]:
    """The marks of rows that are neither ranked nor priced: by mark, why. MISLABELLED rows claim an efficiency."""
    return {**claimless_marks(), **{mark.name: mark.unranked for mark in MARKS if mark.unranked}}


def claims(cell: Cell) -> bool:
    """Whether no mark takes all claims from a cell."""
    return not claimless_marks().keys() & set(marks_of(Found(cell)))


def competes(cell: Cell) -> bool:
    """Whether it may be ranked: it has a result, and no mark against that."""
    return bool(cell.times) and not unranked_marks().keys() & set(marks_of(Found(cell)))


def claimless(row: Row) -> str:
    """The mark that takes all claims from a row; "" for none."""
    return next((mark for mark in claimless_marks() if mark in row.flags), "")


def is_wrong(row: Row) -> bool:
    """Whether it is not what its name says, or its counts disagree."""
    return any(mark_named(name).is_wrong for name in row.flags)


# ---------------------------------------------------------------- when a table has a column


def always(_: Column, __: Sequence[Row]) -> bool:
    """In every table."""
    return True


def known(column: Column, rows: Sequence[Row]) -> bool:
    """Where any row has a value."""
    return column.value is not None and any(column.value(row) is not None for row in rows)


def _is_told(column: Column, rows: Sequence[Row]) -> bool:
    """Where any row tells this cause; the batch per device shrinks under the strong rule alone."""
    found = [row for row in rows if column.key != "small_batch" or row.workload.is_strong]
    return known(column, found)


def _on_nodes(_: Column, rows: Sequence[Row]) -> bool:
    return any(row.nodes > 1 for row in rows)


def _is_strong(_: Column, rows: Sequence[Row]) -> bool:
    return rows[0].workload.is_strong


def _has_peak(_: Column, rows: Sequence[Row]) -> bool:
    """Nobody publishes a peak of CPUs."""
    return known(TFLOPS, rows) and rows[0].hardware.device != "cpu"


def _several(_: Column, rows: Sequence[Row]) -> bool:
    return len({row.framework for row in rows}) > 1


def _single(column: Column, rows: Sequence[Row]) -> bool:
    return not _several(column, rows)


EVERYWHERE: Mapping[Table, Callable[[Column, Sequence[Row]], bool]] = {
    "curve": known,
    "comparison": known,
    "page": known,
}

# ---------------------------------------------------------------- digits and values


def four_digits(value: float) -> int:
    """Digits behind the point for about four in all."""
    return 2 if value < 10 else 1 if value < 1000 else 0


def _tera_digits(value: float) -> int:
    return 4 if value < 0.1 else 3 if value < 1 else four_digits(value)


# In the place of the efficiency of asynchronous ranks that learnt less from as many samples.
NOT_COMPARABLE = "not comparable"
# In the place of a standing: its bytes took another network than its name says.
NOT_RANKED = "not ranked"


def _field(row: Row, name: str) -> Any:
    """A field of the row, of its work, or of its hardware."""
    owner = next(one for one in (row, row.workload, row.hardware) if name in one.__struct_fields__)
    return getattr(owner, name)


def _rate(row: Row) -> Estimate | None:
    """Tokens/s are sequences/s x their length."""
    return row.samples_per_s and row.samples_per_s.times(row.workload.units_per_sample)


def _images_per_s(row: Row) -> Estimate | None:
    return row.samples_per_s if row.workload.unit == "images" else None


def _over_expected(row: Row, at: int) -> float | None:
    """The bytes over the least (1) or the most (0) that had to be sent."""
    ratio = row.receipt.over_expected if row.receipt else None
    return ratio and ratio[at]


# ---------------------------------------------------------------- columns of tables

NAME = Column(
    key="name", title="contender", short=("", ""), is_text=True,
    tables={"comparison": always, "frameworks": always}, place=0,
)  # fmt: skip
CURVE = Column(key="curve", title="curve", is_text=True, tables={"page": always}, place=0)
MARKED = Column(key="marks", title="marks", is_text=True, tables={"page": always}, place=2)
WORLD_SIZE = Column(
    key="world_size", title="N", digits=0, value=lambda row: row.world_size, basis="plan",
    tables={"curve": always, "page": always}, place=1, csv="world_size",
)  # fmt: skip
NODES = Column(
    key="nodes", title="nodes", digits=0, value=lambda row: row.nodes, basis="plan",
    tables={"curve": _on_nodes, "page": _on_nodes}, place=3, csv="nodes",
)  # fmt: skip
BATCH_SIZE = Column(
    key="batch_size", title="batch per device", short=("batch/", "device"), digits=0,
    value=lambda row: row.workload.batch_size, basis="plan", tables={"curve": _is_strong, "page": always},
    place=4, csv="batch_size",
)  # fmt: skip
RATE = Column(
    key="samples_per_s", title="{unit}/s", unit="{unit}/s", digits=four_digits,
    value=lambda row: row.samples_per_s, shown=_rate, tables={"curve": always, "page": always}, place=5,
    csv="samples_per_s", ends=ENDS,
)  # fmt: skip
MEAN_RATE = replace(RATE, shows_interval=False, csv="", tables={"comparison": always, "frameworks": always})
TFLOPS = Column(
    key="tflops", title="TFLOP/s per device", short=("TFLOP/s", "device"), digits=_tera_digits,
    shows_interval=False, value=lambda row: row.tflops, tables={"curve": known}, place=6,
    csv="tflops_per_device",
)  # fmt: skip
MFU = Column(
    key="mfu", title="MFU", unit=PERCENT, digits=1, shows_interval=False, value=lambda row: row.mfu,
    tables={"curve": _has_peak}, place=7, csv="mfu",
)  # fmt: skip
SPEEDUP = Column(
    key="speedup", title="speedup", shows_interval=False, value=lambda row: row.speedup,
    shown=lambda row: None if row.learnt_less else row.speedup, tables={"curve": always, "page": always},
    place=8, csv="speedup", ends=ENDS,
)  # fmt: skip
AGAINST_BEST = Column(
    key="against_best", title="against the fastest", unit=PERCENT, digits=1, is_text=True, unit_in_cells=True,
    value=lambda row: row.standing, shown=lambda row: NOT_RANKED if is_wrong(row) else row.standing,
    tables={"comparison": _single}, place=9, csv="against_best_fraction", ends=ENDS,
)  # fmt: skip
WITHIN_FRAMEWORK = replace(AGAINST_BEST, title="within its framework", csv="", tables={"comparison": _several})
AGAINST_FASTEST_FRAMEWORK = replace(
    AGAINST_BEST, key="against_fastest_framework", value=lambda row: row.framework_standing, shown=None,
    tables={"frameworks": always}, csv="against_fastest_framework_fraction",
)  # fmt: skip
EFFICIENCY = Column(
    key="efficiency", title="efficiency", unit=PERCENT, digits=1, unit_in_cells=True,
    value=lambda row: row.efficiency, shown=lambda row: NOT_COMPARABLE if row.learnt_less else row.efficiency,
    basis="claim", tables={"curve": always, "comparison": always, "page": always}, place=10,
    csv="efficiency_fraction", ends=ENDS,
)  # fmt: skip

# ---------------------------------------------------------------- causes of lost efficiency

BREAKDOWN = "loss by cause"


def _cause(
    place: int, key: str, title: str, short: tuple[str, str] | None, color: str, explanation: str, advice: str
) -> Column:
    """A cause, by its field of `Breakdown`."""
    return Column(
        key=key,
        title=title,
        short=short,
        unit=PERCENT,
        digits=1,
        group=BREAKDOWN,
        shows_interval=False,
        brackets_noise=True,
        value=lambda row: getattr(row.breakdown, key, None),
        interval=lambda row: row.breakdown_intervals.get(key),
        basis="claim",
        tables={"curve": _is_told, "comparison": _is_told, "page": _is_told},
        place=place,
        csv=f"loss_{key}_fraction",
        ends=ENDS,
        explanation=explanation,
        advice=advice,
        color=color,
    )


# In the order of bars.
CAUSES = (
    _cause(11, "contention", "contention", ("conten-", "tion"), "#e69f00",
           "contention, devices at work slow each other",
           "devices slow each other without any exchange: look at memory bandwidth, power and shared cores"),
    _cause(12, "straggling", "straggling", ("strag-", "gling"), "#cc79a7",
           "straggling, the slowest rank of a step against the mean",
           "one rank is later than the others: the heat map of plain loops at once shows which"),
    _cause(13, "exchange_cpu", "exchange's CPU", ("exch.'s", "CPU"), "#56b4e9",
           "exchange's CPU, its own work on the cores that compute",
           "the exchange works on cores that compute: fewer and larger messages, or cores of its own"),
    _cause(14, "servers", "servers", ("ser-", "vers"), "#a89b00",
           "servers, parameter servers on these cores",
           "parameter servers take cores from the training: nodes of their own (--server-hosts dedicated)"),
    _cause(15, "waiting", "waiting", None, "#d55e00",
           "waiting, exposed communication and all else that ranks wait for",
           "ranks wait for gradients: a faster network, a larger batch per device, fewer bytes"),
    _cause(16, "data_wait", "data wait", ("data", "wait"), "#7b4fa3",
           "data wait, ranks wait longer for samples than one device alone does",
           "ranks wait for samples: a faster feed"),
    _cause(17, "exposed", "exposed comm.", ("exposed", "comm."), "#d55e00",
           "exposed comm., exchange that compute does not hide",
           "compute does not hide it all: a faster network, a larger batch per device, fewer bytes"),
    _cause(18, "small_batch", "small batch", ("small", "batch"), "#0072b2",
           "small batch, 1/N of the batch costs more than 1/N of the time",
           "a device's part of the batch is too small to keep it busy: a larger global batch"),
    _cause(19, "unexplained", "rest", None, "#8a8f98",
           "rest, also when negative. With the efficiency they add up to 100 %.",
           "measure all kinds of points in more rounds, since no control explains most of it"),
)  # fmt: skip
_OLD_CAUSES = ("contention", "straggling", "exposed", "small_batch", "unexplained")
_NEW_CAUSES = ("exchange_cpu", "servers", "waiting", "data_wait")


def _causes(keys: Iterable[str], **changes: Any) -> tuple[Column, ...]:
    """The causes of these keys. CSV has the means of the oldest apart from their intervals."""
    by_key = {column.key: column for column in CAUSES}
    return tuple(replace(by_key[key], **changes) for key in keys)


# ---------------------------------------------------------------- columns of CSV alone


def _csv(name: str, value: Callable[[Row], Value], **more: Any) -> Column:
    return Column(key=f"csv_{name}", value=value, csv=name, **more)


def _fields(*names: str) -> tuple[Column, ...]:
    """Fields of a row, its work or its hardware, under their own names."""
    return tuple(_csv(name, lambda row, name=name: _field(row, name)) for name in names)  # type: ignore[misc]


def _of_emulation(name: str) -> Column:
    return _csv(name, lambda row: _field(row, name) if row.hardware.profile else None)


def _of_devices(name: str) -> Column:
    return _csv(name, lambda row: getattr(row.device_use, name, None))


def _of_machine(name: str) -> Column:
    return _csv(
        f"machine_{name}",
        lambda row: getattr(row.machine_energy, name, None),
        csv_if=lambda row: row.machine_energy is not None,
    )


def _counts_energy(row: Row) -> bool:
    return bool(row.device_use and row.device_use.j_per_sample)


# In the order of CSV: new columns are appended, never moved. Tables order them by `place`.
COLUMNS: tuple[Column, ...] = (
    NAME, CURVE, MARKED,
    *_fields(
        "strategy", "interconnect", "model", "data", "device", "precision", "memory_format", "compile", "placement"
    ),
    _csv("options", lambda row: " ".join(f"{key}={value}" for key, value in sorted(row.options.items()))),
    *_fields("batch_rule"), BATCH_SIZE, *_fields("global_batch_size"), WORLD_SIZE, NODES,
    *_fields("rounds", "rounds_tried"),
    # For one release more: the name that samples_per_s had while all samples were images.
    _csv("images_per_s", _images_per_s, ends=ENDS),
    SPEEDUP, EFFICIENCY,
    _csv("strategy_efficiency_fraction", lambda row: row.strategy_efficiency, ends=ENDS),
    _csv("intra_node_fraction", lambda row: row.intra_node),
    _csv("inter_node_fraction", lambda row: row.inter_node),
    *_causes(_OLD_CAUSES, ends=("",)),
    _csv("first_training_loss", lambda row: row.first_loss),
    _csv("last_training_loss", lambda row: row.last_loss),
    _csv("flags", lambda row: " ".join(row.flags)),
    _csv("failed_cause", lambda row: row.failed.cause if row.failed else None),
    _csv("failed_message", lambda row: row.failed.message if row.failed else None),
    _csv("footnotes", lambda row: " | ".join(row.footnotes)),
    *_fields("synchronous", "staleness", "servers", "server_hosts", "server_cpu_percent"),
    _csv("training_loss_at", lambda row: row.loss_at),
    _csv("training_loss_at_samples", lambda row: row.loss_at_samples),
    _csv("standing", lambda row: row.standing.verdict if row.standing else ""),
    AGAINST_BEST, WITHIN_FRAMEWORK,
    *_causes(_OLD_CAUSES, ends=("_low", "_high"), tables={}),
    _csv("network_verdict", lambda row: row.receipt.verdict if row.receipt else None),
    _csv("network_share_fraction", lambda row: row.receipt.share if row.receipt else None),
    _csv("network_bytes_over_expected", lambda row: _over_expected(row, 1)),
    *map(_of_emulation, ("profile", "shrink", "dilate", "machine_cpu_percent")),
    _csv("busiest_path", lambda row: str(row.paths[0]) if row.paths else None),
    _csv("busiest_path_busy_fraction", lambda row: row.paths[0].busy_share if row.paths else None),
    _csv("busiest_path_bits_per_s", lambda row: row.paths[0].bits_per_s if row.paths else None),
    RATE, MEAN_RATE,
    *_fields("unit", "framework"),
    _csv("framework_standing", lambda row: row.framework_standing.verdict if row.framework_standing else ""),
    AGAINST_FASTEST_FRAMEWORK,
    *_fields("learnt_less"),
    *_causes(_NEW_CAUSES),
    _csv("efficiency_df", lambda row: row.efficiency.df if row.efficiency else None),
    _csv("network_bytes_over_most_expected", lambda row: _over_expected(row, 0)),
    *(_of_devices(name) for name in DeviceUse.__struct_fields__ if name != "energy_is_integral"),
    _csv("nccl", lambda row: nccl_text(row.nccl) if row.nccl else None),
    _csv("units_per_sample", lambda row: row.workload.units_per_sample),
    TFLOPS, MFU,
    _csv("pass", lambda row: row.workload.pass_),
    *_fields(
        "feed", "feed_workers", "drop_caches", "fed_by", "read_from", "waited_s",
        "image_size", "sequence_length", "optimizer",
    ),
    # Of files with a row that was counted.
    *(replace(_of_devices(name), csv_if=_counts_energy) for name in ("j_per_sample", "energy_is_integral")),
    *map(_of_machine, MachineUse.__struct_fields__),
)  # fmt: skip


# ---------------------------------------------------------------- what formats ask


def columns(table: Table, rows: Sequence[Row]) -> tuple[Column, ...]:
    """The columns of a table with these rows, in its order; none without rows."""
    if not rows:
        return ()
    found = [column for column in COLUMNS if table in column.tables and column.tables[table](column, rows)]
    return tuple(column.of_rows(rows) for column in sorted(found, key=lambda column: column.place))


def tabulated(basis: Basis) -> Iterable[Column]:
    """The columns of any table that a row of this basis has a cell for."""
    bases = BASES[: BASES.index(basis) + 1]
    return (one for one in COLUMNS if one.tables and one.value is not None and one.basis in bases)


def causes(rows: Sequence[Row]) -> tuple[Column, ...]:
    """The causes that any of these rows tells."""
    return tuple(column for column in CAUSES if _is_told(column, rows))


def explained() -> tuple[Column, ...]:
    """The columns that How to read explains one by one."""
    return tuple(column for column in COLUMNS if column.explanation and column.group != BREAKDOWN)


def added() -> tuple[Column, ...]:
    """The columns that JSON has beside the fields of a row."""
    return tuple(column for column in COLUMNS if column.json is not None)
