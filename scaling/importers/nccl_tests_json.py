"""The object that nccl-tests writes with `-J FILE` (its src/util.cu, version 3).

It holds the environment of the whole process: nothing of `env` is ever kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

from scaling.importers.found import Found, Given, Refused, once, world_size
from scaling.importers.lines import CUT, LogLine
from scaling.records.imported import ImportedBandwidth

# Far above what a table of all sizes takes.
MOST_CHARACTERS = 64_000_000
CPU_TIME = "has CPU times (-C 1), which are not the collective's: run it without -C"


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """The results of all objects. Raises Refused of one that is not closed."""
    found: list[ImportedBandwidth] = []
    for one in _objects(_text(lines)):
        try:
            found += _bandwidths(one, given)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            raise Refused("is no object of nccl-tests -J as version 3 writes it") from None
    return Found(bandwidths=once(found))


def _text(lines: Iterable[LogLine]) -> str:
    parts, size = [], 0
    for line in lines:
        size += len(line.text)
        if size > MOST_CHARACTERS:
            raise Refused("is too large for an object of nccl-tests -J")
        parts.append(line.text)
    return "\n".join(parts).replace(CUT, "").strip()


def _objects(text: str) -> Iterator[dict[str, Any]]:
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        try:
            one, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            raise Refused("is an object that is not closed or damaged: nccl-tests was broken off") from None
        if not isinstance(one, dict):
            raise Refused("is no object of nccl-tests -J")
        yield one
        place = end
        while place < len(text) and text[place].isspace():
            place += 1


def _bandwidths(one: dict[str, Any], given: Given) -> Iterator[ImportedBandwidth]:
    ranks = [int(device["rank"]) for device in one["config"]["devices"]]
    if len(set(ranks)) < len(ranks):
        raise Refused("has several Rank 0: built without MPI (make MPI=1); its bandwidths are of no network")
    devices = world_size([len(ranks)] if ranks else [], given)
    collective = PurePosixPath(str((one.get("args") or [""])[0])).name.removesuffix("_perf")
    for result in one["results"]:
        for in_place, key in enumerate(("out_of_place", "in_place")):
            if (values := result.get(key)) is not None:
                yield _bandwidth(result, values, bool(in_place), collective, devices)


def _bandwidth(
    result: dict[str, Any], values: dict[str, Any], in_place: bool, collective: str, devices: int
) -> ImportedBandwidth:
    if "cpu_time" in values:
        raise Refused(CPU_TIME)
    wrong = values.get("nwrong")
    redop = str(result.get("redop", "none")).strip()
    return ImportedBandwidth(
        tool="nccl_tests",
        log="",
        collective=collective,
        world_size=devices,
        size_bytes=int(result["size"]),
        dtype=str(result["type"]).strip(),
        redop="" if redop == "none" else redop,
        in_place=in_place,
        time_s=float(values["time"]) / 1e6,
        algbw_gbytes_per_s=float(values["alg_bw"]),
        busbw_gbytes_per_s=float(values["bus_bw"]),
        wrong=int(wrong) if isinstance(wrong, int | float) and wrong >= 0 else None,
    )
