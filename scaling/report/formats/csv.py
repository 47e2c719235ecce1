"""The rows as comma-separated values: one line per exchange and world size, raw numbers, stable names.

They are those of the analysis and not of the document, which is what people read: fractions in percent, the first
of many footnotes, and no cell for much that programs select by, as are the conditions and options of a row.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from io import StringIO

from scaling.analysis.measured.breakdown import Breakdown
from scaling.analysis.measured.device_use import DeviceUse, MachineUse
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.analyse import rows
from scaling.analysis.table.cost import Bill, Pricing, bill
from scaling.analysis.table.imported import Imported, cells
from scaling.analysis.table.predictions import of_row
from scaling.analysis.table.rows import Row, Standing
from scaling.records.run import Header, PointRecord, Prediction
from scaling.report import devices
from scaling.text import one_line, rounded

Value = str | int | float | None
# What spreadsheets read as the beginning of a formula. Numbers are no texts here and keep their sign.
_FORMULA = ("=", "+", "-", "@")


def render(records: Sequence[PointRecord], header: Header | None = None, pricing: Pricing | None = None) -> str:
    """Return a header line and a line per row. Empty: not measured or not claimed. Fractions are of 1. With
    `pricing`, of a run with this header, there are columns for what a row costs."""
    return of_rows(rows(records), header, pricing)


def of_rows(
    found: Iterable[Row],
    header: Header | None = None,
    pricing: Pricing | None = None,
    predictions: Sequence[Prediction] = (),
) -> str:
    """The same of rows that were analysed already; with `predictions`, columns for what was said of them first."""
    billed = [(row, bill(row, header, pricing) if header and pricing else "") for row in found]
    values = (
        rounded(_values(row) | (_cost(of) if pricing else {}) | (_predicted(row, predictions)))
        for row, of in billed
    )
    lines = [{name: defused(value) for name, value in one.items()} for one in values]
    lines += [
        {name: defused(value) for name, value in rounded(_imported(cell)).items()}
        for cell in cells(header.imported if header else ())
    ]
    columns = (*COLUMNS, *dict.fromkeys(name for line in lines for name in line if name not in COLUMNS))
    out = StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def defused(value: Value) -> Value:
    """A text that a spreadsheet would take for a formula, behind an apostrophe
    (owasp.org/www-community/attacks/CSV_Injection): messages and names come from whatever ran."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _values(row: Row) -> dict[str, Value]:
    breakdown = row.breakdown
    return {
        **{name: _field(row, name) for name in (*_WHO, *_WHERE)},
        "options": " ".join(f"{key}={value}" for key, value in sorted(row.options.items())),
        **_estimates(row),
        "intra_node_fraction": row.intra_node,
        "inter_node_fraction": row.inter_node,
        **{f"loss_{cause}_fraction": getattr(breakdown, cause, None) for cause in (*_CAUSES, *_LATER_CAUSES)},
        "first_training_loss": row.first_loss,
        "last_training_loss": row.last_loss,
        "flags": " ".join(row.flags),
        "failed_cause": row.failed.cause if row.failed else None,
        "failed_message": row.failed.message if row.failed else None,
        "footnotes": " | ".join(row.footnotes),
        **{name: getattr(row, name) for name in _EXCHANGE},
        "training_loss_at": row.loss_at,
        "training_loss_at_samples": row.loss_at_samples,
        **_standing(row.standing, "standing", "against_best_fraction"),
        **{name: value for cause in (*_CAUSES, *_LATER_CAUSES) for name, value in _cause(row, cause).items()},
        **dict(zip((*_RECEIPT, _MOST), _receipt(row), strict=True)),
        **{name: _field(row, name) if row.hardware.profile else None for name in _EMULATION},
        **dict(zip(_PATH, _busiest(row), strict=True)),
        **_estimate("samples_per_s", row.samples_per_s),
        "unit": row.workload.unit,
        "framework": row.framework,
        **_standing(row.framework_standing, *_FRAMEWORKS),
        "learnt_less": row.learnt_less,
        "efficiency_df": row.efficiency.df if row.efficiency else None,
        **{name: getattr(row.device_use, name, None) for name in _DEVICE},
        "nccl": devices.nccl(row.nccl) if row.nccl else None,
        "units_per_sample": row.workload.units_per_sample,
        "tflops_per_device": row.tflops,
        "mfu": row.mfu,
        "pass": row.workload.pass_,
        **{name: _field(row, name) for name in (*_FEED, *_SAMPLE)},
        **_energy(row),
    }


