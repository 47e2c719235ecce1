"""A comparison as JSON: the fields of `Found`, floats to ten digits."""

from __future__ import annotations

import msgspec

from scaling.text import as_json, rounded
from scaling.tools.compare.found import Found


def render(found: Found, exit_code: int) -> str:
    """Return one JSON object; fractions are of 1."""
    plain = {
        **rounded(msgspec.to_builtins(found)),
        "counts": found.counts,
        "exit_code": exit_code,
    }
    return as_json(plain)
