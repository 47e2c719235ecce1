"""The analysis as JSON for programs; its type; and the schema of the type, which is kept in `schema.json`.

The source is the analysis, since the document omits footnotes, uses of servers and pairs of rows. A row in JSON
has the fields of `Row`, `Workload` and `Hardware`; the type is made from these. Fields with a default are
optional, so that files of older versions stay valid. No field is ever removed or redefined. Make the file with
`python -m scaling report --schema > scaling/report/schema.json`.
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

from scaling.analysis.table import rows
from scaling.analysis.table.burn_in import OverTime
from scaling.analysis.table.cost import Bill, bill
from scaling.analysis.table.imported import Imported, cells
from scaling.analysis.table.rows import Baseline, Comparison, Minibatch, OverCpu, Row, Standing, Training
from scaling.records.point import Hardware, Workload
from scaling.records.run import Certificate, Header, ImportedBandwidth
from scaling.report.material import Material
from scaling.text import as_json, rounded

# The fields of the analysis, in their order.
_ANALYSED = ("rows", "baselines", "comparisons", "resolutions", "minibatches", "over_cpu", "trainings")
# Fields of a header that JSON omits: only a resumed run needs them, or they are elsewhere.
INTERNAL = frozenset({"estimate_s", "imported", "bandwidths"})
# Older names of fields, kept for one release.
FORMERLY = {"images_per_s": "samples_per_s", "loss": "breakdown", "loss_intervals": "breakdown_intervals"}


def render(material: Material) -> str:
    """Return one JSON object. Fractions are of 1. Costs, the verdict, the times of a burn-in and imports are there
    only if the run has them."""
    header, pricing = material.header, material.pricing
    run = msgspec.to_builtins(header)
    more: dict[str, Any] = {name: map(_entry, getattr(material.analysis, name)) for name in _ANALYSED}
    if found := material.certificate:
        more["certificate"] = {key: one for key, one in msgspec.to_builtins(found).items() if key != "type"}
    if material.over_time:
        more["over_time"] = map(_entry, material.over_time)
    if pricing:
        bills = (bill(row, header, pricing) for row in material.rows)
        more["costs"] = (one for one in bills if isinstance(one, Bill))
    if header.is_import:
        more |= {"imported": cells(header.imported), "bandwidths": header.bandwidths}
    plain = {
        name: one if isinstance(one, dict) else list(map(msgspec.to_builtins, one)) for name, one in more.items()
    }
    shown = {key: value for key, value in run.items() if key not in ("type", *INTERNAL)}
    return as_json({"run": shown, "joined": list(material.joined), **rounded(plain)})


def _entry(entry: Any) -> dict[str, Any]:
    """Return the fields of an entry, of its work and of its hardware in one object, with older names."""
    found = msgspec.to_builtins(entry)
    match entry:
        case Row():
            for name in ("standing", "framework_standing"):
                if standing := getattr(entry, name):
                    found[name]["verdict"] = standing.verdict
        case Comparison():
            found["distinguishable"] = entry.distinguishable
        case Minibatch():
            found["is_worse"] = entry.is_worse
        case OverCpu():
            found["cpu"] = _entry(entry.cpu)
    flat = {**found.pop("workload", {}), **found.pop("hardware", {}), **found}
    formerly = {old: flat[new] for old, new in FORMERLY.items() if new in flat}
    if "images_per_s" in formerly and flat["unit"] != "images":
        formerly["images_per_s"] = None
    return {**flat, **formerly}


# ---------------------------------------------------------------- its type


DIALECT = "https://json-schema.org/draft/2020-12/schema"
Field = tuple[str, Any, Any]
# Names of fields that are Python keywords.
RENAMED = {"pass_": "pass"}
ABOUT = (
    "A report of scaling: `python -m scaling report RUN --format json`. Fractions are of 1, times in seconds; "
    "`joined` says how runs in one table differ."
)


def _struct(
    name: str, parts: Sequence[type[Struct]], more: Iterable[Field] = (), without: Iterable[str] = ()
) -> Any:
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


def _flat(part: type[Struct], *more: Field) -> Any:
    types = {field.name: field.type for field in fields(part)}
    formerly = ((old, types[new], None) for old, new in FORMERLY.items() if new in types)
    return _struct(part.__name__, (Workload, Hardware, part), (*formerly, *more), ("workload", "hardware"))


def _many(of: Any) -> Any:
    return GenericAlias(tuple, (of, ...))


def report_type() -> Any:
    """Return the type of a report. Fields that only some runs have may be unset: the verdict of scaling certify,
    times over a burn-in (--for) and a run of many rounds, costs with --prices, imports. `predictions` are in files
    of versions that predicted points before they were measured."""
    standing: Any = _struct("Standing", (Standing,), [("verdict", rows.Verdict, NODEFAULT)]) | None
    known = (("standing", standing, None), ("framework_standing", standing, None))
    row = _flat(Row, *known)
    baseline = _flat(Baseline)
    over_cpu = _flat(OverCpu, ("cpu", baseline, NODEFAULT))
    certificate = _struct("Certificate", (Certificate,))
    made: list[Any] = [
        ("run", _struct("Run", (Header,), without=INTERNAL)),
        ("joined", tuple[str, ...]),
        ("rows", _many(row)),
        ("baselines", _many(baseline)),
        ("comparisons", _many(_flat(Comparison, ("distinguishable", bool, NODEFAULT)))),
        ("resolutions", tuple[rows.Resolution, ...], ()),
        ("minibatches", _many(_flat(Minibatch, ("is_worse", bool, NODEFAULT))), ()),
        ("over_cpu", _many(over_cpu), ()),
        ("trainings", _many(_flat(Training)), ()),
        ("predictions", tuple[dict[str, Any], ...] | UnsetType, UNSET),
        ("certificate", certificate | UnsetType, UNSET),
        ("over_time", _many(_flat(OverTime)) | UnsetType, UNSET),
        ("costs", tuple[Bill, ...] | UnsetType, UNSET),
        ("imported", tuple[Imported, ...] | UnsetType, UNSET),
        ("bandwidths", tuple[ImportedBandwidth, ...] | UnsetType, UNSET),
    ]
    return defstruct("Report", made, kw_only=True, frozen=True, namespace={"__doc__": ABOUT})


def schema() -> str:
    """Return the schema as the package keeps it."""
    found = msgspec.json.encode({"$schema": DIALECT, **msgspec.json.schema(report_type())})
    return as_json(json.loads(found, object_hook=_settled))


def _settled(part: dict[str, Any]) -> dict[str, Any]:
    """Make the schema independent of the versions of Python and msgspec. Python 3.13 dedents docstrings, and
    releases of msgspec order types differently."""
    if isinstance(part.get("description"), str):
        part["description"] = cleandoc(part["description"])
    if "anyOf" in part:
        part["anyOf"].sort(key=lambda one: (one == {"type": "null"}, json.dumps(one)))
    return part
