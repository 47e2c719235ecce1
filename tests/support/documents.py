"""Documents made by hand, for tests of the formats that draw them."""

from __future__ import annotations

from collections.abc import Iterable

from scaling.report.parts import Document, Section


def of_sections(*sections: Section) -> Document:
    """A report of these tables and nothing else."""
    return Document(facts=(), notices=(), sections=sections)


def under(label: str, entries: Iterable[tuple[str, str]]) -> list[str]:
    """The texts below a label, with the lines that continue it."""
    found: list[str] = []
    current = ""
    for name, text in entries:
        current = name or current
        found += [text] if current == label else []
    return found
