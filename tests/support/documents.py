"""Documents made by hand, for tests of the formats that draw them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from scaling.report.parts import Document, Section


def of_sections(*sections: Section) -> Document:
    """A report of these tables and nothing else."""
    return Document(
        facts=(), notices=(), comparisons=(), sections=sections, baselines=(), footnotes=(), how_to_read=()
    )


def texts(part: Any) -> Iterator[str]:
    """All strings in a document or a part of it, keys of cells left out."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict):
        for value in part.values():
            yield from texts(value)
    elif isinstance(part, tuple):
        for value in part:
            yield from texts(value)
    elif isinstance(part, msgspec.Struct):
        for name in part.__struct_fields__:
            yield from texts(getattr(part, name))
