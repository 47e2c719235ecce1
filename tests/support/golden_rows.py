"""Whole results of an analysis, to ten digits, against golden files: every field of each row of named cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from scaling.analysis.table.analyse import analyse
from scaling.records.run import PointRecord
from tests.support.golden import check_golden

# Smaller numbers are rounding errors.
LEAST = 1e-12
# What was asked for, and no result.
ASKED = ("workload", "hardware", "interconnect", "placement", "options", "global_batch_size", "framework")


def figures(value: Any) -> Any:
    """Return plain data with ten digits, without values that are empty or false."""
    if isinstance(value, float):
        return float(f"{value:.10g}") if abs(value) > LEAST else 0.0
    if isinstance(value, dict):
        kept = {name: figures(one) for name, one in value.items() if name not in ASKED}
        return {name: one for name, one in kept.items() if one not in (None, "", [], {}, False)}
    return [figures(one) for one in value] if isinstance(value, list | tuple) else value


KINDS = ("baselines", "rows", "comparisons")
NAMES = {"minibatches": "minibatch"}


def check_rows(name: str, cases: Mapping[str, Iterable[PointRecord]], kinds: Sequence[str] = KINDS) -> None:
    """The analysis of each case has the parts of these kinds that the golden file has, one a line."""
    lines = []
    for case, records in cases.items():
        found = analyse(records)
        lines.append(f"{case}:")
        for kind in kinds:
            told = (figures(msgspec.to_builtins(one)) for one in getattr(found, kind))
            lines += [f"  {NAMES.get(kind, kind[:-1])} {msgspec.json.encode(one).decode()}" for one in told]
    check_golden(f"rows-{name}.txt", "\n".join([*lines, ""]))
