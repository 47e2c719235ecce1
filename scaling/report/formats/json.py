"""The findings as JSON for programs: the run, rows, baselines, comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from scaling.analysis.analyse import Analysis, analyse
from scaling.records.run import Header, PointRecord
from scaling.text import rounded


def render(header: Header, records: Sequence[PointRecord], joined: Sequence[str] = ()) -> str:
    """Return one JSON object; `joined` says how runs in one table differ. Fractions are of 1."""
    found = analyse(records)
    document = {
        "run": _run(header),
        "joined": list(joined),
        "rows": rounded(msgspec.to_builtins(found.rows)),
        "baselines": rounded(msgspec.to_builtins(found.baselines)),
        "comparisons": rounded(_comparisons(found)),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _run(header: Header) -> dict[str, Any]:
    """The header without what only a resumed run needs."""
    run = msgspec.to_builtins(header)
    for field in ("type", "estimate_s"):
        run.pop(field, None)
    return dict(run)


def _comparisons(found: Analysis) -> list[dict[str, Any]]:
    return [{**msgspec.to_builtins(one), "distinguishable": one.distinguishable} for one in found.comparisons]
