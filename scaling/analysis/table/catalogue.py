"""The catalogue of the report: every column, mark and explanation is declared here, once.

All formats are made from these entries. `rows.py` documents their fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from scaling.analysis.measured.cell import Cell, superlinear
from scaling.analysis.measured.device_use import DeviceUse, MachineUse
from scaling.analysis.measured.traffic import Verdict, nccl_text
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.rows import (
    BASES,
    ENDS,
    PERCENT,
    Basis,
    Column,
    Explanation,
    Found,
    Mark,
    Report,
    Row,
    Table,
    Value,
    always,
    four_digits,
    known,
    tera_digits,
)  # fmt: skip

# ---------------------------------------------------------------- marks


def _proves(verdict: Verdict) -> Callable[[Found], bool]:
    return lambda found: found.cell.receipt is not None and found.cell.receipt.verdict == verdict


# Half an interval, as a fraction of 1, above which a row is NOISY, by the loss that it claims.
NOISY_FROM, NOISY_UP_TO = 0.05, 0.10


def noise(efficiency: Estimate | None, rate: Estimate | None) -> float:
    """Return half an interval over that of the widest quiet row: the larger one of efficiency and rate. Above 1
    the row is NOISY; 0 without intervals."""
    widest = min(max(abs(1 - efficiency.mean), NOISY_FROM), NOISY_UP_TO) if efficiency else 0.0
    found = ((efficiency, widest), (rate, NOISY_UP_TO * rate.mean if rate else 0.0))
    return max((one.half_width / of for one, of in found if one and one.half_width is not None), default=0.0)


# A row names its marks in this order.
MARKS: tuple[Mark, ...] = (
    Mark(name="FAILED", of_row=lambda found: found.cell.failure is not None, about="these have no result",
         serious=5, drawn=1),
    Mark(name="EMULATED",
         meaning="a device sleeps as long as the published one computes; gradients, exchange and network are "
                 "real. Sizes are divided, times multiplied and links slowed, as said above; all figures are "
                 "scaled back. FITTED: images/s at this batch are not published, they follow from other "
                 "batches. The emulator's own error: how much slower this machine moves the last bucket than "
                 "the links would; compute does not hide that bucket.",
         of_cell=lambda cell: any(record.point.hardware.device == "emulated" for record in cell.records),
         harmless_in=("solo", "each", "together", "comm", "held", "feed"), serious=6, drawn=6, hollow=True,
         line="--", across=True, is_complaint=False),
    # The control run `comm` feeds nothing.
    Mark(name="AUDIT", of_cell=lambda cell: bool(cell.audits or cell.less_work), harmless_in=("comm",),
         claimless="its own counts disagree", is_wrong=True, serious=3, drawn=5, line="--",
         about="rate, samples and clocks of these rows disagree"),
    Mark(name="OVERSUBSCRIBED", of_cell=lambda cell: any(record.oversubscribed for record in cell.records),
         claimless="ranks share cores or a GPU", serious=4, drawn=4, hollow=True, line=None,
         about="ranks shared cores or a GPU: neither speedup nor efficiency is claimed"),
    Mark(name="NOISY", of_row=lambda found: noise(found.efficiency, found.rate) > 1,
         meaning="half the 95 % interval is larger than the loss of efficiency that the row claims (a loss "
                 "counts as at least 5 and at most 10 percentage points), or than 10 % of the rate."),
    Mark(name="ONE-ROUND",
         of_row=lambda found: 1 in (len(found.cell.times), found.efficiency.n if found.efficiency else 0),
         meaning="a single round joins the figure and its control runs: no interval, and no comparison."),
    Mark(name="SUPERLINEAR", of_row=lambda found: superlinear(found.efficiency)),
    Mark(name="UNSETTLED", of_cell=lambda cell: any(not record.settled for record in cell.records)),
    Mark(name="THROTTLED", of_cell=lambda cell: bool(cell.throttle_reasons),
         of_row=lambda found: found.clocks is not None and found.clocks.differ),
    Mark(name="DRIFTING",
         of_row=lambda found: bool(found.drifts) or (found.later is not None and found.later.is_told)),
    Mark(name="ASYNC",
         meaning="ranks do not wait for each other. {rates} is the sum of the ranks' rates. Staleness: steps of "
                 "other ranks between a step's pull of the parameters and its push. Straggling has no meaning. "
                 "Compare these rows by the loss after equal samples. If it is above that of all synchronous "
                 "rows, efficiency is not comparable and no speedup is claimed.",
         of_row=lambda found: not found.cell.synchronous, drawn=8, line=":", is_complaint=False),
    Mark(name="UNSENT", of_row=_proves("UNSENT"), claimless="the gradients did not cross the network",
         is_wrong=True, serious=1, drawn=2, line="--",
         about="the counters saw less than half of the bytes that these rows must send"),
    Mark(name="MISLABELLED", of_row=_proves("MISLABELLED"), unranked="its bytes took another network",
         is_wrong=True, serious=2, drawn=3, line="--",
         about="the bytes took another network than these rows requested"),
    Mark(name="UNVERIFIED", of_row=_proves("UNVERIFIED")),
    Mark(name="VERIFIED",
         meaning="the kernel's counters on all nodes saw at least 95 % of the bytes on the requested network "
                 "during windows. MISLABELLED: the bytes went elsewhere. UNSENT: the counters saw less than "
                 "half of them. UNVERIFIED: not known.",
         of_row=_proves("VERIFIED"), is_complaint=False),
    # Rows that were not measured here.
    Mark(name="PREDICTED",
         meaning="medians and 80 % intervals of efficiency, predicted from smaller world sizes and written into "
                 "the run's file before these points were measured; never ranked. Error: predicted minus "
                 "measured. Inside: the measured mean is in the interval; 8 of 10 should be.",
         about="these rows are not measured", serious=7, drawn=7, hollow=True, line="--",
         across=True),
    Mark(name="IMPORTED", is_complaint=False),
)  # fmt: skip


def mark_named(name: str) -> Mark:
    """Return the mark of this name; an unknown name gives a mark without consequences."""
    return next((mark for mark in MARKS if mark.name == name), Mark(name=name))


def marks_of(found: Found) -> tuple[str, ...]:
    """Return the marks of a row, in the order of `MARKS`."""
    own = marks_of_control(found.cell)
    return tuple(mark.name for mark in MARKS if mark.name in own or (mark.of_row and mark.of_row(found)))


def marks_of_control(cell: Cell) -> tuple[str, ...]:
    return tuple(mark.name for mark in MARKS if mark.of_cell and mark.of_cell(cell))


def serious(flags: Iterable[str]) -> tuple[str, ...]:
    """Return the marks that banners and figures name, worst first."""
    known = {mark.name for mark in MARKS if mark.serious}.intersection(flags)
    return tuple(sorted(known, key=lambda name: mark_named(name).serious))


def drawn(flags: Iterable[str]) -> str:
    """Return the worst mark that changes how a row is drawn; "" if there is none."""
    known = [mark for name in flags if (mark := mark_named(name)).drawn]
    return min(known, key=lambda mark: mark.drawn).name if known else ""


def claimless_marks() -> dict[str, str]:
    """Return the marks of rows that claim nothing, with the reason, worst first."""
    ordered = sorted(MARKS, key=lambda mark: mark.serious)
    return {mark.name: mark.claimless for mark in ordered if mark.claimless}


def unranked_marks() -> dict[str, str]:
    """Return the marks of rows that are neither ranked nor priced, with the reason. MISLABELLED rows are among
    them, but they claim an efficiency."""
    return {**claimless_marks(), **{mark.name: mark.unranked for mark in MARKS if mark.unranked}}


def claims(cell: Cell) -> bool:
    """Check that no mark takes all claims from a cell."""
    return not claimless_marks().keys() & set(marks_of(Found(cell)))


def competes(cell: Cell) -> bool:
    """Check that a cell has a result and no unranked mark."""
    return bool(cell.times) and not unranked_marks().keys() & set(marks_of(Found(cell)))


def claimless(row: Row) -> str:
    """Return the mark that takes all claims from a row; "" if there is none."""
    return next((mark for mark in claimless_marks() if mark in row.flags), "")


def unclaimed(row: Row) -> str:
    """Return why a row claims no efficiency; "" if it does. Headline, verdict and gates ask it."""
    if row.learnt_less:
        return "its samples teach less than those of synchronous ranks (ASYNC)"
    if mark := claimless(row):
        return f"{mark_named(mark).claimless} ({mark})"
    if "SUPERLINEAR" in row.flags and row.efficiency:  # its rate is right
        return f"{row.efficiency.mean:.0%} means that its plain loop is too slow a base (SUPERLINEAR)"
    if row.speedup is None or row.efficiency is None:
        if row.is_plain:
            return "it is the plain loop"
        no_copy = "its copies on one device failed, or have other batches"
        return no_copy if row.workload.script else "its plain loop is missing"
    return ""


def is_wrong(row: Row) -> bool:
    """Check whether a row is not what its name says, or its counts disagree."""
    return any(mark_named(name).is_wrong for name in row.flags)


# ---------------------------------------------------------------- when a table has a column


def _is_told(column: Column, rows: Sequence[Row]) -> bool:
    found = [row for row in rows if column.key != "small_batch" or row.workload.is_strong]
    return known(column, found)


def _several(_: Column, rows: Sequence[Row]) -> bool:
    return len({row.framework for row in rows}) > 1


# ---------------------------------------------------------------- values


# Printed for the efficiency of asynchronous rows with a higher loss after equal samples.
NOT_COMPARABLE = "not comparable"
# Printed for the standing of rows that are not what their name says.
NOT_RANKED = "not ranked"


def _field(row: Row, name: str) -> Any:
    owner = next(one for one in (row, row.workload, row.hardware) if name in one.__struct_fields__)
    return getattr(owner, name)


def _over_expected(row: Row, at: int) -> float | None:
    """Return the sent bytes over the most (0) or the least (1) that must be sent."""
    ratio = row.receipt.over_expected if row.receipt else None
    return ratio and ratio[at]


# ---------------------------------------------------------------- columns of tables

NAME = Column(
    key="name", title="strategy", short=("", ""), is_text=True,
    tables={"comparison": always, "frameworks": always}, place=0,
)  # fmt: skip
CURVE = Column(key="curve", title="strategy", is_text=True, tables={"page": always}, place=0)
MARKED = Column(key="marks", title="marks", is_text=True, tables={"page": always}, place=2)
WORLD_SIZE = Column(
    key="world_size", title="N", digits=0, value=lambda row: row.world_size, basis="plan",
    tables={"curve": always, "page": always}, place=1, csv="world_size",
)  # fmt: skip
NODES = Column(
    key="nodes", title="nodes", digits=0, value=lambda row: row.nodes, basis="plan",
    tables=dict.fromkeys(("curve", "page"), lambda _, rows: any(row.nodes > 1 for row in rows)), place=3,
    csv="nodes",
)  # fmt: skip
BATCH_SIZE = Column(
    key="batch_size", title="batch per device", short=("batch/", "device"), digits=0,
    value=lambda row: row.workload.batch_size, basis="plan", place=4, csv="batch_size",
    tables={"curve": lambda _, rows: rows[0].workload.is_strong, "page": always},
)  # fmt: skip
RATE = Column(
    key="samples_per_s", title="{unit}/s", unit="{unit}/s", digits=four_digits,
    value=lambda row: row.samples_per_s, shown=lambda row: row.units_per_s, csv="samples_per_s", ends=ENDS,
    tables={"curve": always, "page": always}, place=5,
)  # fmt: skip
MEAN_RATE = replace(RATE, shows_interval=False, csv="", tables={"comparison": always, "frameworks": always})
TFLOPS = Column(
    key="tflops", title="TFLOP/s per device", short=("TFLOP/s", "device"), digits=tera_digits,
    shows_interval=False, value=lambda row: row.tflops, tables={"curve": known}, place=6,
    csv="tflops_per_device",
)  # fmt: skip
# No peak is published for CPUs.
MFU = Column(
    key="mfu", title="MFU", unit=PERCENT, digits=1, shows_interval=False, value=lambda row: row.mfu,
    tables={"curve": lambda _, rows: known(TFLOPS, rows) and rows[0].hardware.device != "cpu"}, place=7,
    csv="mfu",
)  # fmt: skip
SPEEDUP = Column(
    key="speedup", title="speedup", shows_interval=False, value=lambda row: row.speedup,
    shown=lambda row: None if row.learnt_less else row.speedup, tables={"curve": always, "page": always},
    place=8, csv="speedup", ends=ENDS,
)  # fmt: skip
AGAINST_BEST = Column(
    key="against_best", title="against the fastest", unit=PERCENT, digits=1, is_text=True, unit_in_cells=True,
    value=lambda row: row.standing, shown=lambda row: NOT_RANKED if is_wrong(row) else row.standing,
    tables={"comparison": lambda *of: not _several(*of)}, place=9, csv="against_best_fraction", ends=ENDS,
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
    place: int, key: str, title: str, short: tuple[str, str] | None, color: str, explanation: str, phrase: str = ""
) -> Column:
    return Column(
        key=key, title=title, short=short, unit=PERCENT, digits=1, group=BREAKDOWN, shows_interval=False,
        brackets_noise=True, value=lambda row: getattr(row.breakdown, key, None),
        interval=lambda row: row.breakdown_intervals.get(key), basis="claim",
        tables={"curve": _is_told, "comparison": _is_told, "page": _is_told}, place=place,
        csv=f"loss_{key}_fraction", ends=ENDS, explanation=explanation, phrase=phrase or title, color=color,
    )  # fmt: skip


# Bars show them in this order. report/answer.py has what to try against each.
CAUSES = (
    _cause(11, "contention", "contention", ("conten-", "tion"), "#e69f00",
           "contention, devices slow each other while all compute"),
    _cause(12, "straggling", "straggling", ("strag-", "gling"), "#cc79a7",
           "straggling, the slowest rank of a step against the mean"),
    _cause(13, "exchange_cpu", "exchange's CPU", ("exch.'s", "CPU"), "#56b4e9",
           "exchange's CPU, its own work on the cores that compute", "CPU time of the exchange"),
    _cause(14, "servers", "servers", ("ser-", "vers"), "#a89b00",
           "servers, parameter servers on these cores", "parameter servers on these cores"),
    _cause(15, "waiting", "waiting", None, "#d55e00",
           "waiting, exposed communication and other waits of ranks"),
    _cause(16, "data_wait", "data wait", ("data", "wait"), "#7b4fa3",
           "data wait, ranks wait longer for samples than one device alone does", "waiting for data"),
    _cause(17, "exposed", "exposed comm.", ("exposed", "comm."), "#d55e00",
           "exposed comm., the exchange that compute does not hide", "exposed communication"),
    _cause(18, "small_batch", "small batch", ("small", "batch"), "#0072b2",
           "small batch, 1/N of the batch costs more than 1/N of the time"),
    _cause(19, "unexplained", "rest", None, "#8a8f98",
           "rest, what is left, possibly negative. Causes and efficiency add up to 100 %.", "no known cause"),
)  # fmt: skip
_OLD_CAUSES = ("contention", "straggling", "exposed", "small_batch", "unexplained")
_NEW_CAUSES = ("exchange_cpu", "servers", "waiting", "data_wait")


def _causes(keys: Iterable[str], **changes: Any) -> tuple[Column, ...]:
    by_key = {column.key: column for column in CAUSES}
    return tuple(replace(by_key[key], **changes) for key in keys)


# ---------------------------------------------------------------- columns of CSV alone


def _csv(name: str, value: Callable[[Row], Value], **more: Any) -> Column:
    return Column(key=f"csv_{name}", value=value, csv=name, **more)


def _fields(*names: str) -> tuple[Column, ...]:
    return tuple(_csv(name, lambda row, name=name: _field(row, name)) for name in names)  # type: ignore[misc]


def _of_devices(name: str) -> Column:
    return _csv(name, lambda row: getattr(row.device_use, name, None))


# The order is that of CSV: append new columns, never move one. Tables are ordered by `place`.
COLUMNS: tuple[Column, ...] = (
    NAME, CURVE, MARKED,
    *_fields(
        "strategy", "interconnect", "model", "data", "device", "precision", "memory_format", "compile", "placement"
    ),
    _csv("options", lambda row: " ".join(f"{key}={value}" for key, value in sorted(row.options.items()))),
    *_fields("batch_rule"), BATCH_SIZE, *_fields("global_batch_size"), WORLD_SIZE, NODES,
    *_fields("rounds", "rounds_tried"),
    # Older name of samples_per_s, kept for one release.
    _csv("images_per_s", lambda row: row.samples_per_s if row.workload.unit == "images" else None, ends=ENDS),
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
    *(
        _csv(name, lambda row, name=name: _field(row, name) if row.hardware.profile else None)  # type: ignore[misc]
        for name in ("profile", "shrink", "dilate", "machine_cpu_percent")
    ),
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
    # Only in files with a row whose energy was measured.
    *(
        replace(_of_devices(name), csv_if=lambda row: bool(row.device_use and row.device_use.j_per_sample))
        for name in ("j_per_sample", "energy_is_integral")
    ),
    *(
        _csv(
            f"machine_{name}", lambda row, name=name: getattr(row.machine_energy, name, None),  # type: ignore[misc]
            csv_if=lambda row: row.machine_energy is not None,
        )
        for name in MachineUse.__struct_fields__
    ),
)  # fmt: skip


# ---------------------------------------------------------------- queries of formats


def columns(table: Table, rows: Sequence[Row]) -> tuple[Column, ...]:
    """Return the columns of a table of these rows, ordered by `place`; none without rows."""
    if not rows:
        return ()
    found = [column for column in COLUMNS if table in column.tables and column.tables[table](column, rows)]
    return tuple(column.of_rows(rows) for column in sorted(found, key=lambda column: column.place))


def tabulated(basis: Basis) -> Iterable[Column]:
    """Return the columns of any table in which a row of this basis has a cell."""
    bases = BASES[: BASES.index(basis) + 1]
    return (one for one in COLUMNS if one.tables and one.value is not None and one.basis in bases)


def causes(rows: Sequence[Row]) -> tuple[Column, ...]:
    return tuple(column for column in CAUSES if _is_told(column, rows))


# ---------------------------------------------------------------- how to read


# How to read has this order. Explanations of columns and marks follow.
EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(label="efficiency", applies=lambda report: any(not row.is_plain for row in report.rows),
        text="{efficiency}"),
    Explanation(label="loss", applies=lambda report: any(row.breakdown is not None for row in report.rows),
        text="{causes}"),
    Explanation(label="soak", applies=lambda report: any(row.lasting for row in report.rows),
        text="efficiency after several more seconds of training in the first round, against a plain loop that "
             "trained on as long. It shows whether the efficiency of the first seconds lasts. ± covers the end "
             "of that training and the rounds."),
    Explanation(label="slower cores", applies=lambda report: report.has_slower_cores,
        text="the probe, a fixed piece of work on the ranks' own cores, took longer than usual, and no program "
             "was seen there. Possible reasons: heat, the clock, another hyperthread or virtual machine. The "
             "windows just after it were repeated. The windows just before it were repeated only if another "
             "program used the cores."),
    Explanation(label="data wait", applies=lambda report: any(row.data_wait for row in report.rows),
        text="time of plain loops beyond the same loops on one batch that stays on the device, at most the time "
             "of the feeds alone. The wait of one device alone is in the baseline: only what exceeds it is a "
             "cause of loss. Files come from the page cache, warm or cold, unless --drop-caches drops them "
             "before each point."),
    Explanation(label="best, leading", applies=lambda report: report.compares,
        text="{rates} against {rivals}, over common rounds; ± is half the 95 % interval, which holds for all "
             "differences of this report at once. best: significantly faster than every rival; leading: the "
             "fastest as measured; tied: the interval is within ± 2 %; a difference without a word is "
             "not separated from zero by this run.{unranked}"),
    Explanation(label="PREDICTED", applies=lambda report: report.predicts, text=mark_named("PREDICTED").meaning),
    Explanation(label="over time", applies=lambda report: report.has_times,
        text="percentiles and the longest of all steps, also of rounds that are not kept in full, from bins of "
             "1 %. A step of a synchronous exchange takes as long as on its slowest rank. Repeated windows do not "
             "count. The rate's change is from start to end of the run, by a straight line through means of "
             "consecutive rounds; DRIFTING if it is significant at 1 % for all lines together and above 0.5 %."),
    Explanation(label="minibatch",
        applies=lambda report: any(one.efficiency for one in report.analysis.minibatches),
        text="efficiency is a batch's rate over the fastest rate of its sweep; x the smaller's time is its time "
             "over that of the next smaller batch. Above 2 for twice the batch, two smaller batches are faster. "
             "Intervals hold for all batches of this report at once."),
    Explanation(label="passes", applies=lambda report: any(not row.workload.trains for row in report.rows),
        text="time of one minibatch in training mode, which keeps what gradients need. Forward and backward "
             "pass is both: its difference from the forward pass is the backward pass alone. The rest of a "
             "whole step is the update."),
    Explanation(label="OOM", applies=lambda report: report.has_oom,
        text="out of memory: the batch does not fit, as the framework or the kernel reported (see the note)."),
    Explanation(label="top-1", applies=lambda report: bool(report.analysis.trainings),
        text="the share of held-out samples whose highest logit is right, after batch norm's statistics were "
             "averaged over ranks. Each sample is counted once, on one rank. It is the mean over the seeds that "
             "trained for so many epochs; a seed that reaches the target ends. An epoch has every sample once, "
             "rounded up to whole batches. Seconds are of epochs alone, by the longest rank; the first includes "
             "the framework's one-time work. Evaluation is timed apart. Differences of a few tenths of a "
             "percentage point are few samples: they show no order."),
    Explanation(label="learns less",
        applies=lambda report: any(one.less_than_samples for one in report.analysis.trainings),
        text="every seed ended below every seed of that smaller batch of the same training, and the means "
             "differ by more than 3 standard errors of the held-out samples. At this rate the batch is past the "
             "largest useful one, or the rate is too low for it."),
    Explanation(label="ASYNC accuracy",
        applies=lambda report: any(not one.synchronous for one in report.analysis.trainings),
        text="ranks do not wait for each other. Each rank's accuracy is of its own last parameters and not "
             "comparable with synchronous rows. The batch of an update is one rank's."),
    Explanation(label="x the CPU", applies=lambda report: bool(report.analysis.over_cpu),
        text="{rates} over that of the same framework's plain loop on all cores of the first host, in fp32 and "
             "at the batch of one GPU; ± is half the 95 % interval over rounds."),
    Explanation(label="rounds detect", applies=lambda report: bool(report.analysis.resolutions),
        text="the smallest true difference between two rivals that is detected in 80 of 100 runs with this "
             "noise, of the contest's median pair, and by more rounds."),
    Explanation(label="ASYNC", applies=lambda report: any(not row.synchronous for row in report.rows),
        text=mark_named("ASYNC").meaning),
    Explanation(label="EMULATED", applies=lambda report: any(row.hardware.profile for row in report.rows),
        text=mark_named("EMULATED").meaning),
    Explanation(label="VERIFIED", applies=lambda report: any(row.receipt for row in report.rows),
        text=mark_named("VERIFIED").meaning),
    Explanation(label="NCCL", applies=lambda report: any(row.nccl and nccl_text(row.nccl) for row in report.rows),
        text="NCCL's choices by its own log: over networks, inside nodes, and the algorithm and protocol of "
             "most bytes of gradients in the first round of comm. With GPUDirect, cards access GPU memory "
             "directly; without it, bytes pass through host memory."),
    Explanation(label="device", applies=lambda report: any(row.device_use for row in report.rows),
        text="means over GPUs, rounds and readings during windows: the clock of the multiprocessors (and its "
             "highest reading), power, time with any kernel running; the most memory in use on one GPU, by points "
             "that wait too; energy of the GPUs alone, by their counters. After ~ energy is from readings of "
             "power, which some GPUs average over a part of the time."),
    Explanation(label="CPU and DRAM", applies=lambda report: any(row.machine_energy for row in report.rows),
        text="power of all processor packages and memory of the row's machines during windows, by the kernel's "
             "counters (RAPL). It is of whole machines, however many ranks they have. It is missing if ranks "
             "share cores or a machine, or if other programs ran. GPUs, fans and power supplies are not "
             "included."),
    Explanation(label="J, W: -",
        applies=lambda report: any(row.machine_energy and row.machine_energy.unreadable for row in report.rows),
        text="{unreadable}: cannot be read; since Linux 5.10 only root may. On every node, as root: chgrp GROUP "
             "and chmod g+r these files. A udev rule keeps that: SUBSYSTEM==\"powercap\", ACTION==\"add\", "
             "RUN+=\"/bin/sh -c 'chgrp GROUP /sys%p/energy_uj; chmod g+r /sys%p/energy_uj'\""),
    Explanation(label="busiest path", applies=lambda report: any(row.paths for row in report.rows),
        text="from node to node: the share of the time with bytes to send, and the rate in that time, by the "
             "kernel's counters of each TCP connection. Near 100 % the network is the limit."),
    Explanation(label="traced", applies=lambda report: any(row.traced for row in report.rows),
        text="steps with profilers on, after the measured windows; not counted above. Open the files, in the "
             "run's folder on each rank's host, in https://ui.perfetto.dev."),
    Explanation(label="traced, on the GPU",
        applies=lambda report: any(row.traced and row.traced.gpu for row in report.rows),
        text="a traced step, mean over ranks. Computing, idle: as without the exchange. Slowed: how much longer "
             "the same kernels take during it. Other kernels: such as the wrapper's copies. Transfer: each "
             "collective's shortest run of all ranks, as far as compute does not hide it. Waiting: the rest of "
             "the collectives. Host: additional idle time. If profiling changed the step by more than 3 %, "
             "values are shares of the step."),
)  # fmt: skip


def explanations(report: Report) -> Iterator[tuple[str, str]]:
    """Return labels and texts of How to read for this report."""
    yield from ((one.label, one.text) for one in EXPLANATIONS if one.applies(report))
    for column in COLUMNS:
        if column.explanation and column.group != BREAKDOWN and known(column, report.rows):
            yield column.title, column.explanation
    labels = {one.label for one in EXPLANATIONS}
    for mark in MARKS:
        if mark.meaning and mark.name not in labels and any(mark.name in row.flags for row in report.rows):
            yield mark.name, mark.meaning
