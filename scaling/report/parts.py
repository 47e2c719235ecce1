"""What a report is made of: numbers with their units and digits, and no layout. Every format draws these parts."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import force_setattr

from scaling.analysis.table.entries import Column
from scaling.analysis.table.rows import Verdict
from scaling.records.point import Record
from scaling.text import legible

TITLE = "Scaling of data-parallel training"
MOST_NOTES = 4


class Quantity(Record, frozen=True, kw_only=True):
    """A number as people read it: in its unit, to so many digits; with an interval, the mean of it.

    `grouped`: with a comma between thousands. `is_noise`: its interval holds zero, or
    it has none and needs one.
    """

    value: float
    digits: int
    unit: str = ""
    low: float | None = None
    high: float | None = None
    grouped: bool = False
    is_noise: bool = False

    @property
    def half_width(self) -> float | None:
        """Half of the interval; None without one."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


class Against(Record, frozen=True, kw_only=True):
    """A row against the fastest of those it is ranked with.

    `difference` is this / fastest - 1, None for the fastest itself.
    """

    verdict: Verdict
    difference: Quantity | None = None


# None: not known, or not claimed.
Cell = str | Quantity | Against | None
# A text with numbers in it.
Phrase = tuple[str | Quantity, ...]


class Line(Record, frozen=True, kw_only=True):
    """A line of a section's table: its cells by key, also of keys for which a table has no column.

    From the first column on whose cell is missing, `says` speaks for the rest. `above`: what the rule above the
    line says, if there is one. `remark` stands beside the flags; `marks` are numbers of footnotes.
    """

    cells: dict[str, Cell]
    says: str = ""
    flags: tuple[str, ...] = ()
    remark: Phrase = ()
    marks: tuple[int, ...] = ()
    above: str = ""

    @property
    def stamps(self) -> tuple[str, ...]:
        """The flags that are not already said in the place of cells."""
        return tuple(flag for flag in self.flags if flag not in ("FAILED", self.says))


class Value(Record, frozen=True, kw_only=True):
    """What is said of a curve at one world size."""

    world_size: int
    phrase: Phrase


class Detail(Record, frozen=True, kw_only=True):
    """A line below a section's table: a value for some of its world sizes."""

    label: str
    values: tuple[Value, ...]


class Section(Record, frozen=True, kw_only=True):
    """A table: one scaling curve (`is_curve`), the comparison of several, or what is about no curve.

    All its rates are of one unit. Those of sections of one `group` may be compared: one figure may show them.
    """

    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    details: tuple[Detail, ...] = ()
    group: int = 0
    is_curve: bool = False


class Baseline(Record, frozen=True, kw_only=True):
    """What one device does: its plain loop, or the single rank of a strategy.

    `rate` is None where all rounds failed, then `says` stands in its place; `efficiency` is a text for those that
    are the 100 % of others, empty where it says nothing.
    """

    name: str
    batch_size: int
    rate: Quantity | None
    says: str = ""
    efficiency: Quantity | str = ""
    flags: tuple[str, ...] = ()
    marks: tuple[int, ...] = ()


class Baselines(Record, frozen=True, kw_only=True):
    """The baselines whose rates are of one unit, `images/s`."""

    rate_unit: str
    lines: tuple[Baseline, ...]


class Entry(Record, frozen=True, kw_only=True):
    """What ran, or how to read a figure: a label and what it says."""

    label: str
    phrase: Phrase


class Document(Record, frozen=True, kw_only=True):
    """All of a report; `marks` of lines are numbers of `footnotes`, of which the first is number 1. `last_line`
    says in one line, for programs, what the headline row is."""

    facts: tuple[Entry, ...]
    notices: tuple[str, ...]
    comparisons: tuple[Section, ...]
    sections: tuple[Section, ...]
    baselines: tuple[Baselines, ...]
    footnotes: tuple[str, ...]
    how_to_read: tuple[Entry, ...]
    last_line: str = ""
    title: str = TITLE

    def __post_init__(self) -> None:
        """Names and messages come from whatever ran: no text of a report has a sign that is not printable."""
        for name in self.__struct_fields__:
            force_setattr(self, name, legible(getattr(self, name)))

    @property
    def tables(self) -> tuple[Section | Baselines, ...]:
        """All tables in reading order: where rows are compared, the baselines stand beside the comparison."""
        if self.comparisons:
            return (*self.comparisons, *self.baselines, *self.sections)
        return (*self.sections, *self.baselines)


class Notes:
    """Footnotes in the order of their first mark; equal texts share one number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def marks(self, texts: Sequence[str]) -> tuple[int, ...]:
        """The numbers of `texts`; all beyond the first few become one."""
        shown = list(texts)
        if len(shown) > MOST_NOTES:
            more = f"and {len(shown) - MOST_NOTES + 1} more notes, in --format json"
            shown = [*shown[: MOST_NOTES - 1], more]
        return tuple(self._numbers.setdefault(text, len(self._numbers) + 1) for text in shown)

    def texts(self) -> tuple[str, ...]:
        """All footnotes; the first is number 1."""
        return tuple(self._numbers)
