"""What an entry of the catalogue says: a column, a mark, an explanation. Pure."""

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


def always(_: Column, __: Sequence[Row]) -> bool:
    """In every table."""
    return True


def known(column: Column, rows: Sequence[Row]) -> bool:
    """Where any row has a value."""
    return column.value is not None and any(column.value(row) is not None for row in rows)


EVERYWHERE: Mapping[Table, Callable[[Column, Sequence[Row]], bool]] = {
    "curve": known,
    "comparison": known,
    "page": known,
}


def four_digits(value: float) -> int:
    """Digits behind the point for about four in all."""
    return 2 if value < 10 else 1 if value < 1000 else 0


def tera_digits(value: float) -> int:
    return 4 if value < 0.1 else 3 if value < 1 else four_digits(value)


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


class Report(NamedTuple):
    """What decides which explanations a report has: its analysis, whether it compares rows or has predictions."""

    analysis: Analysis
    compares: bool
    predicts: bool

    @property
    def rows(self) -> Sequence[Row]:
        """The rows of the report."""
        return self.analysis.rows

    @property
    def has_oom(self) -> bool:
        """Whether a row or a baseline is out of memory."""
        failures = (one.failed for of in (self.rows, self.analysis.baselines) for one in of)
        return any(failed is not None and failed.cause == "oom" for failed in failures)

    @property
    def has_slower_cores(self) -> bool:
        """Whether a note tells of slower cores."""
        notes = (note for of in (self.rows, self.analysis.baselines) for one in of for note in one.footnotes)
        return any(SLOWER_CORES in note for note in notes)


class Explanation(Record, frozen=True, kw_only=True):
    """A line of How to read, in reports of which `applies` holds. In `text` a name in braces stands for what
    depends on the rows: `{rates}` is `images/s`; `report/document.py` has the others."""

    label: str
    text: str
    applies: Callable[[Report], bool]
