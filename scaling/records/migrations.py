"""Records of older schemas as this version has them: plain data in, plain data out. Pure."""

from __future__ import annotations

from typing import Any

from scaling.records.point import Hardware, Workload

Plain = dict[str, Any]


def upgraded(point_record: Plain, schema: int) -> Plain:
    """A point record of `schema` as plain data of the current one."""
    return _from_1(point_record) if schema < 2 else point_record


def _from_1(record: Plain) -> Plain:
    """The point's fields stood side by side; ranks and helpers kept interface and card, and not the address."""
    point = dict(record["point"])
    work = {name: point.pop(name) for name in Workload.__struct_fields__ if name in point}
    hardware = {name: point.pop(name) for name in Hardware.__struct_fields__ if name in point}
    return {
        **record,
        "point": {**point, "workload": work, "hardware": hardware},
        "ranks": [_with_place(rank, "lo") for rank in record["ranks"]],
        "helpers": [_with_place(helper, "") for helper in record.get("helpers", ())],
    }


def _with_place(child: Plain, default: str) -> Plain:
    fields = dict(child)
    interface, card = fields.pop("interface", default), fields.pop("hca", "")
    return {**fields, "place": {"address": "", "interface": interface, "hca": card}}
