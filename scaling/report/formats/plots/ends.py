"""Dots, the lines between them and the names at their ends, as marks want them: of curves and of trends."""

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
# As a part of the height: two names at line ends.
NAMES_APART = 0.052


class End(NamedTuple):
    """A dot, or the end of a line: what is named there, in which colour."""

    label: str
    hue: str
    at: float
    value: float


def line_style(*marks: str) -> str | None:
    """Of the line between two dots of these marks; None where there is none."""
    styles = [mark_named(mark).line for mark in marks]
    return None if None in styles else next((style for style in styles if style != "-"), "-")


def draw_dots(axes: Axes, dots: Sequence[End], word: str, marker: str) -> None:
    """Dots of one line that have the same mark."""
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
    """Beside a dot, where its mark is one to be said; `is_left`: in the half of the plot that has room."""
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
    """Right of the axes, pushed apart, with a thread from each name to its end."""
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
