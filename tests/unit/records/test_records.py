"""What holds for every record of the package: immutable, fields by keyword."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

from scaling.records.point import Hardware, Record

PACKAGE = Path(__file__).parents[3] / "scaling"


def positional(source: str) -> list[str]:
    """The records of a file that do not say `kw_only`, which none inherits."""
    if "frozen" not in source:
        return []
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    said = {one.name: {word.arg for word in one.keywords} for one in classes}
    return [name for name, words in said.items() if "frozen" in words and "kw_only" not in words]


def test_fields_are_given_by_keyword() -> None:
    assert {str(path): names for path in PACKAGE.rglob("*.py") if (names := positional(path.read_text()))} == {}
    assert positional("class Bad(Record, frozen=True):\n    a: int\n") == ["Bad"]


def test_positions_are_refused_and_fields_stay_as_they_are() -> None:
    with pytest.raises(TypeError):
        Hardware("cpu")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Hardware(device="cpu").device = "cuda"  # type: ignore[misc]
    assert issubclass(Record, msgspec.Struct)
