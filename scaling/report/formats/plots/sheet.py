"""The sheet that figures are drawn on, and their look, independent of a user's matplotlibrc."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Literal, NamedTuple

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
# The ink of a page; draw.py turns it into `currentColor`.
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


POINTS_PER_INCH = 72


class Format(NamedTuple):
    """The width of a sheet, the columns of its legend, and the characters of a name beside a line.

    In a narrow one the names of lines are above them, and those of curves are below the plot.
    """

    width_in: float
    legend_columns: int
    beside_signs: int
    is_narrow: bool


WIDE = Format(7.4, 4, 40, False)
# A phone of 390 px shows its texts with 11 px, a column of 3.5 inches with 8.5 points.
NARROW = Format(4.5, 2, 18, True)
COLUMN_IN = 3.5
# Room above a line for its name, as a part of the line.
ABOVE = 0.4


class Sheet:
    """One figure's part of a drawing, `format.width_in` x `height_in`. `titles`: texts of tooltips, by id."""

    def __init__(
        self,
        on: Figure | SubFigure,
        height_in: float,
        theme: Theme,
        of: Format = WIDE,
        top_in: float = 0.0,
        bottom_in: float = 0.0,
    ) -> None:
        self.on, self.height_in, self.theme, self.ink, self.format = on, height_in, theme, INK[theme], of
        self._top_in, self._bottom_in = top_in, bottom_in
        self.titles: dict[str, str] = {}

    @property
    def thick(self) -> float:
        """The height of bars, as a part of that on a wide sheet."""
        return 0.55 if self.format.is_narrow else 1.0

    def axes(self, *, left: float, right: float = 0.2, bottom: float, top: float) -> Axes:
        height, width = self.height_in, self.format.width_in
        size = (
            (width - left - right) / width,
            (height - bottom - self._bottom_in - top - self._top_in) / height,
        )
        made = self.on.add_axes((left / width, (bottom + self._bottom_in) / height, *size))
        made.set_axisbelow(True)
        return made

    def left_in(self, labels: Sequence[str], *, above: bool = True) -> float:
        """Return the room left of lines with these names."""
        is_above = above and self.format.is_narrow
        return 0.25 if is_above else label_width(labels, most=self.format.beside_signs)

    def lines(self, labels: Sequence[str], *, bottom: float, right: float = 0.2, above: bool = True) -> Axes:
        """Return axes with names of lines, the first on top; `above`: a narrow sheet has them above the lines."""
        axes = self.axes(left=self.left_in(labels, above=above), right=right, bottom=bottom, top=0.28)
        if above and self.format.is_narrow:
            axes.set_yticks([])
            place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
            for at, name in enumerate(fitting(labels, self.format.width_in - 0.3)):
                axes.text(0.01, at - ABOVE, name, **place)
            axes.set_ylim(len(labels) - 0.6, -0.75)
        else:
            axes.set_yticks(range(len(labels)), shortened(tuple(labels), self.format.beside_signs))
            axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        return axes

    def legend(self, handles: list[Any], columns: int, corner: Any, x: float, y_in: float, **look: float) -> None:
        """Write a legend with its `corner` at a part of the width, and at inches above the sheet's end."""
        look |= {"fontsize": SMALL, "borderaxespad": 0.15}
        at = (x, y_in / self.height_in)
        self.on.legend(handles=handles, loc=corner, ncols=columns, frameon=False, bbox_to_anchor=at, **look)

    def hues(self, hues: Sequence[tuple[str, str]], spacing: float = 1.1) -> None:
        """Write a legend of coloured boxes at the end of the sheet."""
        boxes, columns = [Patch(facecolor=hue, label=text) for text, hue in hues], self.format.legend_columns
        y_in, look = 0.06 + self._bottom_in, {"handlelength": 1.0, "columnspacing": spacing}
        self.legend(boxes, min(len(hues), columns), "lower center", 0.5, y_in, **look)

    def heading(self, title: str) -> None:
        self.on.text(
            0.1 / self.format.width_in, 1 - 0.24 / self.height_in, one_line(title), fontsize=13, weight="bold"
        )

    def stamp(self, marks: Sequence[str], *, across: bool = False) -> None:
        """Write the serious marks at the top right, and one across the plot."""
        if marks:
            x, y = 1 - 0.1 / self.format.width_in, 1 - (0.12 + self._top_in) / self.height_in
            look: dict[str, Any] = {"color": RED, "fontsize": SMALL, "weight": "bold"}
            self.on.text(x, y, " · ".join(marks), ha="right", va="center", **look)
        if across and (word := next((name for name in marks if mark_named(name).across), "")):
            faint: dict[str, Any] = {"color": GREY, "alpha": 0.22, "fontsize": 44, "rotation": 18}
            self.on.text(0.42, 0.5, word, ha="center", va="center", **faint)

    def footing(self, text: str) -> None:
        x, y = 0.1 / self.format.width_in, 0.09 / self.height_in
        self.on.text(x, y, one_line(text), fontsize=FOOTING, alpha=0.75, va="center")

    def tooltip(self, text: str) -> str:
        """Keep a text for a tooltip; return the id that its drawing must have."""
        gid = f"tip-{len(self.titles)}"
        self.titles[gid] = text
        return gid


def label_width(labels: Sequence[str], size: float = SMALL, most: int = WIDE.beside_signs) -> float:
    """Return the inches that names need, measured with the font."""
    font = FontProperties(family=FONT, size=size)
    cut = shortened(tuple(labels), most)
    widths = [text_to_path.get_text_width_height_descent(text, font, False)[0] for text in cut]
    return 0.22 + max(widths, default=0.0) / POINTS_PER_INCH


def fitting(labels: Sequence[str], width_in: float) -> Sequence[str]:
    """Return names, shortened until the longest fits."""
    most = max(map(len, labels), default=0)
    while most > 1 and label_width(labels, most=most) > width_in:
        most -= 1
    return shortened(tuple(labels), most)


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
