"""Draw figures as SVG, PNG or PDF. A page uses `for_page`, `--figure` uses `render`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from io import BytesIO, StringIO
from itertools import groupby
from typing import Any, Literal
from xml.etree import ElementTree as ET

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from scaling.analysis.table.catalogue import mark_named
from scaling.errors import UsageError
from scaling.report.figures import FIGURES
from scaling.report.figures.parts import (
    Bar,
    Bars,
    Cards,
    Curves,
    Figure,
    Heat,
    Lanes,
    Spreads,
    Strip,
    Strips,
    Trends,
    shortened,
)
from scaling.report.formats.plots import curves
from scaling.report.formats.plots.sheet import (
    BLUE,
    CAUSES,
    COLUMN_IN,
    CURRENT,
    GREEN,
    GREY,
    KINDS,
    NARROW,
    RED,
    SMALL,
    WIDE,
    Format,
    Sheet,
    Theme,
    drawing,
    label_width,
)
from scaling.report.material import Material
from scaling.text import decimals, one_line

# ---------------------------------------------------------------- bars: loss, rounds, cards


def _lines_height(count: int, of: Format) -> float:
    return 1.05 + (0.48 * max(count, 2) if of.is_narrow else 0.25 * max(count, 3))


def _legend_in(names: Sequence[str], of: Format) -> float:
    return 0.26 * -(-len(names) // of.legend_columns)


def draw_bars(sheet: Sheet, body: Bars) -> None:
    """Draw positive parts to the right of zero, one after the other, negative ones to the left."""
    labels = [bar.label for bar in body.bars]
    axes = sheet.lines(labels, bottom=0.55 + _legend_in(body.names, sheet.format), right=0.25)
    axes.set_xlim(_ends(body, sheet.format.width_in - sheet.left_in(labels) - 0.25))
    causes = [(name, CAUSES.get(name, GREY)) for name in body.names]
    for at, bar in enumerate(body.bars):
        wrong, right, left = mark_named(bar.mark).is_wrong, 0.0, 0.0
        for part, (name, hue) in zip(bar.parts, causes, strict=False):
            if part:
                start = right if part > 0 else left
                look: dict[str, Any] = {"color": hue, "edgecolor": RED if wrong else "none", "linewidth": 0.9}
                (drawn,) = axes.barh(at, part, left=start, height=0.72 * sheet.thick, **look)
                drawn.set_gid(sheet.tooltip(f"{bar.label}: {name} {part:.1f} %"))
                right, left = (right + part, left) if part > 0 else (right, left + part)
        hue = RED if wrong or bar.mark == "FAILED" else GREY if bar.says else sheet.ink
        beside: dict[str, Any] = {"textcoords": "offset points", "fontsize": SMALL, "va": "center", "color": hue}
        axes.annotate(_beside(bar), (right, at), xytext=(5, 0), **beside)
    axes.set_xlabel("% of a step that is lost")
    axes.axvline(0, color=sheet.ink, linewidth=0.6)
    axes.grid(visible=True, axis="x")
    sheet.hues(causes, spacing=1.2)


def _ends(body: Bars, width_in: float) -> tuple[float, float]:
    """Return the ends of an axis of `width_in` that has room for the bars and the texts behind them."""
    low = 1.08 * min(0.0, *(_span(bar)[0] for bar in body.bars))
    shares = (max(0.3, 1 - label_width([_beside(bar)]) / width_in) for bar in body.bars)
    return low, low + max(1.0, *((_span(bar)[1] - low) / of for bar, of in zip(body.bars, shares, strict=True)))


def _span(bar: Bar) -> tuple[float, float]:
    known = [part for part in bar.parts if part is not None]
    return sum(part for part in known if part < 0), sum(part for part in known if part > 0)


def _beside(bar: Bar) -> str:
    """Return the text behind a bar: its sum, or why it has none, and the mark of a wrong row."""
    total = f"{sum(_span(bar)):.1f} %" if bar.parts else ""
    mark = bar.mark if mark_named(bar.mark).is_wrong else ""
    return shortened((" ".join(filter(None, (bar.says or total, mark))),), WIDE.beside_signs)[0]


def draw_spreads(sheet: Sheet, body: Spreads) -> None:
    axes = sheet.lines([one.label for one in body.spreads], bottom=0.5)
    for at, one in enumerate(body.spreads):
        mark, values = mark_named(one.mark), one.values
        hues = {
            "markerfacecolor": "none" if mark.hollow else BLUE,
            "markeredgecolor": RED if mark.is_wrong else BLUE,
        }
        look: dict[str, Any] = {"marker": "o", "markersize": 4.5, "linestyle": "", "alpha": 0.85, **hues}
        (dots,) = axes.plot(values, [at] * len(values), **look)
        dots.set_gid(sheet.tooltip(f"{one.label}: {', '.join(f'{value:.1f} %' for value in values)}"))
        if len(values) > 1:
            axes.plot((min(values), max(values)), (at, at), color=BLUE, linewidth=0.8, alpha=0.6)
    most = max([0.5, *(abs(value) for one in body.spreads for value in one.values)])
    axes.set_xlim(-most * 1.1, most * 1.1)
    axes.axvline(0, color=sheet.ink, alpha=0.6, linewidth=0.8)
    axes.set_xlabel("% off the row's mean")
    axes.grid(visible=True, axis="x")


def draw_cards(sheet: Sheet, body: Cards) -> None:
    axes = sheet.lines([f"{one.label}  {one.card}" for one in body.carried], bottom=0.5)
    for at, one in enumerate(body.carried):
        (drawn,) = axes.barh(at, one.sent, height=0.6 * sheet.thick, color=GREEN if one.wanted else RED)
        drawn.set_gid(sheet.tooltip(f"{one.label} {one.card}: {one.sent:,.{decimals(one.sent)}f} {body.unit}"))
        if one.least is not None and one.most is not None:
            for end in {one.least, one.most}:
                axes.plot(
                    (end, end), (at - 0.42 * sheet.thick, at + 0.42 * sheet.thick), color=sheet.ink, linewidth=1.6
                )
        if not one.wanted:
            axes.text(one.sent, at, " not asked for ", color="#ffffff", fontsize=SMALL, va="center", ha="right")
    highest = max((max(one.sent, one.most or 0.0) for one in body.carried), default=1.0)
    axes.set_xlim(0, highest * 1.06 or 1.0)
    axes.set_xlabel(f"{body.unit} sent, all rounds; tick: what must be sent")
    axes.grid(visible=True, axis="x")


# ---------------------------------------------------------------- heat maps, strips, lanes

# Highest ratio to the median of each colour: light to dark, distinguishable in grey too (after ColorBrewer's OrRd
# by Cynthia Brewer, with a blue for faster ones).
STEPS = {
    0.97: "#9ecae1", 1.01: "#fff3dc", 1.03: "#fdd9a0", 1.06: "#fdbb84", 1.12: "#fc8d59", 1.25: "#e34a33",
}  # fmt: skip
SLOWEST = "#7f0000"
_HEATS = ["faster", *(f"to {most:.2f} x" for most in list(STEPS)[1:]), "slower"]
STRIP_IN = 1.15
_BOX: list[Any] = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]


def _boxes(spans: Iterable[tuple[float, float]], low: float, high: float) -> list[tuple[float, float]]:
    corners = (((left, low), (right, low), (right, high), (left, high), (left, low)) for left, right in spans)
    return [corner for box in corners for corner in box]


def _fill(axes: Axes, corners: list[tuple[float, float]], hue: str, **look: Any) -> None:
    path = Path(corners, _BOX * (len(corners) // len(_BOX)))
    axes.add_patch(PathPatch(path, facecolor=hue, linewidth=0, **look))


def draw_heat(sheet: Sheet, body: Heat) -> None:
    """Draw neighbours of one colour as one rectangle, and a colour as one path."""
    axes = sheet.lines(body.lines, bottom=0.5 + _legend_in(_HEATS, sheet.format), above=False)
    if len(body.lines) > 20:
        axes.tick_params(axis="y", labelsize=SMALL)
    boxes: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for at, line in enumerate(body.cells):
        start = 0
        hues = (
            "" if of is None else next((hue for most, hue in STEPS.items() if of <= most), SLOWEST) for of in line
        )
        for hue, same in groupby(hues):
            end = start + len(list(same))
            boxes[hue] += _boxes([(start, end)] if hue else [], at - 0.5, at + 0.5)
            start = end
    for hue, corners in boxes.items():
        if hue:
            _fill(axes, corners, hue, edgecolor="none")
    axes.set_xlim(0, max(map(len, body.cells), default=1))
    for place in body.breaks:
        axes.axvline(place, color=sheet.ink, linewidth=0.9)
    axes.set_xlabel("windows, a line between rounds")
    sheet.hues(list(zip(_HEATS, [*STEPS.values(), SLOWEST], strict=True)))


def draw_strips(sheet: Sheet, body: Strips) -> None:
    """Draw the mean as a line, and the lowest to the highest as a band."""
    for at, strip in enumerate(body.strips):
        below = len(body.strips) - 1 - at
        axes = sheet.axes(left=0.75, bottom=0.5 + STRIP_IN * below, top=0.25 + STRIP_IN * at)
        box = axes.get_position()
        axes.set_position((box.x0, box.y0, box.width, box.height * 0.76))
        _strip(axes, strip, is_time=body.across != "rank")
        if below:
            axes.tick_params(axis="x", labelbottom=False)
        else:
            axes.set_xlabel(body.across)


def _strip(axes: Axes, strip: Strip, *, is_time: bool) -> None:
    """Strips over ranks have no line."""
    at, lows, means, highs = zip(*strip.readings, strict=True)
    if is_time:
        axes.fill_between(at, lows, highs, color=BLUE, alpha=0.25, linewidth=0)
    few = len(at) < 40
    look: dict[str, Any] = {"linestyle": "-" if is_time else "", "marker": "o" if few or not is_time else ""}
    axes.plot(at, means, color=BLUE, linewidth=1.2, markersize=3.5, **look)
    for one in strip.readings if few else ():
        axes.plot((one.at_s, one.at_s), (one.low, one.high), color=BLUE, linewidth=1)
    axes.set_title(strip.title, fontsize=SMALL, loc="left", pad=3)
    top, bottom = max(highs), min(lows)
    room = max(0.12 * (top - bottom), 0.02 * top)
    low, high = (0.0, top * 1.12) if strip.from_zero else (max(0.0, bottom - room), top + room)
    axes.set_ylim(low, high if top > 0 else 1)
    axes.locator_params(axis="y", nbins=4)
    axes.locator_params(axis="x", integer=True)
    axes.grid(visible=True)


def draw_lanes(sheet: Sheet, body: Lanes) -> None:
    legend_in = max(0.5, _legend_in(body.kinds, sheet.format))
    axes = sheet.lines([lane.label for lane in body.lanes], bottom=0.5 + legend_in, above=False)
    track = 0.84 / max(len(body.kinds), 1)
    for at, lane in enumerate(body.lanes):
        for kind, stretches in lane.stretches.items():
            low = at - 0.42 + track * body.kinds.index(kind)
            spans = ((one.start_s, one.start_s + max(one.end_s - one.start_s, 0.0)) for one in stretches)
            _fill(axes, _boxes(spans, low, low + track), KINDS.get(kind, RED))
        look: dict[str, Any] = {"marker": "x", "color": RED, "markersize": 7, "markeredgewidth": 2}
        axes.plot(lane.failures, [at] * len(lane.failures), linestyle="", **look)
    ends = [one.end_s for lane in body.lanes for of in lane.stretches.values() for one in of]
    ends += [at for lane in body.lanes for at in lane.failures]
    axes.set_xlim(0, max(ends, default=1.0) * 1.01 or 1.0)
    axes.set_xlabel("seconds since the first point started")
    sheet.hues([(kind, KINDS.get(kind, RED)) for kind in body.kinds])


# ---------------------------------------------------------------- draw

Kind = Literal["svg", "png", "pdf"]
# Height of heading and footing, which only a figure alone has.
HEADING_IN, FOOTING_IN = 0.4, 0.2
DOTS_PER_INCH = 100
# How each body is drawn, and its height in inches.
DRAWERS: dict[type, tuple[Callable[[Sheet, Any], None], Callable[[Any, Format], float]]] = {
    Curves: (curves.draw_curves, curves.height_in),
    Trends: (curves.draw_trends, curves.height_in),
    Bars: (draw_bars, lambda body, of: _lines_height(len(body.bars), of) + _legend_in(body.names, of)),
    Spreads: (draw_spreads, lambda body, of: _lines_height(len(body.spreads), of)),
    Cards: (draw_cards, lambda body, of: _lines_height(len(body.carried), of)),
    Heat: (draw_heat, lambda body, of: 1.0 + _legend_in(_HEATS, of) + 0.17 * max(len(body.lines), 4)),
    Strips: (draw_strips, lambda body, _: 0.75 + STRIP_IN * len(body.strips)),
    Lanes: (
        draw_lanes,
        lambda body, of: 1.0 + max(0.5, _legend_in(body.kinds, of)) + 0.38 * max(len(body.lanes), 3),
    ),
}


_WHY = {
    "cards": "no bytes crossed nodes",
    "efficiency": "no row has an efficiency",
    "loss": "no row has an efficiency",
    "ranks": "its largest world size has no windows of several ranks",
    "devices": "there are no readings of its devices",
}


def for_page(figure: Figure, prefix: str, of: Format = WIDE) -> str:
    """Return an SVG element in the ink of the page; ids begin with `prefix`."""
    with drawing("page"):
        height = _height(figure, of)
        on = Drawing(figsize=(of.width_in, height))
        sheet = Sheet(on, height, "page", of)
        _draw(sheet, figure)
        return _embedded(_svg(on), figure, prefix, sheet.titles)


def render(
    material: Material,
    name: str,
    kind: Kind,
    *,
    theme: Theme = "light",
    scale: float = 2.0,
    is_column: bool = False,
) -> bytes:
    """Return a file with the figures of one name below each other. Each has its heading, and a footing that names
    the run; for a column of a paper the caption has both. PNG has `scale` x 100 dots per inch.

    Raises UsageError if the run has no such figure.
    """
    figures = tuple(FIGURES[name](material))
    if not figures:
        raise UsageError(f"--figure {name}: this run has no such figure: {_WHY.get(name, 'nothing was measured')}")
    facts = dict(material.doc.facts)
    said = [facts.get(label, "") for label in ("model", "batch", "started")]
    footing = ", ".join(filter(None, [*said, *(source.name for source in material.sources)]))
    of, above, below = (NARROW, 0.0, 0.0) if is_column else (WIDE, HEADING_IN, FOOTING_IN)
    shrunk = COLUMN_IN / of.width_in if is_column else 1.0
    title, says = ("; ".join(texts) for texts in zip(*((one.title, one.says) for one in figures), strict=True))
    with drawing(theme):
        heights = [_height(figure, of) + above + below for figure in figures]
        on = Drawing(figsize=(of.width_in, sum(heights)))
        parts = on.subfigures(len(figures), 1, height_ratios=heights, squeeze=False).flat
        for part, figure, height in zip(parts, figures, heights, strict=True):
            sheet = Sheet(part, height, theme, of, above, below)
            _draw(sheet, figure)
            if not is_column:
                sheet.heading(figure.title)
                sheet.footing(f"{footing}{f' ({figure.left_out})' if figure.left_out else ''}")
        if kind == "svg":
            return _saved(_svg(on), title, f"{says}. {footing}", shrunk).encode()
        return _printed(on, kind, title, footing, DOTS_PER_INCH * scale * shrunk)


def _printed(on: Drawing, kind: Kind, title: str, footing: str, dpi: float) -> bytes:
    out = BytesIO()
    if kind == "png":
        on.set_dpi(dpi)
        latin = title.encode("latin-1", "replace").decode("latin-1")  # as texts in PNG are
        FigureCanvasAgg(on).print_png(out, metadata={"Software": None, "Title": latin})
    else:
        dates: dict[str, Any] = {"CreationDate": None, "Title": title, "Subject": footing}
        FigureCanvasPdf(on).print_pdf(out, metadata=dates)
    return out.getvalue()


def _height(figure: Figure, of: Format) -> float:
    return DRAWERS[type(figure.body)][1](figure.body, of)


def _draw(sheet: Sheet, figure: Figure) -> None:
    DRAWERS[type(figure.body)][0](sheet, figure.body)
    sheet.stamp(figure.stamps, across=isinstance(figure.body, Curves | Trends))


# ---------------------------------------------------------------- SVG
#
# On a page it has no styles, because a server's content policy may drop them (Jenkins does). They become
# attributes, and the ink becomes `currentColor`, so that figures follow the page's theme.

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
_FONT = re.compile(r"(?:(?:normal|(italic|oblique)|(bold|\d{3})) )*([\d.]+)px (.+)")
# Matplotlib's style sheet, as attributes of the root.
_EVERYWHERE = {"stroke-linejoin": "round", "stroke-linecap": "butt"}


def _svg(on: Drawing) -> ET.Element:
    out = StringIO()
    FigureCanvasSVG(on).print_svg(out, metadata={"Date": None})
    return ET.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", out.getvalue(), count=1))


def _embedded(root: ET.Element, figure: Figure, prefix: str, titles: Mapping[str, str]) -> str:
    """Return the SVG element for a page, with ids that begin with `prefix`, and texts for screen readers.
    `titles`: whole names of names that are cut, by the id of their group."""
    values = " ".join(value for element in root.iter() for value in element.attrib.values())
    used = {*_REFERENCE.findall(values), *(element.get(HREF, "").removeprefix("#") for element in root.iter())}
    _clean(root, prefix, used, titles)
    root.attrib = {
        "viewBox": root.get("viewBox", ""),
        "width": "100%",
        "role": "img",
        "aria-labelledby": f"{prefix}-title {prefix}-desc",
        **_EVERYWHERE,
    }
    root[:0] = [_text("title", figure.title, f"{prefix}-title"), _text("desc", figure.says, f"{prefix}-desc")]
    return _written(root)


def _saved(root: ET.Element, title: str, says: str, scale: float) -> str:
    """Return the SVG as a file of its own, with its styles, in `scale` times its drawn size."""
    for name in ("width", "height"):
        root.set(name, f"{float(root.get(name, '0').removesuffix('pt')) * scale:g}pt")
    root[:] = [one for one in root if one.tag != f"{{{SVG}}}metadata"]
    root.set("role", "img")
    root[:0] = [_text("title", title), _text("desc", says)]
    for element in root.iter():
        _rounded(element)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{_written(root)}\n'


def _written(root: ET.Element) -> str:
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", XLINK)
    return ET.tostring(root, encoding="unicode")


def _text(name: str, text: str, gid: str = "") -> ET.Element:
    made = ET.Element(f"{{{SVG}}}{name}", {"id": gid} if gid else {})
    made.text = one_line(text)
    return made


def _clean(element: ET.Element, prefix: str, used: Collection[str], titles: Mapping[str, str]) -> list[ET.Element]:
    """Return what replaces an element: itself, nothing if it draws nothing, the children of a bare group."""
    name = element.tag.removeprefix(f"{{{SVG}}}")
    children = [one for one in element if one.tag not in (f"{{{SVG}}}metadata", f"{{{SVG}}}style")]
    element.text, element.tail = None if children else element.text, None
    _attributes(element, prefix)
    if (gid := element.get("id", "")) and gid in used:
        element.set("id", f"{prefix}-{gid}")
    else:
        element.attrib.pop("id", None)
    keeps = name in ("defs", "clipPath")
    cleaned = [new for child in children for new in _clean(child, prefix, used, titles)]
    # A path without filling and line is the paper of figure and axes.
    path, none = f"{{{SVG}}}path", ("none", "none")
    element[:] = [
        one for one in cleaned if keeps or one.tag != path or (one.get("fill"), one.get("stroke", "none")) != none
    ]
    if gid in titles:
        element.insert(0, _text("title", titles[gid]))
    return list(element) if name == "g" and not element.attrib and gid not in titles else [element]


def _attributes(element: ET.Element, prefix: str) -> None:
    """Turn styles into attributes, rename references, round numbers."""
    for declaration in element.attrib.pop("style", "").split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name != "font":
            element.attrib.update({name: value} if value else {})
        elif found := _FONT.fullmatch(value):
            element.attrib.update({"font-size": found[3], "font-family": found[4]})
            if weight := re.search(r"\b(bold|[6-9]00)\b", value):
                element.set("font-weight", "bold" if weight else "")
    for name, value in list(element.attrib.items()):
        if name == HREF:
            del element.attrib[name]
            element.set("href", f"#{prefix}-{value.removeprefix('#')}")
        else:
            own = _REFERENCE.sub(rf"url(#{prefix}-\1)", value)
            element.set(name, "currentColor" if own == CURRENT else own)
    _rounded(element)


def _rounded(element: ET.Element) -> None:
    for name in _GEOMETRY:
        if (value := element.get(name)) is not None:
            short = _NUMBER.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value)
            element.set(name, _RECTANGLE.sub(r"M\1 \2H\3V\4H\1z", " ".join(_NO_TURN.sub("", short).split())))
            if not element.get(name):
                del element.attrib[name]
