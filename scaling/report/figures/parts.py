"""Figures as plain data: numbers, names and marks ("" without one), without layout. None is unknown."""

from __future__ import annotations

from typing import NamedTuple

from scaling.text import one_line


class Dot(NamedTuple):
    """A point of a curve, at a world size or at the number of a run. A value that is not `claimed` is only a
    position: no text contains it."""

    at: int
    value: float
    low: float | None = None
    high: float | None = None
    mark: str = ""
    claimed: bool = True


class Curve(NamedTuple):
    """One scaling curve, or the repetitions of one measurement. `number` chooses colour and shape."""

    label: str
    number: int
    dots: tuple[Dot, ...]


class Cross(NamedTuple):
    """A failed row at a world size."""

    world_size: int
    label: str


class Curves(NamedTuple):
    """Curves over the number of devices, on logarithmic axes; the vertical one is linear if `is_percent`.
    `ideal`: the value of one device; `boundary`: world sizes above it need several nodes."""

    upright: str
    is_percent: bool
    curves: tuple[Curve, ...]
    crosses: tuple[Cross, ...] = ()
    ideal: float | None = None
    boundary: float | None = None


class Trends(NamedTuple):
    """Curves over numbered repetitions, on linear axes."""

    upright: str
    across: str
    curves: tuple[Curve, ...]


class Bar(NamedTuple):
    """A row as a bar of parts in the order of `Bars.names`. `says`: printed in the place of the parts, or of the
    first part's number."""

    label: str
    parts: tuple[float | None, ...] = ()
    says: str = ""
    mark: str = ""


class Bars(NamedTuple):
    """Stacked bars below each other, in percent. Negative parts are left of zero."""

    names: tuple[str, ...]
    bars: tuple[Bar, ...]


class Spread(NamedTuple):
    """The values of a row by round."""

    label: str
    values: tuple[float, ...]
    mark: str = ""


class Spreads(NamedTuple):
    """All rounds of all rows, as percent above or below the row's mean."""

    spreads: tuple[Spread, ...]


class Heat(NamedTuple):
    """Step times over the median of their round: a line per rank, a column per window. `breaks`: columns at which
    rounds begin."""

    lines: tuple[str, ...]
    cells: tuple[tuple[float | None, ...], ...]
    breaks: tuple[int, ...] = ()


class Carried(NamedTuple):
    """What a row sent between nodes over one card, and the least and the most that it must send over the requested
    one, in `Cards.unit`."""

    label: str
    card: str
    sent: float
    wanted: bool
    least: float | None = None
    most: float | None = None
    mark: str = ""


class Cards(NamedTuple):
    """Bytes by row and card."""

    unit: str
    carried: tuple[Carried, ...]


class Reading(NamedTuple):
    """The lowest, mean and highest value of all devices at a time."""

    at_s: float
    low: float
    mean: float
    high: float


class Strip(NamedTuple):
    """One quantity over the time of a run's windows. `from_zero`: the axis begins at zero."""

    title: str
    readings: tuple[Reading, ...]
    from_zero: bool = True


class Strips(NamedTuple):
    """Quantities below each other over one axis: time, or ranks."""

    across: str
    strips: tuple[Strip, ...]


class Stretch(NamedTuple):
    """A time interval."""

    start_s: float
    end_s: float


class Lane(NamedTuple):
    """One round: when points were measured, by kind, and the seconds at which points failed."""

    label: str
    stretches: dict[str, tuple[Stretch, ...]]
    failures: tuple[float, ...] = ()


class Lanes(NamedTuple):
    """When each point was measured."""

    kinds: tuple[str, ...]
    lanes: tuple[Lane, ...]


Body = Curves | Trends | Bars | Spreads | Heat | Cards | Strips | Lanes


class Table(NamedTuple):
    """The numbers of a figure."""

    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


class Figure(NamedTuple):
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
        cut, number = _cut(one_line(label), width), 1
        while cut in found.values():
            number += 1
            cut = f"{_cut(one_line(label), width - 3)} {number}"
        found[label] = cut
    return tuple(found[label] for label in labels)


def _cut(label: str, width: int) -> str:
    if len(label) <= width:
        return label
    head = (width - 1) // 2
    return f"{label[:head]}…{label[len(label) - (width - 1 - head) :]}"
