"""Curves over the number of devices: speedup, efficiency, samples/s; dots and names of curves and trends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from scaling.analysis.table.catalogue import mark_named, unranked_marks
from scaling.report.figures.parts import Curve, Curves, Dot, shortened
from scaling.report.formats.plots.sheet import RED, SMALL, Sheet, apart, color, edge, label_width, shape
from scaling.text import decimals

LABEL_WIDTH = 22
NAME_SIZE = SMALL
# Least distance of two names, as a fraction of the height.
NAMES_APART = 0.062


class End(NamedTuple):
    """A dot, or the end of a line, with its name and colour."""

    label: str
    hue: str
    at: float
    value: float


def line_style(*marks: str) -> str | None:
    styles = [mark_named(mark).line for mark in marks]
    return None if None in styles else next((style for style in styles if style != "-"), "-")


def draw_dots(axes: Axes, dots: Sequence[End], word: str, marker: str) -> Line2D:
    mark = mark_named(word)
    (drawn,) = axes.plot(
        [dot.at for dot in dots],
        [dot.value for dot in dots],
        marker=marker,
        markersize=8 if mark.is_wrong else 5,
        markerfacecolor="none" if mark.hollow else dots[0].hue,
        markeredgecolor=edge(mark, dots[0].hue),
        markeredgewidth=2.0 if mark.is_wrong else 1.2,
        linestyle="",
    )
    return drawn


def say_mark(axes: Axes, dot: End, word: str, *, is_left: bool) -> None:
    """Write the mark of a dot if it is unranked; `is_left`: the dot is in the left half of the plot."""
    if word in unranked_marks():
        axes.annotate(
            word,
            (dot.at, dot.value),
            xytext=(8 if is_left else -8, -12),
            textcoords="offset points",
            ha="left" if is_left else "right",
            fontsize=SMALL,
            color=edge(mark_named(word), ""),
            weight="bold",
        )


def name_ends(axes: Axes, ends: Sequence[End], sheet: Sheet) -> None:
    """Write names right of the axes, pushed apart, each with a thread to its end."""
    cut = shortened(tuple(end.label for end in ends), LABEL_WIDTH)
    to_axes = axes.transData + axes.transAxes.inverted()
    found = [to_axes.transform((end.at, end.value)) for end in ends]
    places = apart([float(end[1]) for end in found], NAMES_APART)
    places = [place - max(0.0, max(places) - 1.02) for place in places]
    for end, text, at, place in zip(ends, cut, found, places, strict=True):
        axes.plot(
            (float(at[0]), 1.03), (float(at[1]), place), transform=axes.transAxes, color=end.hue, alpha=0.5,
            linewidth=0.6, clip_on=False, solid_capstyle="butt",
        )  # fmt: skip
        made = axes.text(
            1.04, place, text, transform=axes.transAxes, va="center", fontsize=NAME_SIZE, color=sheet.ink
        )
        if text != end.label:
            made.set_gid(sheet.tooltip(end.label))


# ---------------------------------------------------------------- curves


HEIGHT_IN = 3.9
# Room for rates left of an axis: `1,048,576`.
RATES_IN = 1.05
# The axis of percentages; a whisker beyond it is cut, and marked by an arrow.
MOST_PERCENT = 110.0
# Horizontal shift between curves as a power of 2, so that their whiskers do not hide each other.
SHIFT = 0.018


def draw(sheet: Sheet, body: Curves) -> None:
    names = shortened(tuple(curve.label for curve in body.curves), LABEL_WIDTH)
    left = RATES_IN if body.ideal is None else 0.62
    axes = sheet.axes(left=left, right=0.25 + label_width((*names, "ideal"), NAME_SIZE), bottom=0.52, top=0.28)
    _scales(axes, body)
    _ideal(axes, body, sheet)
    if body.boundary is not None:
        axes.axvline(body.boundary, color=sheet.ink, alpha=0.45, linewidth=0.8, linestyle=(0, (1, 2)))
        axes.annotate(
            " several nodes", (body.boundary, 1.015), xycoords=("data", "axes fraction"), fontsize=SMALL, alpha=0.8
        )
    for place, curve in enumerate(body.curves):
        _curve(axes, curve, place - (len(body.curves) - 1) / 2, sheet)
    _names(axes, body, sheet)
    _crosses(axes, body)


def _sizes(body: Curves) -> list[int]:
    dots = (dot.world_size for curve in body.curves for dot in curve.dots)
    return sorted({*dots, *(cross.world_size for cross in body.crosses)})


def _scales(axes: Axes, body: Curves) -> None:
    sizes = _sizes(body)
    axes.set_xscale("log", base=2)
    axes.set_xlim(sizes[0] / 1.18, sizes[-1] * 1.18)
    axes.set_xticks(_legible(sizes), [str(size) for size in _legible(sizes)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("devices (N)")
    axes.set_ylabel(body.upright)
    ends = [end for curve in body.curves for dot in curve.dots for end in (dot.value, dot.low, dot.high) if end]
    low, high = min(ends, default=1.0), max(ends, default=1.0)
    if body.is_percent:
        highest = max((dot.value for curve in body.curves for dot in curve.dots), default=0.0)
        axes.set_ylim(0.0, MOST_PERCENT if highest < MOST_PERCENT else highest + 5)
    else:
        axes.set_yscale("log", base=2)
        low, high = min([low, body.ideal or low]), max(high, sizes[-1] * body.ideal if body.ideal else high)
        axes.set_ylim(max(low, high / 4096) / 1.12, high * 1.15)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(visible=True, which="major")


def _legible(sizes: list[int]) -> list[int]:
    """Return world sizes as ticks, without those that would overlap the previous one."""
    found = sizes[:1]
    for size in sizes[1:]:
        if size >= 1.2 * found[-1]:
            found.append(size)
    return found


def _ideal(axes: Axes, body: Curves, sheet: Sheet) -> None:
    if body.ideal is None:
        return
    ends = (_sizes(body)[0], _sizes(body)[-1])
    values = (body.ideal, body.ideal) if body.is_percent else (ends[0] * body.ideal, ends[1] * body.ideal)
    axes.plot(ends, values, color=sheet.ink, alpha=0.6, linewidth=1.0, linestyle=(0, (5, 3)))


def _curve(axes: Axes, curve: Curve, place: float, sheet: Sheet) -> None:
    hue = color(curve.number, sheet.theme)
    shift = 2 ** (SHIFT * place)
    if curve.band:
        _band(axes, curve, shift, hue)
    for before, after in pairwise(curve.dots):
        style = line_style(before.mark, after.mark)
        if style is not None:
            wrong = any(mark_named(dot.mark).is_wrong for dot in (before, after))
            axes.plot(
                (before.world_size * shift, after.world_size * shift),
                (before.value, after.value),
                color=RED if wrong else hue,
                linewidth=1.3,
                linestyle=style,
                marker="",
            )
    for dot in curve.dots:
        if dot.low is not None and dot.high is not None and mark_named(dot.mark).line is not None:
            _whisker(axes, dot.world_size * shift, dot.low, dot.high, hue)
        low, high = axes.get_xlim()
        end = End(curve.label, hue, dot.world_size * shift, dot.value)
        drawn = draw_dots(axes, [end], dot.mark, shape(curve.number))
        drawn.set_gid(sheet.tooltip(_said(curve, dot)))
        say_mark(axes, end, dot.mark, is_left=end.at < (low * high) ** 0.5)


def _whisker(axes: Axes, at: float, low: float, high: float, hue: str) -> None:
    """Draw an interval; an end outside the axis is an arrow at its edge."""
    least, most = axes.get_ylim()
    axes.plot((at, at), (max(low, least), min(high, most)), color=hue, linewidth=1.2)
    for end, arrow in ((low, "v"), (high, "^")):
        place = min(max(end, least), most)
        axes.plot((at,), (place,), color=hue, marker=arrow if place != end else "_", markersize=5, clip_on=False)


def _said(curve: Curve, dot: Dot) -> str:
    """Return `torch:gloo N=2: 89.3 ± 1.7`, or the mark of a dot that claims no value."""
    digits = decimals(dot.value)
    half = "" if dot.low is None or dot.high is None else f" ± {(dot.high - dot.low) / 2:,.{digits}f}"
    return f"{curve.label} N={dot.world_size}: {f'{dot.value:,.{digits}f}{half}' if dot.claimed else dot.mark}"


def _band(axes: Axes, curve: Curve, shift: float, hue: str) -> None:
    ends = [(dot.world_size * shift, dot.low, dot.high) for dot in curve.dots if dot.low and dot.high]
    if ends:
        at, low, high = zip(*ends, strict=True)
        axes.fill_between(at, low, high, color=hue, alpha=0.16, linewidth=0)


def _names(axes: Axes, body: Curves, sheet: Sheet) -> None:
    ends = [
        End(curve.label, color(curve.number, sheet.theme), curve.dots[-1].world_size, curve.dots[-1].value)
        for curve in body.curves
    ]
    if body.ideal is not None:
        size = _sizes(body)[-1]
        ends.append(End("ideal", sheet.ink, size, body.ideal * (1 if body.is_percent else size)))
    name_ends(axes, ends, sheet)


def _crosses(axes: Axes, body: Curves) -> None:
    for size in sorted({cross.world_size for cross in body.crosses}):
        labels = [cross.label for cross in body.crosses if cross.world_size == size]
        axes.plot(
            (size,), (0.0,), transform=axes.get_xaxis_transform(), marker="x", markersize=8, color=RED,
            markeredgewidth=2.2, clip_on=False, linestyle="",
        )  # fmt: skip
        low, high = axes.get_xlim()
        is_left = size < (low * high) ** 0.5
        said = "failed" if len(labels) == 1 else f"{len(labels)} failed"
        axes.annotate(
            said, (size, 0.0), xycoords=axes.get_xaxis_transform(), xytext=(7 if is_left else -7, 5),
            textcoords="offset points", fontsize=SMALL, color=RED, weight="bold",
            ha="left" if is_left else "right",
        )  # fmt: skip
