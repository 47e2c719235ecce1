"""The schemas of Kubernetes' custom resources, cut to what the files of this repository use, and a check by them.

python -m tests.support.crds CRD.yaml...    after a change of the files, with the CRDs that operators install:

* kubeflow/mpi-operator caa3c47: manifests/base/kubeflow.org_mpijobs.yaml
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.support.fresh_machine import REPOSITORY

KEPT = Path(__file__).parents[1] / "system/containers/crds.json"
FILES = tuple(
    REPOSITORY / name
    for name in ("launch/mpijob.yaml", "containers/trainjob.yaml", "containers/trainjob-torch.yaml")
)
# What is kept of a value's schema. Rules in CEL (x-kubernetes-validations) are not evaluated.
TESTED = ("type", "enum", "pattern", "minimum", "maximum", "minItems", "required", "x-kubernetes-int-or-string")
TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float),
}  # fmt: skip


def documents() -> list[dict[str, Any]]:
    """The custom resources of the files."""
    found = [document for file in FILES for document in yaml.safe_load_all(file.read_text())]
    return [one for one in found if one["apiVersion"] != "v1"]


def key(document: Mapping[str, Any]) -> str:
    return f"{document['apiVersion']} {document['kind']}"


def problems(schema: Mapping[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """Where a value is not as its schema wants it: a field that there is not, or a wrong value."""
    if "x-kubernetes-int-or-string" in schema:
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield path
        return
    wanted = schema.get("type")
    wrong_type = wanted and (
        not isinstance(value, TYPES[wanted]) or (isinstance(value, bool) and wanted != "boolean")
    )
    if wrong_type or not _is_allowed(schema, value):
        yield path
    elif isinstance(value, dict):
        fields, others = schema.get("properties", {}), schema.get("additionalProperties")
        yield from (f"{path}.{name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, each in value.items():
            if name in fields or others is not None:
                yield from problems(fields.get(name, others), each, f"{path}.{name}")
            elif fields:
                yield f"{path}.{name}"
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from problems(schema.get("items", {}), each, f"{path}[{place}]")


def _is_allowed(schema: Mapping[str, Any], value: Any) -> bool:
    return (
        value in schema.get("enum", [value])
        and (not isinstance(value, str) or re.search(schema.get("pattern", ""), value) is not None)
        and (not isinstance(value, int) or schema.get("minimum", value) <= value <= schema.get("maximum", value))
        and (not isinstance(value, list) or len(value) >= schema.get("minItems", 0))
    )


def cut(schema: Mapping[str, Any], values: Sequence[Any]) -> dict[str, Any]:
    """The part of a schema that these values use; of fields that they do not use the name alone."""
    kept = {name: schema[name] for name in TESTED if name in schema}
    objects = [one for one in values if isinstance(one, dict)]
    if "properties" in schema and objects:
        kept["properties"] = {
            name: cut(each, used) if (used := [one[name] for one in objects if name in one]) else {}
            for name, each in schema["properties"].items()
        }
    for name, inner in (
        ("additionalProperties", [each for one in objects for each in one.values()]),
        ("items", [each for one in values if isinstance(one, list) for each in one]),
    ):
        if isinstance(schema.get(name), dict):
            kept[name] = cut(schema[name], inner)
    return kept


def main() -> None:
    kept: dict[str, Any] = {}
    for file in sys.argv[1:]:
        spec = yaml.safe_load(Path(file).read_text())["spec"]
        for version in spec["versions"]:
            name = f"{spec['group']}/{version['name']} {spec['names']['kind']}"
            if values := [one for one in documents() if key(one) == name]:
                kept[name] = cut(version["schema"]["openAPIV3Schema"], values)
    lines = (f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}" for name, one in sorted(kept.items()))
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
