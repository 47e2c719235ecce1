"""The parts of a report as texts, equal in every format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from scaling.analysis.table.rows import Column
from scaling.report.parts import Against, Baseline, Cell, Line, Phrase, Quantity, Value

NONE = "-"
# A mean with its unit, and half its interval.
Parts = tuple[str, str]


def number(value: float, digits: int, *, grouped: bool = False) -> str:
    """Format with fixed digits, without a minus before zero."""
    shown = f"{value:{',' if grouped else ''}.{digits}f}"
    return shown.removeprefix("-") if float(shown.replace(",", "")) == 0 else shown


def mean(quantity: Quantity, *, with_unit: bool = True) -> str:
    """Return the mean with its unit: `93.1 %`."""
    unit = f" {quantity.unit}" if with_unit and quantity.unit else ""
    return number(quantity.value, quantity.digits, grouped=quantity.grouped) + unit


def half(quantity: Quantity) -> str:
    """Return half of the interval without the unit; "" without an interval."""
    width = quantity.half_width
    return "" if width is None else number(width, quantity.digits, grouped=quantity.grouped)


def plus_minus(of: str, half_: str) -> str:
    """Return `93.1 % ± 0.8`; the mean alone without an interval."""
    return f"{of} ± {half_}" if half_ else of


def against(cell: Against) -> str:
    """Return `best`, `leading`, `tied, -0.4 ± 1.1 %`, `4.2 ± 1.1 % slower`; the difference
    alone if it is not separated or not tested."""
    found = cell.difference
    if found is None:
        return NONE if cell.verdict == "not compared" else cell.verdict
    if cell.verdict in ("slower", "faster"):
        size = number(abs(found.value), found.digits)
        return f"{plus_minus(size, half(found))} {found.unit} {cell.verdict}"
    said = f"{plus_minus(number(found.value, found.digits), half(found))} {found.unit}"
    return said if cell.verdict in ("not compared", "not separated") else f"{cell.verdict}, {said}"


def parts(quantity: Quantity, *, with_unit: bool = True) -> Parts:
    return mean(quantity, with_unit=with_unit), half(quantity)


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
            shown, width = parts(of, with_unit=column.unit_in_cells)
            if column.brackets_noise:  # a blank keeps digits aligned
                shown = f"({shown})" if of.is_noise else f"{shown} "
            return shown, width if column.shows_interval else ""


def baseline(line: Baseline) -> tuple[Parts, Parts, Parts, Parts]:
    """Return name, batch, rate and efficiency."""
    rate = (line.says or "failed", "") if line.rate is None else parts(line.rate, with_unit=False)
    efficiency = parts(line.efficiency) if isinstance(line.efficiency, Quantity) else (line.efficiency, "")
    return (line.name, ""), (f"batch {line.batch_size}", ""), rate, efficiency


def text(phrase: Phrase) -> str:
    return "".join(part if isinstance(part, str) else plus_minus(*parts(part)) for part in phrase)


def value(at: Value) -> str:
    return f"N={at.world_size} {text(at.phrase)}"


def stamped(*texts: str) -> str:
    """Join the texts that are not empty by spaces."""
    return " ".join(filter(None, texts))


def mark_text(marks: Sequence[int]) -> str:
    """Return `[1,2]`; "" without marks."""
    return f"[{','.join(map(str, marks))}]" if marks else ""
