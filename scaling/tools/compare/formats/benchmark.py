"""The new side's figures as github-action-benchmark reads them, to be kept as a series.

`customBiggerIsBetter`, or `customSmallerIsBetter` where less is better: a list of objects with `name`, `unit`,
`value` and, if they are known, `range` and `extra` (github.com/benchmark-action/github-action-benchmark, README).
"""

from __future__ import annotations

from scaling.text import as_json, one_line, rounded
from scaling.tools.compare.found import Cell, Found


def render(found: Found) -> str:
    """Return the list of all cells of which the new side has a figure; percent where the figure is a fraction."""
    plain = [_entry(cell) for cell in found.cells if cell.new is not None]
    return as_json(plain)


def _entry(cell: Cell) -> dict[str, object]:
    assert cell.new is not None
    scale = 100.0 if cell.unit == "%" else 1.0
    entry: dict[str, object] = {
        "name": one_line(" ".join((cell.name, *(flag for flag in cell.flags if flag == "EMULATED")))),
        "unit": cell.unit or "x",
        "value": rounded(scale * cell.new.mean),
        "extra": one_line(" ".join(filter(None, (cell.verdict, cell.reason, *cell.flags)))),
    }
    if cell.new.low is not None and cell.new.high is not None:
        entry["range"] = f"± {scale * (cell.new.high - cell.new.low) / 2:.4g}"
    return entry
