"""The findings as JSON for programs: the run, rows, baselines, comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from scaling.analysis.analyse import Analysis, analyse
from scaling.analysis.rows import Baseline, Comparison, Row
from scaling.records.run import Header, PointRecord
from scaling.text import rounded

# For one release more: what fields were called while all samples were images, and losses not only of the training.
_FORMERLY = {"images_per_s": "samples_per_s", "loss": "breakdown", "loss_intervals": "breakdown_intervals"}


def render(header: Header, records: Sequence[PointRecord], joined: Sequence[str] = ()) -> str:
    """Return one JSON object; `joined` says how runs in one table differ. Fractions are of 1."""
    found = analyse(records)
    document = {
        "run": _run(header),
        "joined": list(joined),
        "rows": rounded([_flat(row) for row in found.rows]),
        "baselines": rounded([_flat(baseline) for baseline in found.baselines]),
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
    return [{**_flat(one), "distinguishable": one.distinguishable} for one in found.comparisons]


def _flat(found: Row | Baseline | Comparison) -> dict[str, Any]:
    """Its fields, those of its work and of its hardware in one object; older names beside theirs."""
    fields = msgspec.to_builtins(found)
    flat = {**fields.pop("workload"), **fields.pop("hardware"), **fields}
    return {**flat, **{old: flat[new] for old, new in _FORMERLY.items() if new in flat}}
