"""The sheet that figures are drawn on, and their look, independent of a user's matplotlibrc."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.textpath import text_to_path

from scaling.analysis.table import catalogue
from scaling.analysis.table.catalogue import mark_named
from scaling.analysis.table.rows import Mark
from scaling.report.figures.parts import shortened
from scaling.text import one_line

Theme = Literal["light", "dark", "page"]
# The ink of a page; svg.py turns it into `currentColor`.
CURRENT = "#010203"
INK: dict[Theme, str] = {"light": "#1b1f24", "dark": "#e6e9ee", "page": CURRENT}
PAPER: dict[Theme, str] = {"light": "#ffffff", "dark": "#14171c", "page": "none"}
# Distinguishable with colour blindness (Okabe & Ito, "Color Universal Design", 2008). The yellow is darkened for
# white paper; the eighth colour is the ink.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#a89b00")
BLUE, GREEN, RED, GREY = "#0072b2", "#009e73", "#d62828", "#8a8f98"
SHAPES = ("o", "s", "^", "D")
CAUSES = {cause.title: cause.color for cause in catalogue.CAUSES}
KINDS = {"exchange": "#0072b2", "solo": "#009e73", "each": "#a89b00", "together": "#e69f00", "comm": "#d55e00"}
FONT = "DejaVu Sans"
# The smallest text: 12 px on a page of two columns, 1280 px wide.
SMALL = 11.0
# One long line, below a figure alone.
FOOTING = 7


def edge(mark: Mark, hue: str) -> str:
    return RED if mark.is_wrong else GREY if mark.line is None else hue


def color(number: int, theme: Theme) -> str:
    return (*COLORS, INK[theme])[number % (len(COLORS) + 1)]


def shape(number: int) -> str:
    """Return the shape of a curve's dots; curves of one colour differ in it."""
    return SHAPES[(number + number // (len(COLORS) + 1)) % len(SHAPES)]


@contextmanager
def drawing(theme: Theme) -> Iterator[None]:
    """Use matplotlib's defaults with our settings, without warnings about signs that the font lacks."""
    ink = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
    paper = ("figure.facecolor", "savefig.facecolor")
    settings: Any = {
        "font.family": [FONT],
        "font.size": SMALL,
        "text.parse_math": False,
        "axes.facecolor": "none",
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.unicode_minus": True,
        "grid.alpha": 0.14,
        "grid.linewidth": 0.6,
        "svg.fonttype": "none",
        "svg.hashsalt": "scaling",
        "pdf.fonttype": 42,
        "path.simplify": False,
        **dict.fromkeys(ink, INK[theme]),
        **dict.fromkeys(paper, PAPER[theme]),
    }
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        yield


# ---------------------------------------------------------------- sheet
#
# Axes are placed in inches, so that all text is inside.


WIDTH_IN = 7.4
# Characters of a name; even with wide ones, the plot keeps its room.
MOST_SIGNS = 40
POINTS_PER_INCH = 72
LEGEND_COLUMNS = 4


class Sheet:
    """One figure's part of a drawing, `WIDTH_IN` x `height_in`. `titles`: texts of tooltips, by id."""

    def __init__(
        self, on: Figure | SubFigure, height_in: float, theme: Theme, top_in: float = 0.0, bottom_in: float = 0.0
    ) -> None:
        self.on, self.height_in, self.theme, self.ink = on, height_in, theme, INK[theme]
        self._top_in, self._bottom_in = top_in, bottom_in
        self.titles: dict[str, str] = {}

    def axes(self, *, left: float, right: float = 0.2, bottom: float, top: float) -> Axes:
        height = self.height_in
        size = (
            (WIDTH_IN - left - right) / WIDTH_IN,
            (height - bottom - self._bottom_in - top - self._top_in) / height,
        )
        made = self.on.add_axes((left / WIDTH_IN, (bottom + self._bottom_in) / height, *size))
        made.set_axisbelow(True)
        return made

    def lines(self, labels: Sequence[str], *, bottom: float, right: float = 0.2) -> Axes:
        """Return axes with names of lines at the left, the first on top."""
        axes = self.axes(left=label_width(labels), right=right, bottom=bottom, top=0.28)
        axes.set_yticks(range(len(labels)), shortened(tuple(labels), MOST_SIGNS))
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        return axes

    def legend(self, hues: Sequence[tuple[str, str]], spacing: float = 1.1) -> None:
        self.on.legend(
            handles=[Patch(facecolor=hue, label=text) for text, hue in hues],
            loc="lower center",
            ncols=min(len(hues), LEGEND_COLUMNS),
            frameon=False,
            fontsize=SMALL,
            handlelength=1.0,
            columnspacing=spacing,
            borderaxespad=0.15,
            bbox_to_anchor=(0.5, (0.06 + self._bottom_in) / self.height_in),
        )

    def heading(self, title: str) -> None:
        self.on.text(0.1 / WIDTH_IN, 1 - 0.24 / self.height_in, one_line(title), fontsize=13, weight="bold")

    def stamp(self, marks: Sequence[str], *, across: bool = False) -> None:
        """Write the serious marks at the top right, and one across the plot."""
        if marks:
            x, y = 1 - 0.1 / WIDTH_IN, 1 - (0.12 + self._top_in) / self.height_in
            look: dict[str, Any] = {"color": RED, "fontsize": SMALL, "weight": "bold"}
            self.on.text(x, y, " · ".join(marks), ha="right", va="center", **look)
        if across and (word := next((name for name in marks if mark_named(name).across), "")):
            faint: dict[str, Any] = {"color": GREY, "alpha": 0.22, "fontsize": 44, "rotation": 18}
            self.on.text(0.42, 0.5, word, ha="center", va="center", **faint)

    def footing(self, text: str) -> None:
        x, y = 0.1 / WIDTH_IN, 0.09 / self.height_in
        self.on.text(x, y, one_line(text), fontsize=FOOTING, alpha=0.75, va="center")

    def tooltip(self, text: str) -> str:
        """Keep a text for a tooltip; return the id that its drawing must have."""
        gid = f"tip-{len(self.titles)}"
        self.titles[gid] = text
        return gid


def label_width(labels: Sequence[str], size: float = SMALL) -> float:
    """Return the inches that names need, measured with the font."""
    font = FontProperties(family=FONT, size=size)
    cut = shortened(tuple(labels), MOST_SIGNS)
    widths = [text_to_path.get_text_width_height_descent(text, font, False)[0] for text in cut]
    return 0.22 + max(widths, default=0.0) / POINTS_PER_INCH


def apart(places: Sequence[float], least: float) -> list[float]:
    """Move places until neighbours are at least `least` apart; the order is kept."""
    found = list(places)
    order = sorted(range(len(places)), key=found.__getitem__)
    for _ in range(200):
        moved = False
        for one, other in pairwise(order):
            overlap = least - (found[other] - found[one])
            if overlap > 1e-9:
                found[one], found[other], moved = found[one] - overlap / 2, found[other] + overlap / 2, True
        if not moved:
            break
    return found
