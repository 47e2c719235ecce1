"""Figures as plain data: numbers, names and marks, without layout. Every drawing is made of these."""

from __future__ import annotations

from typing import NamedTuple

from scaling.records.point import Record
from scaling.text import one_line


class Dot(Record, frozen=True, kw_only=True):
    """A point of a curve, with its interval and its mark ("" without one). A value that is not `claimed` is only a
    position: no text contains it."""

    world_size: int
    value: float
    low: float | None = None
    high: float | None = None
    mark: str = ""
    claimed: bool = True


class Curve(Record, frozen=True, kw_only=True):
    """The points of one scaling curve. `number` chooses colour and shape; `band` draws the intervals' area."""

    label: str
    number: int
    dots: tuple[Dot, ...]
    band: bool = False


class Cross(Record, frozen=True, kw_only=True):
    """A failed row at a world size."""

    world_size: int
    label: str


class Curves(Record, frozen=True, kw_only=True):
    """Curves over the number of devices, on logarithmic axes; the vertical one is linear if `is_percent`.

    `ideal`: the value of one device, None if unknown.
    `boundary`: world sizes above it need several nodes.
    """

    upright: str
    is_percent: bool
    curves: tuple[Curve, ...]
    crosses: tuple[Cross, ...] = ()
    ideal: float | None = None
    boundary: float | None = None


class Turn(NamedTuple):
    """A value at a place in a series of repetitions, and its mark ("" without one)."""

    at: int
    value: float
    mark: str = ""


class Trend(Record, frozen=True, kw_only=True):
    """Repetitions of one measurement in the order of time. `number` chooses colour and shape."""

    label: str
    number: int
    turns: tuple[Turn, ...]


class Trends(Record, frozen=True, kw_only=True):
    """Values over numbered repetitions, on linear axes."""

    upright: str
    across: str
    trends: tuple[Trend, ...]


class Bar(Record, frozen=True, kw_only=True):
    """A row as a bar of parts in the order of `Bars.names`; None for a part that is unknown. `says` is printed in
    the place of the parts, or of the first part's number."""

    label: str
    parts: tuple[float | None, ...] = ()
    says: str = ""
    mark: str = ""


class Bars(Record, frozen=True, kw_only=True):
    """Stacked bars below each other, in percent. Negative parts are left of zero."""

    names: tuple[str, ...]
    bars: tuple[Bar, ...]


class Spread(Record, frozen=True, kw_only=True):
    """The values of a row by round."""

    label: str
    values: tuple[float, ...]
    mark: str = ""


class Spreads(Record, frozen=True, kw_only=True):
    """All rounds of all rows, as percent above or below the row's mean."""

    spreads: tuple[Spread, ...]


class Heat(Record, frozen=True, kw_only=True):
    """Step times over the median of their round: a line per rank, a column per window; None without a window.
    `breaks`: columns at which rounds begin."""

    lines: tuple[str, ...]
    cells: tuple[tuple[float | None, ...], ...]
    breaks: tuple[int, ...] = ()


class Carried(Record, frozen=True, kw_only=True):
    """What a row sent between nodes over one card, in `Cards.unit`. `least`, `most`: what must be sent over the
    requested card; None on other cards and if unknown."""

    label: str
    card: str
    sent: float
    wanted: bool
    least: float | None = None
    most: float | None = None
    mark: str = ""


class Cards(Record, frozen=True, kw_only=True):
    """Bytes by row and card."""

    unit: str
    carried: tuple[Carried, ...]


class Reading(NamedTuple):
    """The lowest, mean and highest value of all devices at a time."""

    at_s: float
    low: float
    mean: float
    high: float


class Strip(Record, frozen=True, kw_only=True):
    """One quantity over the time of a run's windows. `from_zero`: the axis begins at zero."""

    title: str
    readings: tuple[Reading, ...]
    from_zero: bool = True


class Strips(Record, frozen=True, kw_only=True):
    """Quantities below each other over one axis: time, or ranks."""

    across: str
    strips: tuple[Strip, ...]


class Stretch(NamedTuple):
    """A time interval."""

    start_s: float
    end_s: float


class Lane(Record, frozen=True, kw_only=True):
    """One round: when points were measured, by kind, and the seconds at which points failed."""

    label: str
    stretches: dict[str, tuple[Stretch, ...]]
    failures: tuple[float, ...] = ()


class Lanes(Record, frozen=True, kw_only=True):
    """When each point was measured."""

    kinds: tuple[str, ...]
    lanes: tuple[Lane, ...]


Body = Curves | Trends | Bars | Spreads | Heat | Cards | Strips | Lanes


class Table(NamedTuple):
    """The numbers of a figure."""

    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


class Figure(Record, frozen=True, kw_only=True):
    """A figure with its heading, its table and the marks of its rows. `says`: the text of screen readers.
    `left_out`: what it does not show."""

    name: str
    title: str
    says: str
    body: Body
    table: Table
    stamps: tuple[str, ...] = ()
    left_out: str = ""


def shortened(labels: tuple[str, ...], width: int) -> tuple[str, ...]:
    """Cut names in the middle to `width` characters, on one line, without invisible signs. Different names stay
    different."""
    found: dict[str, str] = {}
    for label in dict.fromkeys(labels):
        whole = one_line(label)
        cut = _cut(whole, width)
        number = 2
        while cut in found.values():
            cut = f"{_cut(whole, width - 3)} {number}"
            number += 1
        found[label] = cut
    return tuple(found[label] for label in labels)


def _cut(label: str, width: int) -> str:
    if len(label) <= width:
        return label
    head = (width - 1) // 2
    return f"{label[:head]}…{label[len(label) - (width - 1 - head) :]}"
