"""One figure as a file: SVG, PNG or PDF, with the run it is of."""

from __future__ import annotations

from scaling.errors import UsageError
from scaling.report import words
from scaling.report.figures import FIGURES
from scaling.report.formats.plots import draw
from scaling.report.formats.plots.draw import Kind
from scaling.report.formats.plots.sheet import Theme
from scaling.report.material import Material

_WHY = {
    "cards": "no bytes crossed nodes",
    "efficiency": "no row has an efficiency",
    "loss": "no row has an efficiency",
    "ranks": "its largest world size has no windows of several ranks",
    "devices": "there are no readings of its devices",
}


def render(
    material: Material,
    name: str,
    kind: Kind,
    *,
    theme: Theme = "light",
    scale: float = 2.0,
    is_column: bool = False,
) -> bytes:
    """Return the file. Raises UsageError if the run has no such figure."""
    found = tuple(FIGURES[name](material))
    if not found:
        raise UsageError(f"--figure {name}: this run has no such figure: {_WHY.get(name, 'nothing was measured')}")
    facts = {fact.label: words.text(fact.phrase) for fact in material.doc.facts}
    said = [facts.get(label, "") for label in ("model", "batch", "started")]
    footing = ", ".join(filter(None, [*said, *(source.name for source in material.sources)]))
    return draw.alone(found, kind, footing, theme=theme, scale=scale, is_column=is_column)
