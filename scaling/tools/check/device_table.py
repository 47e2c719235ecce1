"""The table of device rates in the preflight's text output."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from scaling.records.task import DeviceRates
from scaling.tools.check.verdicts.devices import QUANTITIES, Quantity, by_kind

TITLE = "device rates, all at once: matrix product in TFLOP/s, memory in GB/s, training step in samples/s"
HOW = "  copy counts bytes read and written; the median repeat of a GPU, the fastest of CPUs"
Row = tuple[str, list[str]]


def device_table(rates: Sequence[DeviceRates], most: int) -> list[str]:
    """Render one line a device; of more than `most` devices the least, median and most of each kind."""
    measured = [one for one in rates if not one.left_out]
    columns = [quantity for quantity in QUANTITIES if any(quantity.of(one) is not None for one in measured)]
    if not columns:
        return []
    shown = _each if len(measured) <= most else _three
    rows = [row for like in by_kind(measured) for row in shown(like, columns)]
    left = max(len(name) for name, _ in rows)
    width = 2 + max(len(cell) for cell in (*(one.column for one in columns), *(c for _, row in rows for c in row)))
    head = "".join(f"{quantity.column:>{width}}" for quantity in columns)
    lines = [f"  {name:<{left}}{''.join(f'{cell:>{width}}' for cell in row)}" for name, row in rows]
    return [TITLE, HOW, f"  {'':<{left}}{head}", *lines, ""]


def _each(like: Sequence[DeviceRates], columns: Sequence[Quantity]) -> list[Row]:
    return [(one.place, [_cell(quantity, quantity.of(one)) for quantity in columns]) for one in like]


def _three(like: Sequence[DeviceRates], columns: Sequence[Quantity]) -> list[Row]:
    known = [[rate for device in like if (rate := one.of(device)) is not None] for one in columns]
    return [
        (
            f"{len(like)} x {like[0].name}, {word}",
            [_cell(one, pick(rates) if rates else None) for one, rates in zip(columns, known, strict=True)],
        )
        for word, pick in (("least", min), ("median", median), ("most", max))
    ]


def _cell(quantity: Quantity, rate: float | None) -> str:
    return "-" if rate is None else quantity.digits(rate)