def _imported(cell: Imported) -> dict[str, Value]:
    """A row that nobody measured here; its strategy says whose it is. Each of its rounds is a log."""
    rate = {**_estimate("samples_per_s", cell.rate), "unit": cell.unit}
    return {
        "strategy": f"imported:{cell.tool}",
        "model": cell.model or None,
        "precision": cell.precision or None,
        "batch_size": cell.batch_size or None,
        "global_batch_size": cell.batch_size * cell.world_size or None,
        "world_size": cell.world_size,
        "rounds": len(cell.logs),
        **(_estimate("images_per_s", cell.rate) if cell.unit == "images" else {}),
        **rate,
        "speedup": cell.speedup,
        "efficiency_fraction": cell.efficiency,
        "flags": " ".join(cell.flags),
        "failed_message": cell.failed or None,
        "footnotes": " | ".join(cell.notes),
        "synchronous": cell.synchronous,
    }


def _energy(row: Row) -> dict[str, Value]:
    """Columns that are there where any row was counted."""
    found: dict[str, Value] = {}
    if row.device_use and row.device_use.j_per_sample:
        found |= {name: getattr(row.device_use, name) for name in ("j_per_sample", "energy_is_integral")}
    if row.machine_energy:
        found |= {f"machine_{name}": getattr(row.machine_energy, name) for name in MachineUse.__struct_fields__}
    return found


def _cost(of: Bill | str) -> dict[str, Value]:
    """`cost_per_million_on_demand` and the like."""
    if isinstance(of, str):
        return {"cost_unknown": of}
    found: dict[str, Value] = {"cost_currency": of.currency, "cost_price": of.price, "cost_machines": of.machines}
    found |= {"cost_devices_paid": of.devices_paid, "cost_base": of.base}
    for what, by in (("million", of.per_million), ("epoch", of.per_epoch)):
        for how, estimate in by.items():
            found |= _estimate(f"cost_per_{what}_{how}", estimate)
    return {**found, **_estimate("cost_relative", of.relative), "cost_unknown": None}


def _predicted(row: Row, predictions: Sequence[Prediction]) -> dict[str, Value]:
    """What was predicted of a row before it was measured: `predicted_efficiency_fraction` and the like."""
    one = of_row(row, predictions)
    if one is None or one.refused:
        return {}
    return {
        "predicted_mark": one.kind,
        "predicted_efficiency_fraction": one.predicted_efficiency,
        "predicted_efficiency_fraction_low": one.predicted_efficiency_low,
        "predicted_efficiency_fraction_high": one.predicted_efficiency_high,
        "predicted_samples_per_s": one.predicted_samples_per_s,
        "predicted_samples_per_s_low": one.predicted_samples_per_s_low,
        "predicted_samples_per_s_high": one.predicted_samples_per_s_high,
        "predicted_inside": int(bool(one.inside)) if one.counts else None,
    }


def _standing(standing: Standing | None, name: str, difference: str) -> dict[str, Value]:
    """Among rivals: what is claimed, and the difference from the fastest of them."""
    found = _estimate(difference, standing.difference if standing else None)
    return {name: standing.verdict if standing else "", **found}


def _estimates(row: Row) -> dict[str, Value]:
    # For one release more: the name that samples_per_s had while all samples were images.
    formerly = row.samples_per_s if row.workload.unit == "images" else None
    found = (formerly, row.speedup, row.efficiency, row.strategy_efficiency)
    return {
        key: value
        for name, estimate in zip(_ESTIMATES, found, strict=True)
        for key, value in _estimate(name, estimate).items()
    }


