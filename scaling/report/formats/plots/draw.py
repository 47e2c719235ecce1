"""Draw figures as SVG, PNG or PDF. Other formats use `for_page` and `alone`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO, StringIO
from itertools import groupby, pairwise
from typing import Any, Literal, NamedTuple
from xml.etree import ElementTree as ET

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from scaling.analysis.table.catalogue import mark_named
from scaling.report.figures.parts import (
    Bar,
    Bars,
    Cards,
    Carried,
    Curves,
    Figure,
    Heat,
    Lanes,
    Spreads,
    Strips,
    Trend,
    Trends,
    Turn,
    shortened,
)
from scaling.report.formats.plots import curves, fields
from scaling.report.formats.plots.curves import (
    LABEL_WIDTH,
    NAME_SIZE,
    RATES_IN,
    End,
    draw_dots,
    line_style,
    name_ends,
    say_mark,
)
from scaling.report.formats.plots.sheet import (
    CAUSES,
    CURRENT,
    GREY,
    MOST_SIGNS,
    RED,
    SMALL,
    WIDTH_IN,
    Sheet,
    Theme,
    color,
    drawing,
    grid_along_x,
    label_width,
    shape,
    upright_labels,
)
from scaling.text import decimals, one_line

# ---------------------------------------------------------------- svg
#
# A server's content policy may drop styles (Jenkins does), so they become attributes. The ink becomes
# `currentColor`, so that figures follow the page's theme.


SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
HREF = f"{{{XLINK}}}href"
# Two decimals of a pixel.
_NUMBER = re.compile(r"-?\d+\.\d+")
# A rectangle by its four corners.
_RECTANGLE = re.compile(r"M (\S+) (\S+) L (\S+) \2 L \3 (\S+) L \1 \4(?: L \1 \2)? z ?")
_NO_TURN = re.compile(r"rotate\(-?0 [^)]*\)")
_GEOMETRY = ("d", "transform", "x", "y", "width", "height", "points")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_DROPPED = {f"{{{SVG}}}metadata", f"{{{SVG}}}style"}
# Matplotlib's style sheet, as attributes of the root.
_EVERYWHERE = {"stroke-linejoin": "round", "stroke-linecap": "butt"}


def embedded(text: str, *, prefix: str, title: str, says: str, titles: Mapping[str, str]) -> str:
    """Return the SVG element for a page: without styles, with ids that begin with `prefix`. `title` and `says` are
    for screen readers. `titles`: whole names of names that are cut, by the id of their group."""
    root = ET.fromstring(_without_doctype(text))
    _tidy(root)
    referenced = _referenced(root)
    for element in root.iter():
        _attributes(element, prefix)
        if (gid := element.get("id")) in titles:
            element.insert(0, _text("title", titles[gid or ""]))
        if gid is not None and gid not in referenced:
            del element.attrib["id"]
        elif gid is not None:
            element.set("id", f"{prefix}-{gid}")
    _drop_undrawn(root)
    _unwrap(root)
    root.attrib = {
        "viewBox": root.get("viewBox", ""),
        "width": "100%",
        "role": "img",
        "aria-labelledby": f"{prefix}-title {prefix}-desc",
        **_EVERYWHERE,
    }
    for place, (name, said) in enumerate((("title", title), ("desc", says))):
        made = _text(name, said)
        made.set("id", f"{prefix}-{name}")
        root.insert(place, made)
    return _written(root)


def svg_alone(text: str, *, title: str, says: str) -> str:
    """Return the SVG as a file of its own, with its styles."""
    root = ET.fromstring(_without_doctype(text))
    for element in [one for one in root if one.tag == f"{{{SVG}}}metadata"]:
        root.remove(element)
    root.set("role", "img")
    for place, (name, said) in enumerate((("title", title), ("desc", says))):
        root.insert(place, _text(name, said))
    for element in root.iter():
        _rounded(element)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{_written(root)}\n'


def _without_doctype(text: str) -> str:
    return re.sub(r"<!DOCTYPE[^>]*>", "", text, count=1)


def _text(name: str, text: str) -> ET.Element:
    made = ET.Element(f"{{{SVG}}}{name}")
    made.text = one_line(text)
    return made


def _tidy(root: ET.Element) -> None:
    for parent in list(root.iter()):
        for element in [one for one in parent if one.tag in _DROPPED]:
            parent.remove(element)
        if len(parent):
            parent.text = None
        parent.tail = None


def _drop_undrawn(root: ET.Element) -> None:
    """Remove paths without filling and line: the paper of figure and axes."""
    for parent in list(root.iter()):
        if parent.tag not in (f"{{{SVG}}}defs", f"{{{SVG}}}clipPath"):
            for element in [one for one in parent if one.tag == f"{{{SVG}}}path" and _is_undrawn(one)]:
                parent.remove(element)


def _unwrap(parent: ET.Element) -> None:
    """Replace groups without attributes and title by their children."""
    children: list[ET.Element] = []
    for child in list(parent):
        _unwrap(child)
        is_empty = child.tag == f"{{{SVG}}}g" and not child.attrib and child.find(f"{{{SVG}}}title") is None
        children += list(child) if is_empty else [child]
    parent[:] = children


def _is_undrawn(path: ET.Element) -> bool:
    return path.get("fill") == "none" and path.get("stroke", "none") == "none"


def _referenced(root: ET.Element) -> set[str]:
    found = {element.get(HREF, "").removeprefix("#") for element in root.iter()}
    for element in root.iter():
        for value in element.attrib.values():
            found.update(_REFERENCE.findall(value))
    return found - {""}


def _attributes(element: ET.Element, prefix: str) -> None:
    """Turn styles into attributes, rename ids, round numbers."""
    for declaration in (element.attrib.pop("style", "")).split(";"):
        name, _, value = declaration.partition(":")
        if value:
            _declare(element, name.strip(), value.strip())
    for name, value in list(element.attrib.items()):
        if name == HREF:
            del element.attrib[name]
            element.set("href", f"#{prefix}-{value.removeprefix('#')}")
        elif "url(#" in value:
            element.set(name, _REFERENCE.sub(rf"url(#{prefix}-\1)", value))
        elif value == CURRENT:
            element.set(name, "currentColor")
    _rounded(element)


def _declare(element: ET.Element, name: str, value: str) -> None:
    """Set a declaration of a style as an attribute; `font` is split."""
    if name != "font":
        element.set(name, value)
        return
    found = re.fullmatch(r"(?:(?:normal|(italic|oblique)|(bold|\d{3})) )*([\d.]+)px (.+)", value)
    if found:
        weight = "bold" if re.search(r"\b(bold|[6-9]00)\b", value) else ""
        element.attrib.update({"font-size": found[3], "font-family": found[4]})
        if weight:
            element.set("font-weight", weight)


def _rounded(element: ET.Element) -> None:
    for name in _GEOMETRY:
        if (value := element.get(name)) is not None:
            short = _NUMBER.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value)
            short = _RECTANGLE.sub(r"M\1 \2H\3V\4H\1z", " ".join(_NO_TURN.sub("", short).split()))
            element.set(name, short)
            if not short:
                del element.attrib[name]


def _written(root: ET.Element) -> str:
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", XLINK)
    return ET.tostring(root, encoding="unicode")


# ---------------------------------------------------------------- trends


TREND_HEIGHT_IN = 3.0


def draw_trends(sheet: Sheet, body: Trends) -> None:
    names = shortened(tuple(trend.label for trend in body.trends), LABEL_WIDTH)
    axes = sheet.axes(left=RATES_IN, right=0.25 + label_width(names, NAME_SIZE), bottom=0.52, top=0.28)
    _scales(axes, body)
    for trend in body.trends:
        _trend(axes, trend, sheet)
    ends = (
        End(of.label, color(of.number, sheet.theme), of.turns[-1].at, of.turns[-1].value) for of in body.trends
    )
    name_ends(axes, list(ends), sheet)


def _scales(axes: Axes, body: Trends) -> None:
    """The vertical axis starts near the lowest value, since changes are a few percent."""
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
    """Draw equal strokes as one path, since there may be hundreds of runs."""
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
    marks = (step[0].mark, step[1].mark)
    return line_style(*marks), any(mark_named(mark).is_wrong for mark in marks)


# ---------------------------------------------------------------- bars: loss, rounds, cards


LINE_IN = 0.25
LEGEND_IN = 0.26


def lines_height(count: int) -> float:
    """Return the height in inches of a figure with this many lines."""
    return 1.05 + LINE_IN * max(count, 3)


LEGEND_COLUMNS = 4


def _legend_in(body: Bars) -> float:
    return LEGEND_IN * -(-len(body.names) // LEGEND_COLUMNS)


def bars_height(body: Bars) -> float:
    """Return the height in inches, with the legend."""
    return lines_height(len(body.bars)) + _legend_in(body)


def draw_bars(sheet: Sheet, body: Bars) -> None:
    """Draw positive parts to the right of zero, one after the other, negative ones to the left."""
    labels = [bar.label for bar in body.bars]
    left, right = label_width(labels), 0.25
    axes = sheet.axes(left=left, bottom=0.55 + _legend_in(body), top=0.28, right=right)
    upright_labels(axes, labels)
    axes.set_xlim(_ends(body, WIDTH_IN - left - right))
    hues = [CAUSES.get(name, GREY) for name in body.names]
    for at, bar in enumerate(body.bars):
        _bar(axes, at, bar, list(zip(body.names, hues, strict=True)), sheet)
    axes.set_xlabel("% of a step that is lost")
    axes.axvline(0, color=sheet.ink, linewidth=0.6)
    grid_along_x(axes)
    handles = [Patch(facecolor=hue, label=name) for name, hue in zip(body.names, hues, strict=True)]
    sheet.on.legend(
        handles=handles, loc="lower center", ncols=min(len(handles), LEGEND_COLUMNS), frameon=False,
        fontsize=SMALL, handlelength=1.0, columnspacing=1.2, borderaxespad=0.15,
        bbox_to_anchor=(0.5, (0.06 + sheet.bottom_in) / sheet.height_in),
    )  # fmt: skip


def _ends(body: Bars, width_in: float) -> tuple[float, float]:
    """Return the ends of an axis of `width_in` that has room for the bars and the texts behind them."""
    spans = [_span(bar) for bar in body.bars]
    low = 1.08 * min(0.0, *(span[0] for span in spans))
    texts = [label_width([_beside(bar)]) for bar in body.bars]
    shares = [max(0.3, 1 - text / width_in) for text in texts]
    return low, low + max(1.0, *((span[1] - low) / share for span, share in zip(spans, shares, strict=True)))


def _span(bar: Bar) -> tuple[float, float]:
    known = [part for part in bar.parts if part is not None]
    return sum(part for part in known if part < 0), sum(part for part in known if part > 0)


def _beside(bar: Bar) -> str:
    """Return the text behind a bar: its sum, or why it has none, and the mark of a wrong row."""
    total = f"{sum(_span(bar)):.1f} %" if bar.parts else ""
    mark = bar.mark if mark_named(bar.mark).is_wrong else ""
    return shortened((" ".join(filter(None, (bar.says or total, mark))),), MOST_SIGNS)[0]


def _bar(axes: Axes, at: int, bar: Bar, causes: Sequence[tuple[str, str]], sheet: Sheet) -> None:
    right, left = 0.0, 0.0
    for part, (name, hue) in zip(bar.parts, causes, strict=False):
        if not part:
            continue
        start = right if part > 0 else left
        (drawn,) = axes.barh(at, part, left=start, height=0.72, color=hue, edgecolor=_edge(bar), linewidth=0.9)
        drawn.set_gid(sheet.tooltip(f"{bar.label}: {name} {part:.1f} %"))
        right, left = (right + part, left) if part > 0 else (right, left + part)
    is_bad = mark_named(bar.mark).is_wrong or bar.mark == "FAILED"
    axes.annotate(
        _beside(bar), (right, at), xytext=(5, 0), textcoords="offset points", fontsize=SMALL, va="center",
        color=RED if is_bad else GREY if bar.says else sheet.ink,
    )  # fmt: skip


def _edge(bar: Bar) -> str:
    return RED if mark_named(bar.mark).is_wrong else "none"


def draw_spreads(sheet: Sheet, body: Spreads) -> None:
    labels = [one.label for one in body.spreads]
    axes = sheet.axes(left=label_width(labels), bottom=0.5, top=0.28)
    upright_labels(axes, labels)
    for at, one in enumerate(body.spreads):
        mark = mark_named(one.mark)
        (dots,) = axes.plot(
            one.values, [at] * len(one.values), marker="o", markersize=4.5, linestyle="", alpha=0.85,
            markerfacecolor="none" if mark.hollow else "#0072b2",
            markeredgecolor=RED if mark.is_wrong else "#0072b2",
        )  # fmt: skip
        dots.set_gid(sheet.tooltip(f"{one.label}: {', '.join(f'{value:.1f} %' for value in one.values)}"))
        if len(one.values) > 1:
            axes.plot((min(one.values), max(one.values)), (at, at), color="#0072b2", linewidth=0.8, alpha=0.6)
    most = max((abs(value) for one in body.spreads for value in one.values), default=0.0)
    axes.set_xlim(-max(most, 0.5) * 1.1, max(most, 0.5) * 1.1)
    axes.axvline(0, color=sheet.ink, alpha=0.6, linewidth=0.8)
    axes.set_xlabel("% off the row's mean")
    grid_along_x(axes)


def draw_cards(sheet: Sheet, body: Cards) -> None:
    labels = [f"{one.label}  {one.card}" for one in body.carried]
    axes = sheet.axes(left=label_width(labels), bottom=0.5, top=0.28)
    upright_labels(axes, labels)
    for at, one in enumerate(body.carried):
        _carried(axes, at, one, sheet, body.unit)
    highest = max((max(one.sent, one.most or 0.0) for one in body.carried), default=1.0)
    axes.set_xlim(0, highest * 1.06 or 1.0)
    axes.set_xlabel(f"{body.unit} sent, all rounds; tick: what must be sent")
    grid_along_x(axes)


def _carried(axes: Axes, at: int, one: Carried, sheet: Sheet, unit: str) -> None:
    (drawn,) = axes.barh(at, one.sent, height=0.6, color="#009e73" if one.wanted else RED)
    drawn.set_gid(sheet.tooltip(f"{one.label} {one.card}: {one.sent:,.{decimals(one.sent)}f} {unit}"))
    if one.least is not None and one.most is not None:
        for end in {one.least, one.most}:
            axes.plot((end, end), (at - 0.42, at + 0.42), color=sheet.ink, linewidth=1.6)
    if not one.wanted:
        axes.text(one.sent, at, " not asked for ", color="#ffffff", fontsize=SMALL, va="center", ha="right")


# ---------------------------------------------------------------- draw

Kind = Literal["svg", "png", "pdf"]
# Height of heading and footing, which only a figure alone has.
HEADING_IN, FOOTING_IN = 0.4, 0.2
DOTS_PER_INCH = 100


class Drawer(NamedTuple):
    draw: Callable[[Sheet, Any], None]
    height_in: Callable[[Any], float]


DRAWERS: dict[type, Drawer] = {
    Curves: Drawer(curves.draw, lambda _: curves.HEIGHT_IN),
    Trends: Drawer(draw_trends, lambda _: TREND_HEIGHT_IN),
    Bars: Drawer(draw_bars, bars_height),
    Spreads: Drawer(draw_spreads, lambda body: lines_height(len(body.spreads))),
    Cards: Drawer(draw_cards, lambda body: lines_height(len(body.carried))),
    Heat: Drawer(fields.draw_heat, fields.heat_height),
    Strips: Drawer(fields.draw_strips, fields.strips_height),
    Lanes: Drawer(fields.draw_lanes, fields.lanes_height),
}


def for_page(figure: Figure, prefix: str) -> str:
    """Return an SVG element in the ink of the page; ids begin with `prefix`."""
    drawer = DRAWERS[type(figure.body)]
    height = drawer.height_in(figure.body)
    with drawing("page"):
        on = Drawing(figsize=(WIDTH_IN, height))
        sheet = Sheet(on, height, "page")
        _fill(sheet, drawer, figure)
        text = _svg(on)
    return embedded(text, prefix=prefix, title=figure.title, says=figure.says, titles=sheet.titles)


def alone(figures: Sequence[Figure], kind: Kind, footing: str, *, theme: Theme, scale: float) -> bytes:
    """Return a file with the figures of one name below each other. Each has its heading, and `footing`, which
    names the run. PNG has `scale` x 100 dots per inch."""
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
        return svg_alone(_svg(on), title=title, says="; ".join(figure.says for figure in figures)).encode()
    out = BytesIO()
    if kind == "png":
        on.set_dpi(DOTS_PER_INCH * scale)
        FigureCanvasAgg(on).print_png(out, metadata={"Software": None, "Title": _latin(title)})
    else:
        dates: dict[str, Any] = {"CreationDate": None, "Title": title}
        FigureCanvasPdf(on).print_pdf(out, metadata=dates)
    return out.getvalue()


def _latin(text: str) -> str:
    """Texts in PNG are Latin-1."""
    return text.encode("latin-1", "replace").decode("latin-1")
