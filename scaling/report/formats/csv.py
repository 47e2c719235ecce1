"""The rows as comma-separated values: a line per exchange and world size, with raw numbers and stable names.

The source is the analysis, since the document has rounded numbers, few footnotes and no columns for conditions.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from io import StringIO

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import catalogue
from scaling.analysis.table.cost import Bill, Pricing, bill
from scaling.analysis.table.imported import Imported, cells, global_batch_size
from scaling.analysis.table.rows import ENDS, Row, Standing
from scaling.records.run import Header
from scaling.text import one_line, rounded

Value = str | int | float | None
# A text that begins so is a formula for spreadsheets. Numbers are not texts and keep their sign.
_FORMULA = ("=", "+", "-", "@")


def of_rows(found: Iterable[Row], header: Header | None = None, pricing: Pricing | None = None) -> str:
    """Return a header line and a line per row. Fractions are of 1; cells are empty if unknown or not claimed. With
    `pricing` and a header, there are columns of costs."""
    billed = [(row, bill(row, header, pricing) if header and pricing else "") for row in found]
    measured = (_values(row) | (_cost(of) if pricing else {}) for row, of in billed)
    of_logs = map(_imported, cells(header.imported if header else ()))
    lines = [{name: defused(value) for name, value in rounded(one).items()} for one in (*measured, *of_logs)]
    columns = dict.fromkeys((*names(), *(name for line in lines for name in line)))
    out = StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def defused(value: Value) -> Value:
    """Put an apostrophe before a text that a spreadsheet would run as a formula
    (owasp.org/www-community/attacks/CSV_Injection)."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _values(row: Row) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for column in catalogue.COLUMNS:
        if column.csv and column.value and (column.csv_if is None or column.csv_if(row)):
            value = column.value(row)
            value = value.difference if isinstance(value, Standing) else value
            interval = column.interval(row) if column.interval else None
            interval = value if isinstance(value, Estimate) else interval
            low, high = (interval.low, interval.high) if interval else (None, None)
            mean = value.mean if isinstance(value, Estimate) else value
            ends = {"": mean, "_low": low, "_high": high}
            found |= {f"{column.csv}{end}": ends[end] for end in column.ends}
    return found


def names() -> tuple[str, ...]:
    return tuple(
        f"{one.csv}{end}" for one in catalogue.COLUMNS if one.csv and one.csv_if is None for end in one.ends
    )


_IMPORTED_TEXTS = ("model", "precision", "device_kind", "framework", "variables", "parallelism", "label")


def _imported(cell: Imported) -> dict[str, Value]:
    return {
        "strategy": f"imported:{cell.tool}",
        **{name: getattr(cell, name) or None for name in _IMPORTED_TEXTS},
        "batch_rule": "strong" if cell.strong else None,
        "batch_size": cell.batch_size or None,
        "global_batch_size": global_batch_size(cell),
        "world_size": cell.world_size,
        "rounds": len(cell.logs),
        **(_estimate("images_per_s", cell.rate) if cell.unit == "images" else {}),
        **_estimate("samples_per_s", cell.rate),
        "unit": cell.unit,
        "speedup": cell.speedup,
        "efficiency_fraction": cell.efficiency,
        "base_world_size": cell.base_world_size,
        "steps": cell.steps or None,
        "spread_fraction": cell.spread,
        "flags": " ".join(cell.flags),
        "failed_message": cell.failed or None,
        "footnotes": " | ".join(cell.notes),
        "synchronous": cell.synchronous,
    }


def _cost(of: Bill | str) -> dict[str, Value]:
    if isinstance(of, str):
        return {"cost_unknown": of}
    found: dict[str, Value] = {"cost_currency": of.currency, "cost_price": of.price, "cost_machines": of.machines}
    found |= {"cost_devices_paid": of.devices_paid, "cost_base": of.base}
    for what, by in (("million", of.per_million), ("epoch", of.per_epoch)):
        for how, estimate in by.items():
            found |= _estimate(f"cost_per_{what}_{how}", estimate)
    return {**found, **_estimate("cost_relative", of.relative), "cost_unknown": None}


def _estimate(name: str, estimate: Estimate | None) -> dict[str, Value]:
    found = {"": estimate.mean, "_low": estimate.low, "_high": estimate.high} if estimate else {}
    return {f"{name}{end}": found.get(end) for end in ENDS}
