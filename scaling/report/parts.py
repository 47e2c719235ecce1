"""The parts of a report: numbers with units and digits, without layout. Every format draws them."""

from __future__ import annotations

from msgspec.structs import force_setattr, replace

from scaling.analysis.table.rows import Column, Verdict
from scaling.records.point import Record
from scaling.text import legible

TITLE = "Scaling of data-parallel training"


class Quantity(Record, frozen=True, kw_only=True):
    """A number as people read it, in its unit; with an interval, the mean. `grouped`: commas between thousands.
    `is_noise`: the interval contains zero, or is needed and missing."""

    value: float
    digits: int
    unit: str = ""
    low: float | None = None
    high: float | None = None
    grouped: bool = False
    is_noise: bool = False

    @property
    def negated(self) -> Quantity:
        low, high = (None if end is None else -end for end in (self.high, self.low))
        return replace(self, value=-self.value, low=low, high=high)


class Against(Record, frozen=True, kw_only=True):
    """A row's rank, and this / fastest - 1 (None for the fastest itself)."""

    verdict: Verdict
    difference: Quantity | None = None


# None: unknown or not claimed.
Cell = str | Quantity | Against | None
# A text with numbers in it.
Phrase = tuple[str | Quantity, ...]


class Line(Record, frozen=True, kw_only=True):
    """A line of a table, with its cells by key; it may have cells without a column.

    `says`: printed in the place of the cells from the first missing one on.
    `above`: text of the rule above the line, if there is one.
    `remark`: printed after the flags; `marks`: numbers of footnotes.
    """

    cells: dict[str, Cell]
    says: str = ""
    flags: tuple[str, ...] = ()
    remark: Phrase = ()
    marks: tuple[int, ...] = ()
    above: str = ""

    @property
    def stamps(self) -> tuple[str, ...]:
        """The flags that the cells do not already contain."""
        return tuple(flag for flag in self.flags if flag not in ("FAILED", self.says))


class Value(Record, frozen=True, kw_only=True):
    """A text about a curve at one world size."""

    world_size: int
    phrase: Phrase


class Detail(Record, frozen=True, kw_only=True):
    """A line below a table, with a value for some of its world sizes."""

    label: str
    values: tuple[Value, ...]


class Section(Record, frozen=True, kw_only=True):
    """A table: one scaling curve (`is_curve`), rates of one device (`is_baselines`), a comparison, or something
    else. Its rates have one unit. Sections of one `group` may be compared and drawn in one figure."""

    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    details: tuple[Detail, ...] = ()
    group: int = 0
    is_curve: bool = False
    is_baselines: bool = False


class Entry(Record, frozen=True, kw_only=True):
    """A label with its text, in the block of facts or in How to read."""

    label: str
    phrase: Phrase


class Document(Record, frozen=True, kw_only=True):
    """A whole report; `marks` of lines are numbers of `footnotes`, from 1. `last_line` is for programs."""

    facts: tuple[Entry, ...]
    notices: tuple[str, ...]
    comparisons: tuple[Section, ...]
    sections: tuple[Section, ...]
    baselines: tuple[Section, ...]
    footnotes: tuple[str, ...]
    how_to_read: tuple[Entry, ...]
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
