"""Records of older schemas as this version has them: plain data in, plain data out. Pure."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from scaling.records import crossing
from scaling.records.point import SERVER, Hardware, Workload
from scaling.records.run import Header, PointRecord, WarningKind

Plain = dict[str, Any]
# By words of its text, what kind of warning schema 1 gave.
_KINDS: dict[str, WarningKind] = {
    "settled": "unsettled",
    "throttled": "throttled",
    "busy while they emulated": "busy-cpus",
    "of the promised": "lost-cpus",
    "no node was left": "shared-servers",
}


def upgraded(point_record: Plain, schema: int) -> Plain:
    """A point record of `schema` as plain data of the current one."""
    return _from_1(point_record) if schema < 2 else point_record


def with_gpus(record: PointRecord, header: Header) -> PointRecord:
    """Name the GPUs of a record that does not: rank k of a host has the host's GPU k. UUIDs are global, so that
    hosts that share a GPU show it."""
    if record.gpus or record.point.hardware.device != "cuda":
        return record
    uuids = {host.hostname: iter([gpu.uuid for gpu in host.gpus]) for host in header.hosts}
    gpus = tuple(next(uuids.get(name, iter(())), "") for name in record.hosts)
    if not all(gpus):
        return record
    shared = record.point.kind != "each" and len(set(gpus)) < len(gpus)
    return replace(record, gpus=gpus, oversubscribed=record.oversubscribed or shared)


def _from_1(record: Plain) -> Plain:
    """The point's fields stood side by side, ranks and helpers kept interface and card and not the address, and
    what had to cross nodes was reckoned from the pattern when the run was read; warnings were texts."""
    point = dict(record["point"])
    work = {name: point.pop(name) for name in Workload.__struct_fields__ if name in point}
    hardware = {name: point.pop(name) for name in Hardware.__struct_fields__ if name in point}
    return {
        **record,
        "point": {**point, "workload": work, "hardware": hardware},
        "ranks": [_with_crossing(_with_place(rank, "lo"), record) for rank in record["ranks"]],
        "helpers": [_with_place(helper, "") for helper in record.get("helpers", ())],
        "warnings": [{"kind": _kind(text), "text": text} for text in record.get("warnings", ())],
    }


def _kind(text: str) -> WarningKind:
    return next((kind for words, kind in _KINDS.items() if words in text), "other")


def _with_place(child: Plain, default: str) -> Plain:
    fields = dict(child)
    interface, card = fields.pop("interface", default), fields.pop("hca", "")
    return {**fields, "place": {"address": "", "interface": interface, "hca": card}}


def _with_crossing(rank: Plain, record: Plain) -> Plain:
    """With what a step had to send between nodes in its `ready`, where this was known: the strategies of that time
    called what makes gradients smaller `compression`."""
    compression = record["point"].get("options", {}).get("compression", "none")
    if rank.get("ready") is None or not record.get("synchronous", True) or compression != "none":
        return rank
    servers = [helper["host"] for helper in record.get("helpers", ()) if helper["name"].startswith(SERVER)]
    bounds = crossing.bytes_per_step(
        record.get("pattern", ""), rank["ready"]["gradient_bytes"], record.get("hosts", ()), servers
    )
    return {**rank, "ready": {**rank["ready"], "crossing_bytes_per_step": bounds}}
