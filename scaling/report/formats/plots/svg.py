"""SVG of matplotlib for a page: without styles, because a server's content policy may drop them (Jenkins does).

They become attributes, and the ink becomes `currentColor`, so that figures follow the page's theme.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from xml.etree import ElementTree as ET

from scaling.report.formats.plots.sheet import CURRENT
from scaling.text import one_line

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


def embedded(text: str, *, prefix: str, title: str, says: str, titles: Mapping[str, str]) -> str:
    """Return the SVG element for a page, with ids that begin with `prefix`. `title` and `says` are for screen
    readers. `titles`: whole names of names that are cut, by the id of their group."""
    root = _parsed(text)
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
    root[:0] = [_text("title", title, f"{prefix}-title"), _text("desc", says, f"{prefix}-desc")]
    return _written(root)


def alone(text: str, *, title: str, says: str, scale: float = 1.0) -> str:
    """Return the SVG as a file of its own, with its styles, in `scale` times its drawn size."""
    root = _parsed(text)
    for name in ("width", "height"):
        root.set(name, f"{float(root.get(name, '0').removesuffix('pt')) * scale:g}pt")
    root[:] = [one for one in root if one.tag != f"{{{SVG}}}metadata"]
    root.set("role", "img")
    root[:0] = [_text("title", title), _text("desc", says)]
    for element in root.iter():
        _rounded(element)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{_written(root)}\n'


def _parsed(text: str) -> ET.Element:
    return ET.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", text, count=1))


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
