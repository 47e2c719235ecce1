"""The digests of every format of every scene: numbers at full precision, pages and figures.

After a wanted change: REWRITE_GOLDEN=1 pytest tests/unit/report/test_digests.py, then read which digests differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from importlib.metadata import version

import pytest
from msgspec import to_builtins

from scaling.errors import UsageError
from scaling.report import reference
from scaling.report.figures import FIGURES
from scaling.report.formats import csv, html, json, latex, markdown, openmetrics, screen, terminal
from scaling.report.formats.plots import draw
from scaling.report.material import Material, Place
from scaling.text import as_json, rounded
from tests.support.golden import GOLDEN, check_golden
from tests.support.report_scenes import MATERIALS

PLACE = Place("results/a run", "results/a run/page.html", lacks=True, event="Interrupted by SIGINT")
FORMATS: dict[str, Callable[[Material], str]] = {
    "table": lambda of: terminal.whole(of.doc, color=True),
    "screen": lambda of: "".join(screen.render(of, PLACE, width=width, color=True) for width in (60, 100, 160)),
    "picture": lambda of: screen.picture(of, PLACE, theme="light"),
    "markdown": lambda of: markdown.draw(of.doc),
    "latex": lambda of: latex.render(of.doc),
    "compact": lambda of: latex.compact(of) if of.rows else "",
    "csv": lambda of: csv.of_rows(of.rows, of.header, of.pricing),
    "json": json.render,
    "metrics": openmetrics.render,
    "reference": lambda of: reference.toml(reference.of(of)),
    "figures": lambda of: as_json(rounded(to_builtins([tuple(figures(of)) for figures in FIGURES.values()]))),
    "page": html.render,
    "short page": lambda of: html.render(of, 30_000),
}  # fmt: skip
# Scenes whose page is drawn.
PAGES = ("networks", "gpus")


def digest(of: Callable[[Material], str | bytes], material: Material) -> str:
    try:
        found = of(material)
    except UsageError as error:
        return str(error)
    return sha256(found.encode() if isinstance(found, str) else found).hexdigest()[:16]


def test_every_format_of_every_scene(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "drawn", lambda figures: [(figure, "", "") for figure in figures])
    lines = (
        f"{scene} {name}: {digest(of, made)}\n"
        for scene, made in ((scene, build()) for scene, build in MATERIALS.items())
        for name, of in FORMATS.items()
    )
    check_golden("digests.txt", "".join(lines))


def drawn() -> Iterator[str]:
    yield f"matplotlib {version('matplotlib')}\n"
    for scene in PAGES:
        yield f"{scene} page: {digest(html.render, MATERIALS[scene]())}\n"
    column = partial(draw.render, kind="svg", theme="dark", is_column=True)
    for name in ("speedup", "loss", "rounds", "ranks", "cards", "run"):
        yield f"networks {name}: {digest(partial(column, name=name), MATERIALS['networks']())}\n"


def test_pages_and_figures_are_drawn_alike() -> None:
    """Another release of matplotlib draws other bytes."""
    kept = (GOLDEN / "drawn.txt").read_text() if (GOLDEN / "drawn.txt").exists() else ""
    if kept and not kept.startswith(f"matplotlib {version('matplotlib')}\n"):
        pytest.skip("the digests are of another release of matplotlib")
    check_golden("drawn.txt", "".join(drawn()))
