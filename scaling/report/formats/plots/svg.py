"""What is done to matplotlib's SVG before it stands in a page: attributes for styles, names, few bytes. Pure.

A page's policy may drop styles (Jenkins' does): colours are attributes, which no policy takes. `currentColor`
takes the place of the ink, so that figures follow the page's theme.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree as ET

from scaling.report.formats.plots.style import CURRENT
from scaling.text import one_line

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
HREF = f"{{{XLINK}}}href"
# Two decimals of a pixel.
_NUMBER = re.compile(r"-?\d+\.\d+")
# Four corners; fewer bytes by lines that run along one axis.
_RECTANGLE = re.compile(r"M (\S+) (\S+) L (\S+) \2 L \3 (\S+) L \1 \4(?: L \1 \2)? z ?")
_NO_TURN = re.compile(r"rotate\(-?0 [^)]*\)")
_GEOMETRY = ("d", "transform", "x", "y", "width", "height", "points")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_DROPPED = {f"{{{SVG}}}metadata", f"{{{SVG}}}style"}
# What matplotlib's style sheet says of all elements, as attributes of the outermost.
_EVERYWHERE = {"stroke-linejoin": "round", "stroke-linecap": "butt"}


def embedded(text: str, *, prefix: str, title: str, says: str, titles: Mapping[str, str]) -> str:
    """The SVG element for a page: no styles, ids that begin with `prefix`, its title and what it says for who
    cannot see it; `titles` are the whole names of those that are drawn cut, by the id of their group."""
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


def alone(text: str, *, title: str, says: str) -> str:
    """The same as a file of its own: styles stay, since every viewer takes them."""
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
    """Without metadata, style sheets and the blanks between elements."""
    for parent in list(root.iter()):
        for element in [one for one in parent if one.tag in _DROPPED]:
            parent.remove(element)
        if len(parent):
            parent.text = None
        parent.tail = None


def _drop_undrawn(root: ET.Element) -> None:
    """Without paths that have neither a filling nor a line: axes' and the figure's paper."""
    for parent in list(root.iter()):
        if parent.tag not in (f"{{{SVG}}}defs", f"{{{SVG}}}clipPath"):
            for element in [one for one in parent if one.tag == f"{{{SVG}}}path" and _is_undrawn(one)]:
                parent.remove(element)


def _unwrap(parent: ET.Element) -> None:
    """Groups that say nothing, not even a name, give way to what is in them."""
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
    """Styles as attributes, ids renamed, numbers rounded."""
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
    """A declaration of a style as the attribute of that name; `font` in one is taken apart."""
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
    """Its geometry in as few bytes as show the same."""
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
