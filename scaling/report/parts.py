"""The parts of a report: numbers with units and digits, without layout. Every format draws them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from msgspec.structs import force_setattr

from scaling.analysis.table.rows import Column
from scaling.records.point import Record
from scaling.text import fixed, legible, plus_minus

TITLE = "Scaling of data-parallel training"
# An unknown value, or one that is not claimed.
NONE = "-"
# A mean with its unit, and its interval: `± 0.8` or `(30.6 to 361.0)`.
Parts = tuple[str, str]


class Quantity(Record, frozen=True, kw_only=True):
    """A number as people read it, in its unit; with an interval, the mean. As a text it is `93.1 % ± 0.8`.

    `grouped`: commas between thousands. `is_noise`: the interval contains zero, or is needed and missing.
    """

    value: float
    digits: int
    unit: str = ""
    low: float | None = None
    high: float | None = None
    grouped: bool = False
    is_noise: bool = False

    def mean(self, *, with_unit: bool = True) -> str:
        """Return the mean with its unit: `93.1 %`."""
        unit = f" {self.unit}" if with_unit and self.unit else ""
        return fixed(self.value, self.digits, grouped=self.grouped) + unit

    def parts(self, *, with_unit: bool = True) -> Parts:
        ends = plus_minus(self.value, self.low, self.high, self.digits, grouped=self.grouped)
        return self.mean(with_unit=with_unit), ends

    def __str__(self) -> str:
        return stamped(*self.parts())


# None: unknown or not claimed.
Cell = str | Quantity | None


class Line(Record, frozen=True, kw_only=True):
    """A line of a table, with its cells by key; it may have cells without a column.

    `says`: printed in the place of the cells from the first missing one on.
    `above`: text of the rule above the line, if there is one.
    `remark`: printed after the flags; `marks`: numbers of footnotes.
    """

    cells: dict[str, Cell]
    says: str = ""
    flags: tuple[str, ...] = ()
    remark: str = ""
    marks: tuple[int, ...] = ()
    above: str = ""

    @property
    def stamps(self) -> tuple[str, ...]:
        """The flags that the cells do not already contain."""
        return tuple(flag for flag in self.flags if flag not in ("FAILED", self.says))

    @property
    def remarks(self) -> str:
        """The stamps, then the remark."""
        return stamped(*self.stamps, self.remark)

    def parts(self, columns: Iterable[Column]) -> list[Parts]:
        """Return the cells up to the first that is missing."""
        known = takewhile(lambda column: column.key in self.cells, columns)
        return [shown(self.cells[column.key], column) for column in known]

    def texts(self, columns: Iterable[Column]) -> list[str]:
        """Return these cells, each as one text."""
        return [stamped(*cell).strip() for cell in self.parts(columns)]


def shown(cell: Cell, column: Column) -> Parts:
    """Return the text of a cell in a column."""
    if not isinstance(cell, Quantity):
        return NONE if cell is None else cell, ""
    mean, ends = cell.parts(with_unit=column.unit_in_cells)
    if column.brackets_noise:  # a blank keeps digits aligned
        mean = f"({mean})" if cell.is_noise else f"{mean} "
    return mean, ends if column.shows_interval else ""


# A label with its text, in the block of facts or in How to read.
Entry = tuple[str, str]
# A line below a table: its label, and a text for some world sizes, as `N=4 0.94`.
Detail = tuple[str, tuple[str, ...]]


class Section(Record, frozen=True, kw_only=True):
    """A table: one scaling curve (`is_curve`), rates of one device (`is_baselines`), a comparison, or something
    else. Its rates have one unit."""

    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    details: tuple[Detail, ...] = ()
    is_curve: bool = False
    is_baselines: bool = False


class Document(Record, frozen=True, kw_only=True):
    """A whole report; `marks` of lines are numbers of `footnotes`, from 1. `last_line` is for programs."""

    facts: tuple[Entry, ...]
    notices: tuple[str, ...]
    sections: tuple[Section, ...]
    comparisons: tuple[Section, ...] = ()
    baselines: tuple[Section, ...] = ()
    footnotes: tuple[str, ...] = ()
    how_to_read: tuple[Entry, ...] = ()
    last_line: str = ""
    title: str = TITLE

    def __post_init__(self) -> None:
        """Remove signs that are not printable: names and messages come from any program."""
        for name in self.__struct_fields__:
            force_setattr(self, name, legible(getattr(self, name)))

    @property
    def tables(self) -> tuple[Section, ...]:
        """All tables in reading order; with comparisons, the baselines follow them."""
        if self.comparisons:
            return (*self.comparisons, *self.baselines, *self.sections)
        return (*self.sections, *self.baselines)


def labelled(label: str, texts: Iterable[str]) -> Iterator[Entry]:
    """Yield the texts with their label; further lines of a label have none."""
    yield from (("" if index else label, text) for index, text in enumerate(texts))


def stamped(*texts: str) -> str:
    """Join the texts that are not empty by spaces."""
    return " ".join(filter(None, texts))


def mark_text(marks: Sequence[int]) -> str:
    """Return `[1,2]`; "" without marks."""
    return f"[{','.join(map(str, marks))}]" if marks else ""
