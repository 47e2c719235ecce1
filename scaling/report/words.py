"""The parts of a report as texts, equal in every format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from scaling.analysis.table.rows import Column
from scaling.report.parts import Against, Cell, Line, Phrase, Quantity, Value
from scaling.text import fixed, plus_minus

NONE = "-"
# A mean with its unit, and its interval: `± 0.8` or `(30.6 to 361.0)`.
Parts = tuple[str, str]


def mean(quantity: Quantity, *, with_unit: bool = True) -> str:
    """Return the mean with its unit: `93.1 %`."""
    unit = f" {quantity.unit}" if with_unit and quantity.unit else ""
    return fixed(quantity.value, quantity.digits, grouped=quantity.grouped) + unit


def against(cell: Against) -> str:
    """Return `best`, `leading`, `tied, -0.4 ± 1.1 %`, `4.2 ± 1.1 % slower`; the difference
    alone if it is not separated or not tested."""
    found = cell.difference
    if found is None:
        return NONE if cell.verdict == "not compared" else cell.verdict
    if cell.verdict in ("slower", "faster"):
        size = found.negated if found.value < 0 else found
        return f"{_without_unit(size)} {found.unit} {cell.verdict}"
    said = f"{_without_unit(found)} {found.unit}"
    return said if cell.verdict in ("not compared", "not separated") else f"{cell.verdict}, {said}"


def _without_unit(quantity: Quantity) -> str:
    return stamped(*parts(quantity, with_unit=False))


def parts(quantity: Quantity, *, with_unit: bool = True) -> Parts:
    ends = plus_minus(quantity.value, quantity.low, quantity.high, quantity.digits, grouped=quantity.grouped)
    return mean(quantity, with_unit=with_unit), ends


def cells(line: Line, columns: Iterable[Column]) -> list[Parts]:
    """Return the cells of a line up to the first that is missing."""
    return [
        cell(line.cells[column.key], column) for column in takewhile(lambda one: one.key in line.cells, columns)
    ]


def cell(of: Cell, column: Column) -> Parts:
    match of:
        case None:
            return NONE, ""
        case str():
            return of, ""
        case Against():
            return against(of), ""
        case Quantity():
            shown, ends = parts(of, with_unit=column.unit_in_cells)
            if column.brackets_noise:  # a blank keeps digits aligned
                shown = f"({shown})" if of.is_noise else f"{shown} "
            return shown, ends if column.shows_interval else ""


def text(phrase: Phrase) -> str:
    return "".join(part if isinstance(part, str) else stamped(*parts(part)) for part in phrase)


def value(at: Value) -> str:
    return f"N={at.world_size} {text(at.phrase)}"


def stamped(*texts: str) -> str:
    """Join the texts that are not empty by spaces."""
    return " ".join(filter(None, texts))


def mark_text(marks: Sequence[int]) -> str:
    """Return `[1,2]`; "" without marks."""
    return f"[{','.join(map(str, marks))}]" if marks else ""
