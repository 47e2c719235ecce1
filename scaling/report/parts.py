"""What a report is made of, without any layout: the terminal's table and markdown draw the same parts."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.records.point import Record

MOST_NOTES = 4


class Column(Record, frozen=True, kw_only=True):
    """A column: its name, and the same as a heading of two short lines. `losses` stand under one heading;
    `is_text` is set to the left."""

    name: str
    heading: tuple[str, str]
    is_loss: bool = False
    is_text: bool = False


class Line(Record, frozen=True, kw_only=True):
    """A line of a section's table. Where cells end before the columns do, `says` speaks for the rest.

    `above`: what the rule above it says, if there is one. `remark` stands beside the flags. `efficiency` is the
    fraction, for its colour.
    """

    cells: tuple[str, ...]
    says: str = ""
    flags: tuple[str, ...] = ()
    remark: str = ""
    marks: tuple[int, ...] = ()
    above: str = ""
    efficiency: float | None = None


class Detail(Record, frozen=True, kw_only=True):
    """A line below a section's table: a value for some of its world sizes."""

    label: str
    values: tuple[str, ...]


class Section(Record, frozen=True, kw_only=True):
    """A table: one scaling curve, or the comparison of several."""

    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    details: tuple[Detail, ...] = ()


class Document(Record, frozen=True, kw_only=True):
    """All of a report. `baselines` are (who, batch, images/s, efficiency); where there are `comparisons`, they
    and the baselines stand before the `sections`."""

    facts: tuple[tuple[str, str], ...]
    notices: tuple[str, ...]
    comparisons: tuple[Section, ...]
    sections: tuple[Section, ...]
    baselines: tuple[tuple[str, ...], ...]
    footnotes: tuple[str, ...]
    how_to_read: tuple[str, ...]


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


def mark_text(marks: Sequence[int]) -> str:
    """`[1,2]`, or nothing."""
    return f"[{','.join(map(str, marks))}]" if marks else ""


N = Column(name="N", heading=("", "N"))
NODES = Column(name="nodes", heading=("", "nodes"))
DEVICE_BATCH = Column(name="batch per device", heading=("batch/", "device"))
RATE = Column(name="images/s", heading=("", "images/s"))
SPEEDUP = Column(name="speedup", heading=("", "speedup"))
EFFICIENCY = Column(name="efficiency", heading=("", "efficiency"))
CONTENDER = Column(name="contender", heading=("", ""), is_text=True)
AGAINST_BEST = Column(name="against the best", heading=("", "against the best"), is_text=True)


def breakdown_columns(*, is_strong: bool) -> tuple[Column, ...]:
    """One per cause."""
    small = (Column(name="small batch", heading=("small", "batch"), is_loss=True),) if is_strong else ()
    return (
        Column(name="contention", heading=("conten-", "tion"), is_loss=True),
        Column(name="straggling", heading=("strag-", "gling"), is_loss=True),
        Column(name="exposed comm.", heading=("exposed", "comm."), is_loss=True),
        *small,
        Column(name="unexplained", heading=("unex-", "plained"), is_loss=True),
    )
