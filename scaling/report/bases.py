"""`--base "torch:gloo N=1"`: which row of a report that is. Pure."""

from __future__ import annotations

import re

from scaling.analysis.cost import Base
from scaling.analysis.cost_base import base, why_not
from scaling.analysis.rows import Row
from scaling.errors import UsageError
from scaling.report import labels
from scaling.report.material import Material
from scaling.text import one_line

_NAMED = re.compile(r"^(?P<name>.*\S)\s+N\s*=\s*(?P<world_size>\d+)$")


def found(text: str, material: Material) -> Base:
    """Return the row of that name and world size; UsageError names all rows where there is none, or those that it
    may be."""
    asked = _NAMED.match(text.strip())
    rows = [row for row in material.rows if asked and _is_meant(row, asked["name"], material)]
    rows = [row for row in rows if asked and row.world_size == int(asked["world_size"])]
    if len(rows) != 1:
        said = "several rows are called so" if rows else "no such row"
        names = "; ".join(_name(row, material) for row in rows or material.rows) or "none"
        raise UsageError(f"--base {one_line(text)}: {said}; give one of: {names}")
    if why := why_not(rows[0]):
        raise UsageError(f"--base {one_line(text)}: nothing can be relative to it: {why}")
    return base(_name(rows[0], material), rows[0], material.rows, material.cells)


def _is_meant(row: Row, name: str, material: Material) -> bool:
    """By the title of its curve, or by as much of it as people remember."""
    return name in (material.label(row), labels.name(row, material.context), row.strategy)


def _name(row: Row, material: Material) -> str:
    return f"{one_line(material.label(row))} N={row.world_size}"
