"""Bandwidths in JSON: AMD's rccl-tests (`-Z json`) and dumps of NVIDIA's NCCL Inspector.

GB/s are 1e9 bytes/s. Both print one object per result and line.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from scaling.records.run import ImportedBandwidth
from scaling.tools.importers.lines import LogLine
from scaling.tools.importers.logs import Found, Given, Refused, Skipped, Tool, bandwidth, once, world_size
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
    times = [one[name] for name in ("time", "algBw", "busBw")]
    wrong = int(one["wrong"]) if str(one["wrong"]).isdigit() else None
    devices, place = world_size([devices], given), bool(one["inPlace"])
    name = _collective(one["name"])
    return bandwidth("rccl_tests", name, devices, one["size"], times, one["type"], one["redop"], place, wrong)


RCCL = Tool("rccl_tests", ('"busBw"',), re.compile(r'"inPlace":\s*[01],.*"busBw":\s*[\d.]'), _read_rccl)


# ---------------------------------------------------------------- NCCL Inspector
# ext-profiler/inspector of github.com/NVIDIA/nccl: each rank dumps each collective of a program. The row of a size
# is the dump with the lower median bandwidth.

# collective, devices, bytes
_Key = tuple[str, int, int]
_DUMP = re.compile(r'\{.*"coll_perf".*\}')


def _read_inspector(lines: Iterable[LogLine], given: Given) -> Found:
    skipped = Skipped()
    dumps: dict[_Key, array[float]] = defaultdict(lambda: array("d"))
    for line in lines:
        if "coll_perf" not in line.text:
            continue
        try:
            one = _check(_of_dump(_object(line.text), given))
        except _DAMAGED:
            skipped.add(line)
            continue
        said = (one.busbw_gbytes_per_s, one.algbw_gbytes_per_s, 1e6 * one.time_s)
        dumps[one.collective, one.world_size, one.size_bytes].extend(said)
    notes = ("collectives of a program, each dumped by its ranks: the row is the lower median",)
    return Found(bandwidths=tuple(_middles(dumps)), notes=(*notes, *skipped.notes()) if dumps else ())


def _object(text: str) -> dict[str, Any]:
    if (whole := _DUMP.search(text)) is None:
        raise ValueError
    found: dict[str, Any] = json.loads(whole[0])
    return found


def _middles(dumps: dict[_Key, array[float]]) -> Iterator[ImportedBandwidth]:
    for (collective, devices, size_bytes), each in sorted(dumps.items()):
        rows = np.frombuffer(each).reshape(-1, 3)
        middle = rows[np.argsort(rows[:, 0], kind="stable")[(len(rows) - 1) // 2]]
        yield bandwidth("nccl_inspector", collective, devices, size_bytes, middle[::-1].tolist())


def _of_dump(one: dict[str, Any], given: Given) -> ImportedBandwidth:
    said = one["coll_perf"]
    if said.get("coll_timing_source") == "collective_cpu":
        raise Refused("has times of the host (collective_cpu), which are not the collective's")
    devices = world_size([int(one["header"]["n_ranks"])], given)
    times = [said[f"coll_{name}"] for name in ("exec_time_us", "algobw_gbs", "busbw_gbs")]
    return bandwidth("nccl_inspector", _collective(said["coll"]), devices, said["coll_msg_size_bytes"], times)


INSPECTOR = Tool("nccl_inspector", ("coll_perf",), re.compile(r'"coll_perf":\s*\{'), _read_inspector)
