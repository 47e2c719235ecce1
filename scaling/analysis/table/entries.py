"""Types of the catalogue's entries: `Column`, `Mark`, `Explanation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from scaling.analysis.measured.cell import Cell
from scaling.analysis.measured.device_use import Clocks
from scaling.analysis.measured.lasting import Lasting
from scaling.analysis.measured.pools import Drift
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.rows import Analysis, Row, Standing
from scaling.quiet.notes import SLOWER_CORES
from scaling.records.point import Record

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
    * `json`: type in JSON; fields of `Row` need none.
    * `explanation`: text for How to read; `advice`, `color`: of a cause of loss, the colour for figures.
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


EVERYWHERE: Mapping[Table, Callable[[Column, Sequence[Row]], bool]] = {
    "curve": known,
    "comparison": known,
    "page": known,
}


def four_digits(value: float) -> int:
    """Return the decimals for about four digits in all."""
    return 2 if value < 10 else 1 if value < 1000 else 0


def tera_digits(value: float) -> int:
    return 4 if value < 0.1 else 3 if value < 1 else four_digits(value)


class Found(NamedTuple):
    """What decides the marks of a row: its cell and its estimates."""

    cell: Cell
    efficiency: Estimate | None = None
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
