"""The analysis as JSON for programs. `report/schema.py` has its type.

The source is the analysis, since the document omits footnotes, uses of servers and pairs of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from scaling.analysis.table.analyse import analyse
from scaling.analysis.table.burn_in import OverTime
from scaling.analysis.table.catalogue import added
from scaling.analysis.table.cost import Bill, Pricing, bill
from scaling.analysis.table.imported import cells
from scaling.analysis.table.rows import Analysis, Baseline, Comparison, Minibatch, OverCpu, Row, Training
from scaling.records.run import Certificate, Header, PointRecord
from scaling.report.schema import FORMERLY, INTERNAL
from scaling.text import as_json, rounded


def render(
    header: Header,
    records: Sequence[PointRecord],
    joined: Sequence[str] = (),
    pricing: Pricing | None = None,
    certificate: Certificate | None = None,
    over_time: Sequence[OverTime] = (),
) -> str:
    """Return one JSON object. Fractions are of 1. `joined`: lines about the differences of runs in one table.
    `pricing`, `certificate` and `over_time` add costs, a verdict and the times of a burn-in."""
    analysis = analyse(records)
    document = {
        "run": _run(header),
        "joined": list(joined),
        "rows": rounded([_flat(row) for row in analysis.rows]),
        "baselines": rounded([_flat(baseline) for baseline in analysis.baselines]),
        "comparisons": rounded(_comparisons(analysis)),
        "resolutions": rounded(msgspec.to_builtins(analysis.resolutions)),
        "minibatches": rounded([_flat(one) for one in analysis.minibatches]),
        "over_cpu": rounded([_flat(one) for one in analysis.over_cpu]),
        "trainings": rounded([_flat(one) for one in analysis.trainings]),
        **({"certificate": _certificate(certificate)} if certificate else {}),
        **({"over_time": rounded([_flat(one) for one in over_time])} if over_time else {}),
        **({"costs": _costs(analysis, header, pricing)} if pricing else {}),
        **(_imported(header) if header.is_import else {}),
    }
    return as_json(document)


def _run(header: Header) -> dict[str, Any]:
    run = msgspec.to_builtins(header)
    for field in ("type", *INTERNAL):
        run.pop(field, None)
    return dict(run)


def _imported(header: Header) -> dict[str, Any]:
    return {
        "imported": rounded(msgspec.to_builtins(cells(header.imported))),
        "bandwidths": rounded(msgspec.to_builtins(header.bandwidths)),
    }


def _costs(analysis: Analysis, header: Header, pricing: Pricing) -> list[dict[str, Any]]:
    bills = (bill(row, header, pricing) for row in analysis.rows)
    return [rounded(msgspec.to_builtins(one)) for one in bills if isinstance(one, Bill)]


def _certificate(found: Certificate) -> dict[str, Any]:
    plain: dict[str, Any] = rounded(msgspec.to_builtins(found))
    return {key: value for key, value in plain.items() if key != "type"}


def _comparisons(analysis: Analysis) -> list[dict[str, Any]]:
    return [{**_flat(pair), "distinguishable": pair.distinguishable} for pair in analysis.comparisons]


def _flat(
    entry: Row | Baseline | Comparison | Minibatch | OverCpu | Training | OverTime,
) -> dict[str, Any]:
    """Return the fields of an entry, of its work and of its hardware in one object, with older names."""
    fields = msgspec.to_builtins(entry)
    if isinstance(entry, Row):
        for name in ("standing", "framework_standing"):
            if standing := getattr(entry, name):
                fields[name]["verdict"] = standing.verdict
        fields |= {column.key: msgspec.to_builtins(column.value(entry)) for column in added() if column.value}
    if isinstance(entry, Minibatch):
        fields["is_worse"] = entry.is_worse
    if isinstance(entry, OverCpu):
        fields["cpu"] = _flat(entry.cpu)
    flat = {**fields.pop("workload"), **fields.pop("hardware"), **fields}
    formerly = {old: flat[new] for old, new in FORMERLY.items() if new in flat}
    if "images_per_s" in formerly and flat["unit"] != "images":
        formerly["images_per_s"] = None
    return {**flat, **formerly}
