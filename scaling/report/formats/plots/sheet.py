"""The sheet that figures are drawn on, and their look, independent of a user's matplotlibrc."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from scaling.analysis.table import catalogue
from scaling.analysis.table.catalogue import mark_named
from scaling.analysis.table.rows import Mark
from scaling.report.figures.parts import shortened
from scaling.text import one_line

Theme = Literal["light", "dark", "page"]
# The ink of a page; draw.py turns it into `currentColor`.
CURRENT = "#010203"
INK: dict[Theme, str] = {"light": "#1b1f24", "dark": "#e6e9ee", "page": CURRENT}
PAPER: dict[Theme, str] = {"light": "#ffffff", "dark": "#14171c", "page": "none"}
# Distinguishable with colour blindness (Okabe & Ito, "Color Universal Design", 2008). The yellow is darkened for
# white paper; the eighth colour is the ink.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#a89b00")
SHAPES = ("o", "s", "^", "D")
RED = "#d62828"
GREY = "#8a8f98"
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
    at = number % (len(COLORS) + 1)
    return COLORS[at] if at < len(COLORS) else INK[theme]


def shape(number: int) -> str:
    """Return the shape of a curve's dots; curves of one colour differ in it."""
    return SHAPES[(number + number // (len(COLORS) + 1)) % len(SHAPES)]


def _settings(theme: Theme) -> dict[str, Any]:
    ink = INK[theme]
    return {
        "font.family": [FONT],
        "font.size": SMALL,
        "text.parse_math": False,
        "text.color": ink,
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "axes.facecolor": "none",
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.unicode_minus": True,
        "xtick.color": ink,
        "ytick.color": ink,
        "grid.color": ink,
        "grid.alpha": 0.14,
        "grid.linewidth": 0.6,
        "figure.facecolor": PAPER[theme],
        "savefig.facecolor": PAPER[theme],
        "svg.fonttype": "none",
        "svg.hashsalt": "scaling",
        "pdf.fonttype": 42,
        "path.simplify": False,
    }


@contextmanager
def drawing(theme: Theme) -> Iterator[None]:
    """Use matplotlib's defaults with our settings, without warnings about signs that the font lacks."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        matplotlib.rcdefaults()
        settings: Any = _settings(theme)
        matplotlib.rcParams.update(settings)
        yield


# ---------------------------------------------------------------- sheet
#
# Axes are placed in inches, so that all text is inside.


WIDTH_IN = 7.4
# Characters of a name; even with wide ones, the plot keeps its room.
MOST_SIGNS = 40
POINTS_PER_INCH = 72


class Sheet:
    """One figure's part of a drawing, `WIDTH_IN` x `height_in`."""

    def __init__(
        self,
        on: Figure | SubFigure,
        height_in: float,
        theme: Theme,
        *,
        top_in: float = 0.0,
        bottom_in: float = 0.0,
    ) -> None:
        self.on = on
        self.height_in = height_in
        self.theme = theme
        self.ink = INK[theme]
        self._top_in = top_in
        self.bottom_in = bottom_in
        self.titles: dict[str, str] = {}

    def axes(self, *, left: float = 0.7, right: float = 0.2, bottom: float = 0.5, top: float = 0.25) -> Axes:
        height = self.height_in
        made = self.on.add_axes(
            (
                left / WIDTH_IN,
                (bottom + self.bottom_in) / height,
                (WIDTH_IN - left - right) / WIDTH_IN,
                (height - bottom - self.bottom_in - top - self._top_in) / height,
            )
        )
        made.set_axisbelow(True)
        return made

    def heading(self, title: str) -> None:
        self.on.text(0.1 / WIDTH_IN, 1 - 0.24 / self.height_in, one_line(title), fontsize=13, weight="bold")

    def stamp(self, marks: Sequence[str], *, across: bool = False) -> None:
        """Write the serious marks at the top right, and one across the plot."""
        if marks:
            at = 1 - (0.12 + self._top_in) / self.height_in
            self.on.text(
                1 - 0.1 / WIDTH_IN,
                at,
                " · ".join(marks),
                color=RED,
                ha="right",
                va="center",
                fontsize=SMALL,
                weight="bold",
            )
        if across and (word := next((name for name in marks if mark_named(name).across), "")):
            self.on.text(
                0.42, 0.5, word, color=GREY, alpha=0.22, fontsize=44, rotation=18, ha="center", va="center"
            )

    def footing(self, text: str) -> None:
        self.on.text(
            0.1 / WIDTH_IN, 0.09 / self.height_in, one_line(text), fontsize=FOOTING, alpha=0.75, va="center"
        )

    def tooltip(self, text: str) -> str:
        """Keep a text for a tooltip; return the id that its drawing must have."""
        gid = f"tip-{len(self.titles)}"
        self.titles[gid] = text
        return gid


def upright_labels(axes: Axes, labels: Sequence[str]) -> None:
    """Write names of lines left of the axes, the first on top."""
    axes.set_yticks(range(len(labels)), shortened(tuple(labels), MOST_SIGNS))
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def label_width(labels: Sequence[str], size: float = SMALL) -> float:
    """Return the inches that names need, measured with the font."""
    font = FontProperties(family=FONT, size=size)
    cut = shortened(tuple(labels), MOST_SIGNS)
    widths = [text_to_path.get_text_width_height_descent(text, font, False)[0] for text in cut]
    return 0.22 + max(widths, default=0.0) / POINTS_PER_INCH


def grid_along_x(axes: Axes) -> None:
    axes.grid(visible=True, axis="x")


def apart(places: Sequence[float], least: float) -> list[float]:
    """Move places until neighbours are at least `least` apart; the order is kept."""
    order = sorted(range(len(places)), key=lambda at: places[at])
    found = [places[at] for at in order]
    for _ in range(200):
        moved = False
        for at in range(len(found) - 1):
            overlap = least - (found[at + 1] - found[at])
            if overlap > 1e-9:
                found[at] -= overlap / 2
                found[at + 1] += overlap / 2
                moved = True
        if not moved:
            break
    result = [0.0] * len(places)
    for at, place in zip(order, found, strict=True):
        result[at] = place
    return result
