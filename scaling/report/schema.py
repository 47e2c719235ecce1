"""The JSON of a report as a type, and its schema, which is kept in `schema.json`.

A row in JSON has the fields of `Row`, `Workload` and `Hardware`; the type is made from these. Fields with a
default are optional, so that files of older versions stay valid. No field is ever removed or redefined. Make the
file with `python -m scaling report --schema > scaling/report/schema.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from inspect import cleandoc
from types import GenericAlias
from typing import Any

import msgspec
from msgspec import NODEFAULT, UNSET, Struct, UnsetType, defstruct
from msgspec.structs import fields

from scaling.analysis.table.burn_in import OverTime
from scaling.analysis.table.cost import Bill
from scaling.analysis.table.imported import Imported
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
from scaling.records.run import Certificate, Header, ImportedBandwidth
from scaling.text import as_json

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Field = tuple[str, Any, Any]
# Names of fields that are Python keywords.
RENAMED = {"pass_": "pass"}
# Fields of a header that JSON omits: only a resumed run needs them, or they are elsewhere.
INTERNAL = frozenset({"estimate_s", "imported", "bandwidths"})


def _struct(name: str, parts: Sequence[type[Struct]], more: Iterable[Field], without: frozenset[str]) -> Any:
    """Make a struct with the fields of all parts except `without`, described as the last part. `more` overrides
    fields."""
    found: dict[str, Field] = {}
    for of in (field for part in parts for field in fields(part) if field.name not in without):
        has_factory = of.default is NODEFAULT and of.default_factory is not NODEFAULT
        default = msgspec.field(default_factory=of.default_factory) if has_factory else of.default
        found[of.name] = of.name, of.type, default
    found.update({field[0]: field for field in more})
    made = [field if field[2] is not NODEFAULT else field[:2] for field in found.values()]
    return defstruct(
        name, made, kw_only=True, frozen=True, namespace={"__doc__": parts[-1].__doc__}, rename=RENAMED
    )


def _flat(name: str, part: type[Struct], *more: Field) -> Any:
    types = {field.name: field.type for field in fields(part)}
    formerly = ((old, types[new], None) for old, new in FORMERLY.items() if new in types)
    return _struct(name, (Workload, Hardware, part), (*formerly, *more), frozenset({"workload", "hardware"}))


def _many(of: Any) -> Any:
    return GenericAlias(tuple, (of, ...))


# Older names of fields, kept for one release.
FORMERLY = {"images_per_s": "samples_per_s", "loss": "breakdown", "loss_intervals": "breakdown_intervals"}
StandingJson = _struct("Standing", (Standing,), [("verdict", Verdict, NODEFAULT)], frozenset())
BaselineJson = _flat("Baseline", Baseline)
ComparisonJson = _flat("Comparison", Comparison, ("distinguishable", bool, NODEFAULT))
MinibatchJson = _flat("Minibatch", Minibatch, ("is_worse", bool, NODEFAULT))
OverCpuJson = _flat("OverCpu", OverCpu, ("cpu", BaselineJson, NODEFAULT))
TrainingJson = _flat("Training", Training)
CertificateJson = _struct("Certificate", (Certificate,), (), frozenset())
OverTimeJson = _flat("OverTime", OverTime)
RunJson = _struct("Run", (Header,), (), INTERNAL)
REST: tuple[Field | tuple[str, Any], ...] = (
    ("baselines", _many(BaselineJson)),
    ("comparisons", _many(ComparisonJson)),
    ("resolutions", tuple[Resolution, ...], ()),
    ("minibatches", _many(MinibatchJson), ()),
    ("over_cpu", _many(OverCpuJson), ()),
    ("trainings", _many(TrainingJson), ()),
    # Only in files of versions that predicted points before they were measured.
    ("predictions", tuple[dict[str, Any], ...] | UnsetType, UNSET),
    # Only of scaling certify.
    ("certificate", CertificateJson | UnsetType, UNSET),
    # Only of a burn-in (--for), and of a run of many rounds.
    ("over_time", _many(OverTimeJson) | UnsetType, UNSET),
    # Only with --prices.
    ("costs", tuple[Bill, ...] | UnsetType, UNSET),
    # Only of imported runs.
    ("imported", tuple[Imported, ...] | UnsetType, UNSET),
    ("bandwidths", tuple[ImportedBandwidth, ...] | UnsetType, UNSET),
)
ABOUT = (
    "A report of scaling: `python -m scaling report RUN --format json`. Fractions are of 1, times in seconds; "
    "`joined` says how runs in one table differ."
)


def report_type() -> Any:
    standing: Any = StandingJson | None
    known: tuple[Field, ...] = (("standing", standing, None), ("framework_standing", standing, None))
    row = _flat("Row", Row, *known)
    first = (("run", RunJson), ("joined", tuple[str, ...]), ("rows", _many(row)))
    return defstruct("Report", [*first, *REST], kw_only=True, frozen=True, namespace={"__doc__": ABOUT})


def text() -> str:
    """Return the schema as the package keeps it."""
    schema = msgspec.json.encode({"$schema": DIALECT, **msgspec.json.schema(report_type())})
    return as_json(json.loads(schema, object_hook=_settled))


def _settled(part: dict[str, Any]) -> dict[str, Any]:
    """Make the schema independent of the versions of Python and msgspec. Python 3.13 dedents docstrings, and
    releases of msgspec order types differently."""
    if isinstance(part.get("description"), str):
        part["description"] = cleandoc(part["description"])
    if "anyOf" in part:
        part["anyOf"].sort(key=lambda one: (one == {"type": "null"}, json.dumps(one)))
    return part
