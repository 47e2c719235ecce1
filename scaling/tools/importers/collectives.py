"""Bandwidths in JSON: AMD's rccl-tests (`-Z json`) and dumps of NVIDIA's NCCL Inspector.

GB/s are 1e9 bytes/s. Both print one object per result and line.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from scaling.records.run import ImportedBandwidth
from scaling.tools.importers.lines import LogLine
from scaling.tools.importers.logs import Found, Given, Refused, Skipped, Tool, once, world_size
from scaling.tools.importers.nccl_tests import COLLECTIVES, busbw_over_algbw

_NAMES = {name.replace("_", ""): name for name in COLLECTIVES}
_APART = 0.02
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, RecursionError)


def _collective(said: str) -> str:
    return _NAMES.get(said.lower().replace("_", "").removesuffix("perf"), said)


def _check(one: ImportedBandwidth) -> ImportedBandwidth:
    """Raises ValueError for a result without time, Refused for a factor of another number of devices."""
    if not (one.time_s > 0 and one.algbw_gbytes_per_s > 0):
        raise ValueError
    factor = float(busbw_over_algbw("all_reduce", np.array(one.world_size)))
    said = one.busbw_gbytes_per_s / one.algbw_gbytes_per_s
    if one.collective == "all_reduce" and abs(said - factor) > _APART:
        raise Refused(
            f"contradicts itself: busbw / algbw of an all-reduce on {one.world_size} devices is {factor:.2f}, not "
            f"{said:.2f} (groups at once?)"
        )
    return one


# ---------------------------------------------------------------- rccl-tests
# Reporter of github.com/ROCm/rccl-tests. Ranks are processes, each with gpusPerRank devices. Later versions write
# a list.

_RCCL = re.compile(r'\{[^{}]*"busBw"[^{}]*\}')


def _read_rccl(lines: Iterable[LogLine], given: Given) -> Found:
    skipped, found = Skipped(), list[ImportedBandwidth]()
    for line in lines:
        objects = _RCCL.findall(line.text)
        try:
            found += [_check(_of_rccl(json.loads(one), given)) for one in objects]
        except _DAMAGED:
            objects = []
        if not objects and '"size"' in line.text:
            skipped.add(line)
    if len({(one.collective, one.world_size) for one in found}) > 1:
        raise Refused("has several collectives or numbers of devices: split it")
    return Found(bandwidths=once(found), notes=skipped.notes())


def _of_rccl(one: dict[str, Any], given: Given) -> ImportedBandwidth:
    devices = int(one["ranks"]) * int(one["gpusPerRank"]) if "ranks" in one else int(one["gpus"])
    return ImportedBandwidth(
        tool="rccl_tests",
        log="",
        collective=_collective(one["name"]),
        world_size=world_size([devices], given),
        size_bytes=int(one["size"]),
        dtype=str(one["type"]),
        redop="" if one["redop"] == "none" else str(one["redop"]),
        in_place=bool(one["inPlace"]),
        time_s=float(one["time"]) / 1e6,
        algbw_gbytes_per_s=float(one["algBw"]),
        busbw_gbytes_per_s=float(one["busBw"]),
        wrong=int(one["wrong"]) if str(one["wrong"]).isdigit() else None,
    )


RCCL = Tool("rccl_tests", ('"busBw"',), re.compile(r'"inPlace":\s*[01],.*"busBw":\s*[\d.]'), _read_rccl)


# ---------------------------------------------------------------- NCCL Inspector
# ext-profiler/inspector of github.com/NVIDIA/nccl: each rank dumps each collective of a program. The row of a size
# is the dump with the lower median bandwidth.

_DUMP = re.compile(r'\{.*"coll_perf".*\}')


class _Dumps(NamedTuple):
    """Results of one collective, number of devices and size."""

    busbw: array[float]
    algbw: array[float]
    time_s: array[float]


def _read_inspector(lines: Iterable[LogLine], given: Given) -> Found:
    skipped, dumps = Skipped(), dict[tuple[str, int, int], _Dumps]()
    for line in lines:
        if "coll_perf" not in line.text:
            continue
        try:
            one = _check(_of_dump(_object(line.text), given))
        except _DAMAGED:
            skipped.add(line)
            continue
        key = one.collective, one.world_size, one.size_bytes
        of_key = dumps.setdefault(key, _Dumps(array("d"), array("d"), array("d")))
        of_key.busbw.append(one.busbw_gbytes_per_s)
        of_key.algbw.append(one.algbw_gbytes_per_s)
        of_key.time_s.append(one.time_s)
    notes = ("collectives of a program, each dumped by its ranks: the row is the lower median",)
    return Found(bandwidths=tuple(_middles(dumps)), notes=(*notes, *skipped.notes()) if dumps else ())


def _object(text: str) -> dict[str, Any]:
    if (whole := _DUMP.search(text)) is None:
        raise ValueError
    found: dict[str, Any] = json.loads(whole[0])
    return found


def _middles(dumps: dict[tuple[str, int, int], _Dumps]) -> Iterator[ImportedBandwidth]:
    for (collective, devices, size_bytes), each in sorted(dumps.items()):
        order = sorted(range(len(each.busbw)), key=each.busbw.__getitem__)
        place = order[(len(order) - 1) // 2]
        yield _result(collective, devices, size_bytes, each.time_s[place], each.algbw[place], each.busbw[place])


def _of_dump(one: dict[str, Any], given: Given) -> ImportedBandwidth:
    said = one["coll_perf"]
    if said.get("coll_timing_source") == "collective_cpu":
        raise Refused("has times of the host (collective_cpu), which are not the collective's")
    return _result(
        _collective(said["coll"]),
        world_size([int(one["header"]["n_ranks"])], given),
        int(said["coll_msg_size_bytes"]),
        float(said["coll_exec_time_us"]) / 1e6,
        float(said["coll_algobw_gbs"]),
        float(said["coll_busbw_gbs"]),
    )


def _result(
    collective: str, devices: int, size_bytes: int, time_s: float, algbw: float, busbw: float
) -> ImportedBandwidth:
    return ImportedBandwidth(
        tool="nccl_inspector",
        log="",
        collective=collective,
        world_size=devices,
        size_bytes=size_bytes,
        dtype="",
        redop="",
        in_place=False,
        time_s=time_s,
        algbw_gbytes_per_s=algbw,
        busbw_gbytes_per_s=busbw,
    )


INSPECTOR = Tool("nccl_inspector", ("coll_perf",), re.compile(r'"coll_perf":\s*\{'), _read_inspector)
