"""The object that nccl-tests writes with `-J FILE` (its src/util.cu, versions 2 and 3).

It holds the environment of the whole process: nothing of `env` is ever kept.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

from msgspec.structs import replace

from scaling.records.imported import ImportedBandwidth
from scaling.text import counted
from scaling.tools.importers.found import Found, Given, Refused, once, world_size
from scaling.tools.importers.lines import CUT, LogLine

# Far above what a table of all sizes takes.
MOST_CHARACTERS = 64_000_000
NAME = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|reduce|broadcast|alltoallv?|sendrecv|gather|scatter|hypercube)"
    r"_perf(?:_mpi)?\b"
)
CPU_TIME = "has CPU times (-C 1), which are not the collective's: run it without -C"


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """The results of all objects. Raises Refused of one that is not closed."""
    found: list[ImportedBandwidth] = []
    notes: dict[str, None] = {}
    skipped = 0
    for one in _objects(_text(lines)):
        try:
            devices, groups = _devices(one["config"], given)
            failed = int((one.get("out_of_bounds") or {}).get("count", 0))
            told = list(_bandwidths(one, devices))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            raise Refused("is no object of nccl-tests -J as version 3 writes it") from None
        whole = [line for line in told if _is_whole(line)]
        found += audited(whole, out_of_bounds(failed) if failed else "")
        skipped += len(told) - len(whole)
        notes.update(dict.fromkeys(groups))
    said = (f"{counted(skipped, 'result')} skipped whose time or bandwidth is no number",) if skipped else ()
    return Found(bandwidths=once(found), notes=(*notes, *said))


def _is_whole(one: ImportedBandwidth) -> bool:
    return one.time_s > 0 and all(map(isfinite, (one.time_s, one.algbw_gbytes_per_s, one.busbw_gbytes_per_s)))


def out_of_bounds(count: int) -> str:
    """What the sum below a table says of wrong values."""
    return f"nccl-tests found wrong values: out of bounds {count}"


def audited(found: Iterable[ImportedBandwidth], audit: str) -> tuple[ImportedBandwidth, ...]:
    """All of them, where wrong values were found and no line says in which."""
    lines = tuple(found)
    if not audit or any(one.wrong for one in lines):
        return lines
    return tuple(replace(one, audit=audit) for one in lines)


def of_a_group(groups: Iterable[int]) -> tuple[int, tuple[str, ...]]:
    """How many ranks do a collective, of the group of each; and a note where several groups do one at once. Raises
    Refused of groups that differ."""
    sizes = Counter(groups)
    if len(set(sizes.values())) > 1:
        raise Refused("has groups of several sizes (NCCL_TESTS_SPLIT): its bandwidths are of no number of devices")
    if len(sizes) < 2:
        return sizes.total(), ()
    said = (
        f"{len(sizes)} groups at once (NCCL_TESTS_SPLIT): bandwidths are those of one, over the mean time of all"
    )
    return sizes.total() // len(sizes), (said,)


def _devices(config: dict[str, Any], given: Given) -> tuple[int, tuple[str, ...]]:
    """Of one group. Of each process its first device alone is listed."""
    ranks = [int(device["rank"]) for device in config["devices"]]
    if len(set(ranks)) < len(ranks):
        raise Refused("has several Rank 0: built without MPI (make MPI=1); its bandwidths are of no network")
    each = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
    listed = 1 if sorted(ranks) == list(range(len(ranks))) and len(ranks) > 1 else each
    if sorted(ranks) != [listed * place for place in range(len(ranks))]:
        raise Refused(f"lists {len(ranks)} ranks up to {max(ranks)} of processes with {each}: some are missing")
    size, notes = of_a_group(int(device.get("group", 0)) for device in config["devices"])
    return world_size([listed * size] if size else [], given), notes


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


def _bandwidths(one: dict[str, Any], devices: int) -> Iterator[ImportedBandwidth]:
    named = NAME.search(str((one.get("args") or [""])[0]))
    for result in one["results"]:
        for in_place, key in enumerate(("out_of_place", "in_place")):
            if (values := result.get(key)) is not None:
                yield _bandwidth(result, values, bool(in_place), named[1] if named else "", devices)


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