def _field(row: Row, name: str) -> Value:
    """Of the row, of its work, or of its hardware."""
    owner = next(one for one in (row, row.workload, row.hardware) if name in one.__struct_fields__)
    value: Value = getattr(owner, name)
    return value


def _receipt(row: Row) -> tuple[Value, ...]:
    if row.receipt is None:
        return None, None, None, None
    over_most, over_least = row.receipt.over_expected or (None, None)
    return row.receipt.verdict, row.receipt.share, over_least, over_most


def _busiest(row: Row) -> tuple[Value, ...]:
    if not row.paths:
        return None, None, None
    return str(row.paths[0]), row.paths[0].busy_share, row.paths[0].bits_per_s


def _cause(row: Row, cause: str) -> dict[str, Value]:
    """The interval of a cause of lost efficiency; its mean has a column of its own."""
    found = _estimate(f"loss_{cause}_fraction", row.breakdown_intervals.get(cause))
    return {name: value for name, value in found.items() if name.endswith(("_low", "_high"))}


def _estimate(name: str, estimate: Estimate | None) -> dict[str, Value]:
    found = {"": estimate.mean, "_low": estimate.low, "_high": estimate.high} if estimate else {}
    return {f"{name}{end}": found.get(end) for end in ("", "_low", "_high")}


_WHO = (
    "strategy",
    "interconnect",
    "model",
    "data",
    "device",
    "precision",
    "memory_format",
    "compile",
    "placement",
)
_WHERE = ("batch_rule", "batch_size", "global_batch_size", "world_size", "nodes", "rounds", "rounds_tried")
_EXCHANGE = ("synchronous", "staleness", "servers", "server_hosts", "server_cpu_percent")
_EMULATION = ("profile", "shrink", "dilate", "machine_cpu_percent")
_RECEIPT = ("network_verdict", "network_share_fraction", "network_bytes_over_expected")
_MOST = "network_bytes_over_most_expected"
_DEVICE = tuple(name for name in DeviceUse.__struct_fields__ if name != "energy_is_integral")
_PATH = ("busiest_path", "busiest_path_busy_fraction", "busiest_path_bits_per_s")
_FRAMEWORKS = ("framework_standing", "against_fastest_framework_fraction")
_FEED = ("feed", "feed_workers", "drop_caches", "fed_by", "read_from", "waited_s")
_SAMPLE = ("image_size", "sequence_length", "optimizer")
_CAUSES = ("contention", "straggling", "exposed", "small_batch", "unexplained")
_LATER_CAUSES = tuple(cause for cause in Breakdown.__struct_fields__ if cause not in _CAUSES)
_ESTIMATES = ("images_per_s", "speedup", "efficiency_fraction", "strategy_efficiency_fraction")
COLUMNS = (
    *_WHO,
    "options",
    *_WHERE,
    *(f"{name}{end}" for name in _ESTIMATES for end in ("", "_low", "_high")),
    "intra_node_fraction",
    "inter_node_fraction",
    *(f"loss_{cause}_fraction" for cause in _CAUSES),
    "first_training_loss",
    "last_training_loss",
    "flags",
    "failed_cause",
    "failed_message",
    "footnotes",
    # Added later: columns are appended, never moved.
    *_EXCHANGE,
    "training_loss_at",
    "training_loss_at_samples",
    "standing",
    *(f"against_best_fraction{end}" for end in ("", "_low", "_high")),
    *(f"loss_{cause}_fraction_{end}" for cause in _CAUSES for end in ("low", "high")),
    *_RECEIPT,
    *_EMULATION,
    *_PATH,
    *(f"samples_per_s{end}" for end in ("", "_low", "_high")),
    "unit",
    "framework",
    _FRAMEWORKS[0],
    *(f"{_FRAMEWORKS[1]}{end}" for end in ("", "_low", "_high")),
    "learnt_less",
    *(f"loss_{cause}_fraction{end}" for cause in _LATER_CAUSES for end in ("", "_low", "_high")),
    "efficiency_df",
    _MOST,
    *_DEVICE,
    "nccl",
    "units_per_sample",
    "tflops_per_device",
    "mfu",
    "pass",
    *_FEED,
    *_SAMPLE,
)
