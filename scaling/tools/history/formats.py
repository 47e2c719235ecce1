"""The history for programs: a line or an object per run, raw numbers."""

from __future__ import annotations

import csv as csv_module
from collections.abc import Sequence
from io import StringIO
from typing import Any

import msgspec

from scaling.report.formats.csv import defused
from scaling.text import as_json, rounded
from scaling.tools.history.lines import Headline, RunLine, Unreadable

# What has no place in a line, or a place of its own.
APART = ("headline", "seen")
COLUMNS = (*(name for name in RunLine.__struct_fields__ if name not in APART), *Headline.__struct_fields__)


def json(lines: Sequence[RunLine], unreadable: Sequence[Unreadable]) -> str:
    """Return one JSON object: `runs` as `RunLine` has them, and what could not be read."""
    plain = {"runs": rounded(msgspec.to_builtins(lines)), "unreadable": msgspec.to_builtins(unreadable)}
    return as_json(plain)


def csv(lines: Sequence[RunLine]) -> str:
    """Return a header line and a line per run; lists are separated by spaces."""
    out = StringIO()
    writer = csv_module.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_values(line) for line in lines)
    return out.getvalue()


def _values(line: RunLine) -> dict[str, Any]:
    plain = rounded(msgspec.to_builtins(line))
    plain |= plain.pop("headline") or {}
    plain.pop("seen")
    return {name: defused(_text(value)) for name, value in plain.items()}


def _text(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value
