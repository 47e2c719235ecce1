"""Curves over the number of devices, and trends over repetitions: dots, lines, and names at their ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from scaling.analysis.table.catalogue import mark_named, unranked_marks
from scaling.report.figures.parts import Curve, Curves, Dot, Trends, shortened
from scaling.report.formats.plots.sheet import (
    RED,
    SMALL,
    Format,
    Sheet,
    Theme,
    apart,
    color,
    edge,
    fitting,
    label_width,
    shape,
)
from scaling.text import decimals, plus_minus

HEIGHT_IN, TREND_HEIGHT_IN = 3.9, 3.0
# A line of names below the plot of a narrow sheet.
NAMES_IN = 0.22
# The dot of such a name, with its line.
DOT_IN = 0.5
LABEL_WIDTH = 22
NAME_SIZE = SMALL
# Least distance of two names, as a fraction of the height.
NAMES_APART = 0.062
# Room for rates left of an axis: `1,048,576`.
RATES_IN = 1.05
# The axis of percentages; a whisker beyond it is cut, and marked by an arrow.
MOST_PERCENT = 110.0
# Horizontal shift between curves as a power of 2, so that their whiskers do not hide each other.
SHIFT = 0.018


class End(NamedTuple):
    """A dot, or the end of a line, with its name and colour."""

    label: str
    hue: str
    at: float
    value: float
    marker: str = ""


def height_in(body: Curves | Trends, of: Format) -> float:
    least, usual = (3.0, HEIGHT_IN) if isinstance(body, Curves) else (2.6, TREND_HEIGHT_IN)
    return least + _names_in([*_labels(body)], of) if of.is_narrow else usual


def _labels(body: Curves | Trends) -> Iterator[str]:
    yield from (curve.label for curve in body.curves)
    if isinstance(body, Curves) and body.ideal is not None:
        yield "ideal"


def _ends(curves: Sequence[Curve], theme: Theme) -> list[End]:
    return [
        End(of.label, color(of.number, theme), of.dots[-1].at, of.dots[-1].value, shape(of.number))
        for of in curves
    ]


def _name_columns(labels: Sequence[str], of: Format) -> int:
    widest = label_width(labels, NAME_SIZE) + DOT_IN
    return of.legend_columns if of.legend_columns * widest <= of.width_in else 1


def _names_in(labels: Sequence[str], of: Format) -> float:
    return 0.1 + NAMES_IN * -(-len(labels) // _name_columns(labels, of))


def _axes(sheet: Sheet, body: Curves | Trends, left: float) -> Axes:
    """Return axes with room for names at the right, on a narrow sheet below, and the text of the upright axis."""
    labels = [*_labels(body)]
    if sheet.format.is_narrow:
        axes = sheet.axes(left=left - 0.1, bottom=0.52 + _names_in(labels, sheet.format), top=0.5)
        axes.set_title(body.upright, fontsize=SMALL, loc="left", pad=5)
        return axes
    names = shortened(tuple(labels), LABEL_WIDTH)
    axes = sheet.axes(left=left, right=0.25 + label_width(names, NAME_SIZE), bottom=0.52, top=0.28)
    axes.set_ylabel(body.upright)
    return axes


def _line(
    axes: Axes, places: Sequence[float], values: Sequence[float], marks: Sequence[str], hue: str, width: float
) -> None:
    """Draw a line between dots with these marks; none if a mark forbids it."""
    styles = [mark_named(mark).line for mark in marks]
    if None not in styles:
        style = next((style for style in styles if style != "-"), "-")
        wrong = any(mark_named(mark).is_wrong for mark in marks)
        axes.plot(places, values, color=RED if wrong else hue, linewidth=width, linestyle=style, marker="")


def _dots(axes: Axes, dots: Sequence[End], word: str, marker: str, middle: float) -> Line2D:
    """Draw dots with one mark, and the mark if it is unranked, on the side of the `middle` that has room."""
    mark, (first, *_) = mark_named(word), dots
    (drawn,) = axes.plot(
        [dot.at for dot in dots],
        [dot.value for dot in dots],
        marker=marker,
        markersize=8 if mark.is_wrong else 5,
        markerfacecolor="none" if mark.hollow else first.hue,
        markeredgecolor=edge(mark, first.hue),
        markeredgewidth=2.0 if mark.is_wrong else 1.2,
        linestyle="",
    )
    if word in unranked_marks():
        side, x = ("left", 8) if first.at < middle else ("right", -8)
        _beside(axes, word, (first.at, first.value), (x, -12), ha=side, color=edge(mark, ""))
    return drawn


def _beside(axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **look: Any) -> None:
    axes.annotate(text, at, xytext=offset, textcoords="offset points", fontsize=SMALL, weight="bold", **look)


def _names(axes: Axes, ends: Sequence[End], sheet: Sheet) -> None:
    """Write names right of the axes, pushed apart, each with a thread to its end; below on a narrow sheet."""
    if sheet.format.is_narrow:
        _legend(ends, sheet)
        return
    cut = shortened(tuple(end.label for end in ends), LABEL_WIDTH)
    to_axes = axes.transData + axes.transAxes.inverted()
    found = [tuple(map(float, to_axes.transform((end.at, end.value)))) for end in ends]
    places = apart([y for _, y in found], NAMES_APART)
    lower = max(0.0, max(places) - 1.02)
    for end, text, (x, y), place in zip(ends, cut, found, places, strict=True):
        thread: dict[str, Any] = {"alpha": 0.5, "linewidth": 0.6, "clip_on": False, "solid_capstyle": "butt"}
        axes.plot((x, 1.03), (y, place - lower), transform=axes.transAxes, color=end.hue, **thread)
        look: dict[str, Any] = {"va": "center", "fontsize": NAME_SIZE, "color": sheet.ink}
        made = axes.text(1.04, place - lower, text, transform=axes.transAxes, **look)
        if text != end.label:
            made.set_gid(sheet.tooltip(end.label))


def _legend(ends: Sequence[End], sheet: Sheet) -> None:
    labels, width_in = [end.label for end in ends], sheet.format.width_in
    handles = []
    for end, name in zip(ends, fitting(labels, width_in - DOT_IN), strict=True):
        style: Any = "-" if end.marker else (0, (5, 3))
        look: dict[str, Any] = {"marker": end.marker, "markersize": 5, "linestyle": style, "linewidth": 1.2}
        handles.append(Line2D([], [], color=end.hue, label=name, **look))
    spacing = {"handlelength": 1.6, "columnspacing": 1.2, "labelspacing": 0.25}
    sheet.legend(handles, _name_columns(labels, sheet.format), "lower left", 0.1 / width_in, 0.04, **spacing)


# ---------------------------------------------------------------- curves


def draw_curves(sheet: Sheet, body: Curves) -> None:
    axes = _axes(sheet, body, RATES_IN if body.ideal is None else 0.62)
    dots = [dot for curve in body.curves for dot in curve.dots]
    sizes = sorted({*(dot.at for dot in dots), *(cross.world_size for cross in body.crosses)})
    _scales(axes, body, dots, sizes)
    last = _ends(body.curves, sheet.theme)
    if body.ideal is not None:
        values = [body.ideal * (1 if body.is_percent else size) for size in (sizes[0], sizes[-1])]
        axes.plot((sizes[0], sizes[-1]), values, color=sheet.ink, alpha=0.6, linewidth=1.0, linestyle=(0, (5, 3)))
        last.append(End("ideal", sheet.ink, sizes[-1], values[1]))
    if body.boundary is not None:
        axes.axvline(body.boundary, color=sheet.ink, alpha=0.45, linewidth=0.8, linestyle=(0, (1, 2)))
        place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "fontsize": SMALL, "alpha": 0.8}
        high = 0.95 if sheet.format.is_narrow else 1.015
        axes.annotate(" several nodes", (body.boundary, high), **place)
    middle = float(axes.get_xlim()[0] * axes.get_xlim()[1]) ** 0.5
    for place_, curve in enumerate(body.curves):
        _curve(axes, curve, 2 ** (SHIFT * (place_ - (len(body.curves) - 1) / 2)), middle, sheet)
    _names(axes, last, sheet)
    for size in sorted({cross.world_size for cross in body.crosses}):
        failed = sum(cross.world_size == size for cross in body.crosses)
        on_axis = axes.get_xaxis_transform()
        look: dict[str, Any] = {"marker": "x", "markersize": 8, "color": RED, "markeredgewidth": 2.2}
        axes.plot((size,), (0.0,), transform=on_axis, clip_on=False, linestyle="", **look)
        side, x = ("left", 7) if size < middle else ("right", -7)
        said = "failed" if failed == 1 else f"{failed} failed"
        _beside(axes, said, (size, 0.0), (x, 5), xycoords=on_axis, color=RED, ha=side)


def _scales(axes: Axes, body: Curves, dots: Sequence[Dot], sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlim(sizes[0] / 1.18, sizes[-1] * 1.18)
    ticks = list(sizes[:1])  # without those that would overlap the previous one
    for size in sizes[1:]:
        ticks += [size] if size >= 1.2 * ticks[-1] else []
    axes.set_xticks(ticks, list(map(str, ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("devices (N)")
    if body.is_percent:
        highest = max((dot.value for dot in dots), default=0.0)
        axes.set_ylim(0.0, MOST_PERCENT if highest < MOST_PERCENT else highest + 5)
    else:
        axes.set_yscale("log", base=2)
        ends = [end for dot in dots for end in (dot.value, dot.low, dot.high) if end] or [1.0]
        ideal = [] if body.ideal is None else [body.ideal, sizes[-1] * body.ideal]
        low, high = min(*ends, *ideal[:1], max(ends)), max(*ends, *ideal[1:], min(ends))
        axes.set_ylim(max(low, high / 4096) / 1.12, high * 1.15)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(visible=True, which="major")


def _curve(axes: Axes, curve: Curve, shift: float, middle: float, sheet: Sheet) -> None:
    hue = color(curve.number, sheet.theme)
    for before, after in pairwise(curve.dots):
        at = before.at * shift, after.at * shift
        _line(axes, at, (before.value, after.value), (before.mark, after.mark), hue, 1.3)
    for dot in curve.dots:
        at_, digits = dot.at * shift, decimals(dot.value)
        if dot.low is not None and dot.high is not None and mark_named(dot.mark).line is not None:
            _whisker(axes, at_, dot.low, dot.high, hue)
        drawn = _dots(axes, [End(curve.label, hue, at_, dot.value)], dot.mark, shape(curve.number), middle)
        ends = plus_minus(dot.value, dot.low, dot.high, digits, grouped=True)
        said = f"{dot.value:,.{digits}f} {ends}".rstrip() if dot.claimed else dot.mark
        drawn.set_gid(sheet.tooltip(f"{curve.label} N={dot.at}: {said}"))


def _whisker(axes: Axes, at: float, low: float, high: float, hue: str) -> None:
    """Draw an interval; an end outside the axis is an arrow at its edge."""
    least, most = axes.get_ylim()
    axes.plot((at, at), (max(low, least), min(high, most)), color=hue, linewidth=1.2)
    for end, arrow in ((low, "v"), (high, "^")):
        place = min(max(end, least), most)
        axes.plot((at,), (place,), color=hue, marker=arrow if place != end else "_", markersize=5, clip_on=False)


# ---------------------------------------------------------------- trends


def draw_trends(sheet: Sheet, body: Trends) -> None:
    """The vertical axis starts near the lowest value, since changes are a few percent."""
    axes = _axes(sheet, body, RATES_IN)
    dots = [dot for curve in body.curves for dot in curve.dots]
    places, values = [dot.at for dot in dots], [dot.value for dot in dots]
    first, last, low, high = min(places), max(places), min(values), max(values)
    axes.set_xlim(first - 0.03 * (last - first) - 0.5, last + 0.03 * (last - first) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
    room = max(0.12 * (high - low), 0.04 * high)
    axes.set_ylim(max(0.0, low - room), high + room)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.set_xlabel(body.across)
    axes.grid(visible=True, which="major")
    for curve in body.curves:
        _trend(axes, curve, color(curve.number, sheet.theme))
    _names(axes, _ends(body.curves, sheet.theme), sheet)


def _trend(axes: Axes, curve: Curve, hue: str) -> None:
    """Draw equal strokes as one path, since there may be hundreds of runs."""
    for marks, steps in groupby(pairwise(curve.dots), lambda step: (step[0].mark, step[1].mark)):
        path = [*(step := list(steps))[0][:1], *(after for _, after in step)]
        _line(axes, [dot.at for dot in path], [dot.value for dot in path], marks, hue, 1.1)
    middle = sum(axes.get_xlim()) / 2
    for mark, dots in groupby(curve.dots, lambda dot: dot.mark):
        ends = [End(curve.label, hue, dot.at, dot.value) for dot in dots]
        _dots(axes, ends, mark, shape(curve.number), middle)
