"""What a figure shows, as plain data: numbers, names and marks, and no layout. Every drawing is made of these."""

from __future__ import annotations

from typing import NamedTuple

from scaling.records.point import Record
from scaling.text import one_line


class Dot(Record, frozen=True, kw_only=True):
    """A point of a curve: its devices, its value with its interval, its mark ("" without any). A value that is not
    `claimed` says where the point is drawn, and is told in no words."""

    world_size: int
    value: float
    low: float | None = None
    high: float | None = None
    mark: str = ""
    claimed: bool = True


class Curve(Record, frozen=True, kw_only=True):
    """The points of one scaling curve; `number` is its place in the report, which chooses colour and shape. With a
    `band`, the area of its intervals is drawn: nobody measured it."""

    label: str
    number: int
    dots: tuple[Dot, ...]
    band: bool = False


class Cross(Record, frozen=True, kw_only=True):
    """Where nothing was measured, and why."""

    world_size: int
    label: str


class Curves(Record, frozen=True, kw_only=True):
    """Curves over the number of devices, both axes logarithmic or the upright one in percent. `ideal` is the value
    of one device, None where there is none; `boundary` the devices after which another node takes part."""

    upright: str
    is_percent: bool
    curves: tuple[Curve, ...]
    crosses: tuple[Cross, ...] = ()
    ideal: float | None = None
    boundary: float | None = None


class Turn(NamedTuple):
    """A value at a place in a row of repetitions, and its mark ("" without any)."""

    at: int
    value: float
    mark: str = ""


class Trend(Record, frozen=True, kw_only=True):
    """The same thing measured again and again, in the order of time; `number` chooses colour and shape."""

    label: str
    number: int
    turns: tuple[Turn, ...]


class Trends(Record, frozen=True, kw_only=True):
    """Values over repetitions that are numbered, both axes linear."""

    upright: str
    across: str
    trends: tuple[Trend, ...]


class Bar(Record, frozen=True, kw_only=True):
    """A row as a bar of parts in the order of `Bars.names`, None where one is not told; `says` in their place, or
    in that of the first one's number."""

    label: str
    parts: tuple[float | None, ...] = ()
    says: str = ""
    mark: str = ""


class Bars(Record, frozen=True, kw_only=True):
    """Stacked bars, one below the other, in percent. Negative parts stand left of zero."""

    names: tuple[str, ...]
    bars: tuple[Bar, ...]


class Spread(Record, frozen=True, kw_only=True):
    """A row's values round by round."""

    label: str
    values: tuple[float, ...]
    mark: str = ""


class Spreads(Record, frozen=True, kw_only=True):
    """Every round of every row, as a difference from the row's mean in percent."""

    spreads: tuple[Spread, ...]


class Heat(Record, frozen=True, kw_only=True):
    """Step times over the median of their round, a line per rank and a column per window; None where none was
    measured. `breaks` are the columns at which rounds begin."""

    lines: tuple[str, ...]
    cells: tuple[tuple[float | None, ...], ...]
    breaks: tuple[int, ...] = ()


class Carried(Record, frozen=True, kw_only=True):
    """What a row sent between nodes over one card, in units of `Cards.unit`; `least` and `most` must be sent over
    the card that was asked for, None on others and where nobody knows."""

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
    """At a time: the lowest, the mean and the highest of all devices."""

    at_s: float
    low: float
    mean: float
    high: float


class Strip(Record, frozen=True, kw_only=True):
    """One quantity over the time of a run's windows."""

    title: str
    readings: tuple[Reading, ...]


class Strips(Record, frozen=True, kw_only=True):
    """Quantities below each other over one axis of time, or of ranks where they were read once per rank."""

    across: str
    strips: tuple[Strip, ...]


class Stretch(NamedTuple):
    """Something of a kind ran from a second to another."""

    start_s: float
    end_s: float


class Lane(Record, frozen=True, kw_only=True):
    """One round: by kind of point, when it was measured; `failures` are the seconds at which points failed."""

    label: str
    stretches: dict[str, tuple[Stretch, ...]]
    failures: tuple[float, ...] = ()


class Lanes(Record, frozen=True, kw_only=True):
    """When each point was measured."""

    kinds: tuple[str, ...]
    lanes: tuple[Lane, ...]


Body = Curves | Trends | Bars | Spreads | Heat | Cards | Strips | Lanes


class Table(NamedTuple):
    """What a figure shows, in numbers."""

    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


class Figure(Record, frozen=True, kw_only=True):
    """A figure with its heading, what it says to who cannot see it, and the marks of the rows in it. `left_out`
    says what it does not show."""

    name: str
    title: str
    says: str
    body: Body
    table: Table
    stamps: tuple[str, ...] = ()
    left_out: str = ""


def shortened(labels: tuple[str, ...], width: int) -> tuple[str, ...]:
    """Names on one line without invisible signs, cut in the middle to `width` characters; different names stay
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
