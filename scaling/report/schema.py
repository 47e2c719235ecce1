"""The JSON of a report as a type, and its schema, which stands beside this file as `schema.json`.

A row in JSON has the fields of its work and of its hardware beside its own. So its type is made of those three, by
name: a field that any of them gets is in the schema without being written twice. Fields with a default are
optional, so that what an older version printed stays valid; nothing is ever taken away or changed in its meaning.
Made by `python -m scaling report --schema > scaling/report/schema.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from inspect import cleandoc
from types import GenericAlias
from typing import Any

import msgspec
from msgspec import NODEFAULT, UNSET, Struct, UnsetType, defstruct
from msgspec.structs import FieldInfo, fields

from scaling.analysis.table.catalogue import added
from scaling.analysis.table.cost import Bill
from scaling.analysis.table.imported import Imported
from scaling.analysis.table.predictions import Judged
from scaling.analysis.table.rows import (
    Baseline,
    Comparison,
    Minibatch,
    OverCpu,
    Resolution,
    Row,
    Standing,
    Training,
    Verdict,
)
from scaling.records.point import Hardware, Workload
from scaling.records.run import Header, ImportedBandwidth
from scaling.text import as_json

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Field = tuple[str, Any, Any]
# What is a keyword of Python's has another name inside.
RENAMED = {"pass_": "pass"}
# Of a header, what only a resumed run needs, and what stands outside it.
INTERNAL = frozenset({"estimate_s", "imported", "bandwidths"})


def _field(of: FieldInfo) -> Field:
    if of.default is not NODEFAULT:
        return of.name, of.type, of.default
    if of.default_factory is not NODEFAULT:
        return of.name, of.type, msgspec.field(default_factory=of.default_factory)
    return of.name, of.type, NODEFAULT


def _struct(name: str, parts: Sequence[type[Struct]], more: Iterable[Field], without: frozenset[str]) -> Any:
    """A struct with the fields of all parts but those named, described as the last of them; `more` takes the place
    of what has its name."""
    found = {field.name: _field(field) for part in parts for field in fields(part) if field.name not in without}
    found.update({field[0]: field for field in more})
    made = [field if field[2] is not NODEFAULT else field[:2] for field in found.values()]
    return defstruct(
        name, made, kw_only=True, frozen=True, namespace={"__doc__": parts[-1].__doc__}, rename=RENAMED
    )


def _flat(name: str, part: type[Struct], *more: Field) -> Any:
    """With the fields of work and hardware in one object."""
    without = frozenset({"workload", "hardware"})
    return _struct(name, (Workload, Hardware, part), (*_formerly(part), *more), without)


def _many(of: Any) -> Any:
    return GenericAlias(tuple, (of, ...))


def _formerly(part: type[Struct]) -> Iterable[Field]:
    """For one release more: older names of fields, beside theirs."""
    types = {field.name: field.type for field in fields(part)}
    return ((old, types[new], None) for old, new in FORMERLY.items() if new in types)


# What fields were called while all samples were images, and losses not only of the training.
FORMERLY = {"images_per_s": "samples_per_s", "loss": "breakdown", "loss_intervals": "breakdown_intervals"}
StandingJson = _struct("Standing", (Standing,), [("verdict", Verdict, NODEFAULT)], frozenset())
BaselineJson = _flat("Baseline", Baseline)
ComparisonJson = _flat("Comparison", Comparison, ("distinguishable", bool, NODEFAULT))
MinibatchJson = _flat("Minibatch", Minibatch, ("is_worse", bool, NODEFAULT))
OverCpuJson = _flat("OverCpu", OverCpu, ("cpu", BaselineJson, NODEFAULT))
TrainingJson = _flat("Training", Training)
JudgedJson = _flat("Judged", Judged, ("error", float | None, None), ("inside", bool | None, None))
RunJson = _struct("Run", (Header,), (), INTERNAL)
REST: tuple[Field | tuple[str, Any], ...] = (
    ("baselines", _many(BaselineJson)),
    ("comparisons", _many(ComparisonJson)),
    ("resolutions", tuple[Resolution, ...], ()),
    ("minibatches", _many(MinibatchJson), ()),
    ("over_cpu", _many(OverCpuJson), ()),
    ("trainings", _many(TrainingJson), ()),
    # Of a run with --predict-first.
    ("predictions", _many(JudgedJson) | UnsetType, UNSET),
    # With --prices.
    ("costs", tuple[Bill, ...] | UnsetType, UNSET),
    # Of runs that were read from logs of other tools.
    ("imported", tuple[Imported, ...] | UnsetType, UNSET),
    ("bandwidths", tuple[ImportedBandwidth, ...] | UnsetType, UNSET),
)
ABOUT = (
    "A report of scaling: `python -m scaling report RUN --format json`. Fractions are of 1, times in seconds; "
    "`joined` says how runs in one table differ."
)


def row_type() -> Any:
    """The type of a row in JSON: the fields of `Row` and the columns that the catalogue adds."""
    standing: Any = StandingJson | None
    known: tuple[Field, ...] = (("standing", standing, None), ("framework_standing", standing, None))
    return _flat("Row", Row, *known, *((column.key, column.json, None) for column in added()))


def report_type() -> Any:
    """The type of a report in JSON."""
    first = (("run", RunJson), ("joined", tuple[str, ...]), ("rows", _many(row_type())))
    return defstruct("Report", [*first, *REST], kw_only=True, frozen=True, namespace={"__doc__": ABOUT})


def text() -> str:
    """The schema as it is kept in the package."""
    schema = msgspec.json.encode({"$schema": DIALECT, **msgspec.json.schema(report_type())})
    return as_json(json.loads(schema, object_hook=_settled))


def _settled(part: dict[str, Any]) -> dict[str, Any]:
    """The same under every Python and msgspec: 3.13 dedents docstrings, and releases of msgspec order types in
    ways of their own."""
    if isinstance(part.get("description"), str):
        part["description"] = cleandoc(part["description"])
    if "anyOf" in part:
        part["anyOf"].sort(key=lambda one: (one == {"type": "null"}, json.dumps(one)))
    return part
