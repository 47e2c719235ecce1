"""The analysis as JSON for programs. `report/schema.py` has its type.

The source is the analysis, since the document omits footnotes, uses of servers and pairs of rows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scaling.analysis.table.cost import Bill, bill
from scaling.analysis.table.imported import cells
from scaling.analysis.table.rows import Comparison, Minibatch, OverCpu, Row
from scaling.report.material import Material
from scaling.report.schema import FORMERLY, INTERNAL
from scaling.text import as_json, rounded

# The fields of the analysis, in their order.
_ANALYSED = ("rows", "baselines", "comparisons", "resolutions", "minibatches", "over_cpu", "trainings")


def render(material: Material) -> str:
    """Return one JSON object. Fractions are of 1. Costs, the verdict, the times of a burn-in and imports are there
    only if the run has them."""
    header, pricing = material.header, material.pricing
    run = msgspec.to_builtins(header)
    more: dict[str, Any] = {name: map(_flat, getattr(material.analysis, name)) for name in _ANALYSED}
    if found := material.certificate:
        more["certificate"] = {key: one for key, one in msgspec.to_builtins(found).items() if key != "type"}
    if material.over_time:
        more["over_time"] = map(_flat, material.over_time)
    if pricing:
        bills = (bill(row, header, pricing) for row in material.rows)
        more["costs"] = (msgspec.to_builtins(one) for one in bills if isinstance(one, Bill))
    if header.is_import:
        more |= {"imported": cells(header.imported), "bandwidths": header.bandwidths}
    return as_json(
        {
            "run": {key: value for key, value in run.items() if key not in ("type", *INTERNAL)},
            "joined": list(material.joined),
            **{name: rounded(_plain(value)) for name, value in more.items()},
        }
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, dict) else [msgspec.to_builtins(one) for one in value]


def _flat(entry: Any) -> dict[str, Any]:
    """Return the fields of an entry, of its work and of its hardware in one object, with older names."""
    fields = msgspec.to_builtins(entry)
    match entry:
        case Row():
            for name in ("standing", "framework_standing"):
                if standing := getattr(entry, name):
                    fields[name]["verdict"] = standing.verdict
        case Comparison():
            fields["distinguishable"] = entry.distinguishable
        case Minibatch():
            fields["is_worse"] = entry.is_worse
        case OverCpu():
            fields["cpu"] = _flat(entry.cpu)
    flat = {**fields.pop("workload", {}), **fields.pop("hardware", {}), **fields}
    formerly = {old: flat[new] for old, new in FORMERLY.items() if new in flat}
    if "images_per_s" in formerly and flat["unit"] != "images":
        formerly["images_per_s"] = None
    return {**flat, **formerly}
