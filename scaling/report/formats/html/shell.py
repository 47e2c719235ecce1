"""What all pages share: Jinja, style, script and content policy.

Everything from a run is text: Jinja escapes it, and invisible signs are removed. The policy allows only this style
and this script, by their hashes (Content Security Policy Level 3, W3C).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

import scaling
from scaling.report import words
from scaling.report.figures.parts import Figure
from scaling.report.formats.plots import draw
from scaling.report.formats.plots.sheet import NARROW
from scaling.report.parts import Entry
from scaling.text import one_line

HERE = Path(__file__).parent
# A larger page is slow to mail and to open.
MOST_BYTES = 2_000_000
PARTS = "parts.html.j2"


def render(template: str, values: Mapping[str, Any]) -> str:
    """Return the page of a template; it has `values`, style, script, policy, version and macros."""
    style, script = (asset("page.css"), asset("page.js"))
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in (style, script)]
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )
    made = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=DictLoader({PARTS: asset(PARTS)}),
    )
    given = {"style": Markup(style), "script": Markup(script), "policy": policy, "version": scaling.__version__}
    return made.from_string(template).render({**given, **values})


def _shown(value: object) -> object:
    return one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def drawn(figures: Iterable[Figure]) -> Iterator[tuple[Figure, str, str]]:
    """Return each figure with its SVG, wide and for a phone; ids are unique in the page."""
    for number, figure in enumerate(figures, start=1):
        wide, narrow = draw.for_page(figure, f"f{number}"), draw.for_page(figure, f"n{number}", NARROW)
        yield figure, Markup(wide), Markup(narrow)


def entries(found: Iterable[Entry]) -> list[tuple[str, str]]:
    return [(entry.label, words.text(entry.phrase)) for entry in found]


def data_link(text: str) -> str:
    return f"data:text/csv;charset=utf-8;base64,{b64encode(text.encode()).decode()}"
