"""The look of figures: colours, shapes and matplotlib's settings, independent of a user's matplotlibrc."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib

from scaling.analysis.table import catalogue
from scaling.analysis.table.entries import Mark

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
EFFICIENT = "#009e73"
CAUSES = {cause.title: cause.color for cause in catalogue.CAUSES}
KINDS = {"exchange": "#0072b2", "solo": "#009e73", "each": "#a89b00", "together": "#e69f00", "comm": "#d55e00"}
FONT = "DejaVu Sans"


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
        "font.size": 9.0,
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
