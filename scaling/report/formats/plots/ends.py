"""Dots, the lines between them and the names at their ends, of curves and trends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from scaling.analysis.table.catalogue import mark_named, unranked_marks
from scaling.report.figures.parts import shortened
from scaling.report.formats.plots.sheet import Sheet, apart
from scaling.report.formats.plots.style import edge

LABEL_WIDTH = 27
NAME_SIZE = 8
# Least distance of two names, as a fraction of the height.
NAMES_APART = 0.052


class End(NamedTuple):
    """A dot, or the end of a line, with its name and colour."""

    label: str
    hue: str
    at: float
    value: float


def line_style(*marks: str) -> str | None:
    styles = [mark_named(mark).line for mark in marks]
    return None if None in styles else next((style for style in styles if style != "-"), "-")


def draw_dots(axes: Axes, dots: Sequence[End], word: str, marker: str) -> None:
    mark = mark_named(word)
    axes.plot(
        [dot.at for dot in dots],
        [dot.value for dot in dots],
        marker=marker,
        markersize=8 if mark.is_wrong else 5,
        markerfacecolor="none" if mark.hollow else dots[0].hue,
        markeredgecolor=edge(mark, dots[0].hue),
        markeredgewidth=2.0 if mark.is_wrong else 1.2,
        linestyle="",
    )


def say_mark(axes: Axes, dot: End, word: str, *, is_left: bool) -> None:
    """Write the mark of a dot if it is unranked; `is_left`: the dot is in the left half of the plot."""
    if word in unranked_marks():
        axes.annotate(
            word,
            (dot.at, dot.value),
            xytext=(8 if is_left else -8, -12),
            textcoords="offset points",
            ha="left" if is_left else "right",
            fontsize=7.5,
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
    for index, (end, text, at, place) in enumerate(zip(ends, cut, found, places, strict=True)):
        axes.plot(
            (float(at[0]), 1.03), (float(at[1]), place), transform=axes.transAxes, color=end.hue, alpha=0.5,
            linewidth=0.6, clip_on=False, solid_capstyle="butt",
        )  # fmt: skip
        made = axes.text(
            1.04, place, text, transform=axes.transAxes, va="center", fontsize=NAME_SIZE, color=sheet.ink
        )
        if text != end.label:
            made.set_gid(sheet.named(f"name-{index}", end.label))
