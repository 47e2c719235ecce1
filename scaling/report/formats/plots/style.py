"""How figures look: colours, shapes, marks, and matplotlib's settings, whatever a user's matplotlibrc says."""

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
# On the page they follow its theme: draw.py turns this into `currentColor`.
CURRENT = "#010203"
INK: dict[Theme, str] = {"light": "#1b1f24", "dark": "#e6e9ee", "page": CURRENT}
PAPER: dict[Theme, str] = {"light": "#ffffff", "dark": "#14171c", "page": "none"}
# Eight that people with colour blindness can tell apart (Okabe & Ito, "Color Universal Design", 2008), its yellow
# darkened to be seen on white; the eighth is the ink.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#a89b00")
SHAPES = ("o", "s", "^", "D")
RED = "#d62828"
GREY = "#8a8f98"
# Efficiency, then the causes of loss by title.
EFFICIENT = "#009e73"
CAUSES = {cause.title: cause.color for cause in catalogue.CAUSES}
KINDS = {"exchange": "#0072b2", "solo": "#009e73", "each": "#a89b00", "together": "#e69f00", "comm": "#d55e00"}
FONT = "DejaVu Sans"


def edge(mark: Mark, hue: str) -> str:
    """The edge of a marked row's dots."""
    return RED if mark.is_wrong else GREY if mark.line is None else hue


def color(number: int, theme: Theme) -> str:
    """Of a curve."""
    at = number % (len(COLORS) + 1)
    return COLORS[at] if at < len(COLORS) else INK[theme]


def shape(number: int) -> str:
    """Of a curve's dots: curves of one colour differ in it."""
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
    """Matplotlib's own defaults with ours, and quiet: names may have signs that its font lacks."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        matplotlib.rcdefaults()
        settings: Any = _settings(theme)
        matplotlib.rcParams.update(settings)
        yield
