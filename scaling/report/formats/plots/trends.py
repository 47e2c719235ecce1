"""Draws the same thing measured again and again: run after run."""

from __future__ import annotations

from itertools import groupby, pairwise

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from scaling.analysis.audit import WRONG
from scaling.report.figures.parts import Trend, Trends, Turn, shortened
from scaling.report.formats.plots.ends import (
    LABEL_WIDTH,
    NAME_SIZE,
    End,
    draw_dots,
    line_style,
    name_ends,
    say_mark,
)
from scaling.report.formats.plots.sheet import Sheet, label_width
from scaling.report.formats.plots.style import RED, color, shape

HEIGHT_IN = 3.0


def draw(sheet: Sheet, body: Trends) -> None:
    """Fill a sheet of `HEIGHT_IN`."""
    names = shortened(tuple(trend.label for trend in body.trends), LABEL_WIDTH)
    axes = sheet.axes(left=0.72, right=0.25 + label_width(names, NAME_SIZE), bottom=0.48, top=0.28)
    _scales(axes, body)
    for trend in body.trends:
        _trend(axes, trend, sheet)
    ends = (
        End(of.label, color(of.number, sheet.theme), of.turns[-1].at, of.turns[-1].value) for of in body.trends
    )
    name_ends(axes, list(ends), sheet)


def _scales(axes: Axes, body: Trends) -> None:
    """The upright axis begins near the lowest value: what is looked for is a change of some percent."""
    turns = [turn for trend in body.trends for turn in trend.turns]
    first, last = min(turn.at for turn in turns), max(turn.at for turn in turns)
    axes.set_xlim(first - 0.03 * (last - first) - 0.5, last + 0.03 * (last - first) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
    low, high = min(turn.value for turn in turns), max(turn.value for turn in turns)
    room = max(0.12 * (high - low), 0.04 * high)
    axes.set_ylim(max(0.0, low - room), high + room)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.set_xlabel(body.across)
    axes.set_ylabel(body.upright)
    axes.grid(visible=True, which="major")


def _trend(axes: Axes, trend: Trend, sheet: Sheet) -> None:
    """In as few strokes as its marks allow: there may be hundreds of runs."""
    hue = color(trend.number, sheet.theme)
    for (style, is_wrong), steps in groupby(pairwise(trend.turns), _stroke):
        if style is not None:
            path = [*(step := list(steps))[0][:1], *(after for _, after in step)]
            places, values = [turn.at for turn in path], [turn.value for turn in path]
            axes.plot(places, values, color=RED if is_wrong else hue, linewidth=1.1, linestyle=style)
    middle = sum(axes.get_xlim()) / 2
    for mark, turns in groupby(trend.turns, lambda turn: turn.mark):
        dots = [End(trend.label, hue, turn.at, turn.value) for turn in turns]
        draw_dots(axes, dots, mark, shape(trend.number))
        say_mark(axes, dots[0], mark, is_left=dots[0].at < middle)


def _stroke(step: tuple[Turn, Turn]) -> tuple[str | None, bool]:
    """The style of the line between two turns, and whether it is one to be warned of."""
    marks = (step[0].mark, step[1].mark)
    return line_style(*marks), bool(WRONG & set(marks))
