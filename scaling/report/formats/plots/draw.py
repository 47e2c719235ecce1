"""Figures -> SVG, PNG or PDF. The only way in for other formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO, StringIO
from typing import Any, Literal, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing

from scaling.report.figures.parts import Bars, Body, Cards, Curves, Figure, Heat, Lanes, Spreads, Strips, Trends
from scaling.report.formats.plots import bars, curves, fields, svg, trends
from scaling.report.formats.plots.sheet import WIDTH_IN, Sheet
from scaling.report.formats.plots.style import Theme, drawing

Kind = Literal["svg", "png", "pdf"]
# Room for the heading and the footing of a figure that stands alone.
HEADING_IN, FOOTING_IN = 0.4, 0.2
DOTS_PER_INCH = 100


class Drawer(NamedTuple):
    """How one kind of body is drawn, and how high."""

    draw: Callable[[Sheet, Any], None]
    height_in: Callable[[Any], float]


DRAWERS: dict[type, Drawer] = {
    Curves: Drawer(curves.draw, lambda _: curves.HEIGHT_IN),
    Trends: Drawer(trends.draw, lambda _: trends.HEIGHT_IN),
    Bars: Drawer(bars.draw_bars, bars.bars_height),
    Spreads: Drawer(bars.draw_spreads, lambda body: bars.lines_height(len(body.spreads))),
    Cards: Drawer(bars.draw_cards, lambda body: bars.lines_height(len(body.carried))),
    Heat: Drawer(fields.draw_heat, fields.heat_height),
    Strips: Drawer(fields.draw_strips, fields.strips_height),
    Lanes: Drawer(fields.draw_lanes, fields.lanes_height),
}


def for_page(figure: Figure, prefix: str) -> str:
    """An SVG element whose ink is that of the page; `prefix` begins its ids."""
    drawer = DRAWERS[type(figure.body)]
    height = drawer.height_in(figure.body)
    with drawing("page"):
        on = Drawing(figsize=(WIDTH_IN, height))
        sheet = Sheet(on, height, "page")
        _fill(sheet, drawer, figure)
        text = _svg(on)
    return svg.embedded(text, prefix=prefix, title=figure.title, says=figure.says, titles=sheet.titles)


def alone(figures: Sequence[Figure], kind: Kind, footing: str, *, theme: Theme, scale: float) -> bytes:
    """Figures of one name below each other as a file, each with its heading and `footing`, which says whose they
    are. PNG has `scale` x 100 dots to the inch."""
    drawers = [DRAWERS[type(figure.body)] for figure in figures]
    heights = [
        drawer.height_in(figure.body) + HEADING_IN + FOOTING_IN
        for drawer, figure in zip(drawers, figures, strict=True)
    ]
    with drawing(theme):
        on = Drawing(figsize=(WIDTH_IN, sum(heights)))
        parts = on.subfigures(len(figures), 1, height_ratios=heights, squeeze=False).flat
        for part, drawer, figure, height in zip(parts, drawers, figures, heights, strict=True):
            sheet = Sheet(part, height, theme, top_in=HEADING_IN, bottom_in=FOOTING_IN)
            sheet.heading(figure.title)
            _fill(sheet, drawer, figure)
            sheet.footing(f"{footing}{f' ({figure.left_out})' if figure.left_out else ''}")
        return _file(on, kind, figures, scale)


def _fill(sheet: Sheet, drawer: Drawer, figure: Figure) -> None:
    drawer.draw(sheet, figure.body)
    sheet.stamp(figure.stamps, across=isinstance(figure.body, Curves | Trends))


def _svg(on: Drawing) -> str:
    out = StringIO()
    FigureCanvasSVG(on).print_svg(out, metadata={"Date": None})
    return out.getvalue()


def _file(on: Drawing, kind: Kind, figures: Sequence[Figure], scale: float) -> bytes:
    title = "; ".join(figure.title for figure in figures)
    if kind == "svg":
        return svg.alone(_svg(on), title=title, says="; ".join(figure.says for figure in figures)).encode()
    out = BytesIO()
    if kind == "png":
        on.set_dpi(DOTS_PER_INCH * scale)
        FigureCanvasAgg(on).print_png(out, metadata={"Software": None, "Title": _latin(title)})
    else:
        dates: dict[str, Any] = {"CreationDate": None, "Title": title}
        FigureCanvasPdf(on).print_pdf(out, metadata=dates)
    return out.getvalue()


def _latin(text: str) -> str:
    """PNG's texts are Latin-1."""
    return text.encode("latin-1", "replace").decode("latin-1")


def height_of(body: Body) -> float:
    """Inches of a figure on a page."""
    return DRAWERS[type(body)].height_in(body)
