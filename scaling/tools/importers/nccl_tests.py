"""Importer for nccl-tests (github.com/NVIDIA/nccl-tests): the table of a collective, or the JSON of `-J`.

Columns differ between versions and collectives, so the header's names are used. From the right there are two
groups of time, algbw, busbw and wrong values. GB/s are 1e9 bytes/s (its performance document).
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import isfinite
from statistics import median
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling.records.run import ImportedBandwidth
from scaling.text import counted
from scaling.tools.importers.lines import CUT, LogLine
from scaling.tools.importers.logs import (
    APART,
    Found,
    Given,
    Refused,
    Skipped,
    Tool,
    bandwidth,
    number,
    once,
    world_size,
)

# ---------------------------------------------------------------- number of devices
# By the performance document of nccl-tests, busbw / algbw of an all-reduce is 2 (N - 1) / N: 1.75 is N = 8. It is
# (N - 1) / N for these:

_OF_SHARES = {"all_gather", "reduce_scatter", "alltoall", "gather", "scatter"}
COLLECTIVES = ("all_reduce", *sorted(_OF_SHARES), "reduce", "broadcast", "alltoallv", "sendrecv", "hypercube")
_MOST_DEVICES = 4096
# of values with two decimals, and of ratios that do not follow the formula
_ROUNDING, _APART = 0.006, 0.002


def busbw_over_algbw(collective: str, devices: NDArray[np.int64]) -> NDArray[np.float64]:
    """The factor of a collective; 0 for those whose bandwidths are the same, or unknown."""
    share = 2 if collective == "all_reduce" else 1 if collective in _OF_SHARES else 0
    return np.asarray(share * (devices - 1) / devices)


def _counted(
    listed: int, found: Iterable[ImportedBandwidth], collective: str, given: Given, hint: str = ""
) -> int:
    """Devices by rank lines, by the ratio of bandwidths if it is of one number alone, or by the flag."""
    fitting = _fitting(tuple(found), collective)
    said = {listed} if listed else set(fitting if len(fitting) == 1 else ())
    devices = world_size(said, given, hint)
    if fitting and devices not in fitting:
        near = " to ".join(map(str, dict.fromkeys((fitting[0], fitting[-1]))))
        raise Refused(f"says {devices} devices, but its busbw / algbw is of {near}: --world-size N must be that")
    return devices


def _fitting(found: Sequence[ImportedBandwidth], collective: str) -> list[int]:
    """Numbers of devices that explain each busbw, empty if none does or any would.

    Before 2020 algbw of shares was busbw (NVIDIA/nccl-tests#37)."""
    if not collective and any(one.busbw_gbytes_per_s > 1.02 * one.algbw_gbytes_per_s > 1 for one in found):
        collective = "all_reduce"
    algbw = np.array([one.algbw_gbytes_per_s for one in found])
    busbw = np.array([one.busbw_gbytes_per_s for one in found])
    if collective not in ("all_reduce", *_OF_SHARES) or bool((busbw == algbw).all()):
        return []
    counts = np.arange(1, _MOST_DEVICES + 1)
    factors = busbw_over_algbw(collective, counts)
    off = abs(busbw - factors[:, None] * algbw) - _ROUNDING * (1 + factors[:, None]) - _APART * busbw
    return [int(count) for count in counts[(off <= 0).all(axis=1)]]


# ---------------------------------------------------------------- JSON of -J
# src/util.cu of versions 2 and 3 writes it. `env` has the environment of the process and is never kept.


# far above a table of all sizes
_MOST_CHARACTERS = 64_000_000
_NAME = re.compile(rf"\b({'|'.join(COLLECTIVES)})_perf(?:_mpi)?\b")
_CPU_TIME = "has CPU times (-C 1), which are not the collective's: run it without -C"


def _read_json(lines: Iterable[LogLine], given: Given) -> Found:
    found: list[ImportedBandwidth] = []
    notes: dict[str, None] = {}
    skipped = 0
    for one in _objects(_text(lines)):
        try:
            listed, groups = _json_devices(one["config"])
            failed = int((one.get("out_of_bounds") or {}).get("count", 0))
            told = list(_json_bandwidths(one))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            raise Refused("is no object of nccl-tests -J as version 3 writes it") from None
        whole = [line for line in told if _is_whole(line)]
        devices = _counted(listed, whole, whole[0].collective if whole else "", given)
        whole = [replace(line, world_size=devices) for line in whole]
        found += _audited(whole, _out_of_bounds(failed) if failed else "")
        skipped += len(told) - len(whole)
        notes.update(dict.fromkeys(groups))
    said = (f"{counted(skipped, 'result')} skipped whose time or bandwidth is no number",) if skipped else ()
    return Found(bandwidths=once(found), notes=(*notes, *said))


def _is_whole(one: ImportedBandwidth) -> bool:
    return one.time_s > 0 and all(map(isfinite, (one.time_s, one.algbw_gbytes_per_s, one.busbw_gbytes_per_s)))


def _out_of_bounds(count: int) -> str:
    return f"nccl-tests found wrong values: out of bounds {count}"


def _audited(found: Iterable[ImportedBandwidth], audit: str) -> tuple[ImportedBandwidth, ...]:
    """Mark all results if wrong values were reported and no line shows where."""
    lines = tuple(found)
    if not audit or any(one.wrong for one in lines):
        return lines
    return tuple(replace(one, audit=audit) for one in lines)


def _of_a_group(groups: Iterable[int]) -> tuple[int, tuple[str, ...]]:
    """Ranks of one group, and a note if several groups run at once. Raises Refused for unequal groups."""
    sizes = Counter(groups)
    if len(set(sizes.values())) > 1:
        raise Refused("has groups of several sizes (NCCL_TESTS_SPLIT): its bandwidths are of no number of devices")
    if len(sizes) < 2:
        return sizes.total(), ()
    said = (
        f"{len(sizes)} groups at once (NCCL_TESTS_SPLIT): bandwidths are those of one, over the mean time of all"
    )
    return sizes.total() // len(sizes), (said,)


def _json_devices(config: dict[str, Any]) -> tuple[int, tuple[str, ...]]:
    ranks = [int(device["rank"]) for device in config["devices"]]
    if len(set(ranks)) < len(ranks):
        raise Refused("has several Rank 0: built without MPI (make MPI=1); its bandwidths are of no network")
    each = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
    listed = 1 if sorted(ranks) == list(range(len(ranks))) and len(ranks) > 1 else each
    if sorted(ranks) != [listed * place for place in range(len(ranks))]:
        raise Refused(f"lists {len(ranks)} ranks up to {max(ranks)} of processes with {each}: some are missing")
    size, notes = _of_a_group(int(device.get("group", 0)) for device in config["devices"])
    return listed * size, notes


def _text(lines: Iterable[LogLine]) -> str:
    parts, size = [], 0
    for line in lines:
        size += len(line.text)
        if size > _MOST_CHARACTERS:
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


def _json_bandwidths(one: dict[str, Any]) -> Iterator[ImportedBandwidth]:
    named = _NAME.search(str((one.get("args") or [""])[0]))
    for result in one["results"]:
        for in_place, key in enumerate(("out_of_place", "in_place")):
            if (values := result.get(key)) is not None:
                yield _bandwidth(result, values, bool(in_place), named[1] if named else "")


def _bandwidth(
    result: dict[str, Any], values: dict[str, Any], in_place: bool, collective: str
) -> ImportedBandwidth:
    if "cpu_time" in values:
        raise Refused(_CPU_TIME)
    wrong = values.get("nwrong")
    wrong = int(wrong) if isinstance(wrong, int | float) and wrong >= 0 else None
    times = [values[name] for name in ("time", "alg_bw", "bus_bw")]
    redop = result.get("redop", "none")
    return bandwidth("nccl_tests", collective, 0, result["size"], times, result["type"], redop, in_place, wrong)


# ---------------------------------------------------------------- table

# Pasted tables may lack the leading `#`, which Markdown removes.
_SURE = re.compile(r'(?:#|^)\s*size\s+count\s.*\balgbw\s+busbw\b|"nccl_version"\s*:')
_RANK = re.compile(r"(?:#\s+|^\s*)Rank\s+(\d+)\s+((?:Group\s+(\d+)\s+)?Pid\s.*)")
_FAILED = re.compile(r"Out of bounds values\s*:\s*([1-9]\d*)\s+FAILED")
_ROW = re.compile(r"^\s*\d+\s+\d+\s")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")


def _read(lines: Iterable[LogLine], given: Given) -> Found:
    each = iter(lines)
    for first in each:
        if first.text.strip():
            whole = chain([first], each)
            if first.text.lstrip().startswith("{"):
                return _read_json(whole, given)
            return _read_text(whole, given)
    raise Refused("is empty")


class _Log:
    def __init__(self) -> None:
        self.ranks: dict[int, set[str]] = {}
        self.groups: dict[int, int] = {}
        self.collectives: set[str] = set()
        self.columns: list[str] = []
        self.tables = 0
        self.found: dict[ImportedBandwidth, None] = {}  # without repeated tables
        self.audit = ""

    def read(self, line: LogLine, skipped: Skipped) -> None:
        text = line.text
        if (rank := _RANK.search(text)) is not None:
            self.ranks.setdefault(int(rank[1]), set()).add(" ".join(rank[2].split()))
            self.groups[int(rank[1])] = int(rank[3] or 0)
        elif _SURE.search(text):
            self.columns, self.tables = _columns(text), self.tables + 1
        elif self.columns and _ROW.match(text):
            made = list(_bandwidths(_tokens(text, self.columns), self.columns))
            self.found.update(dict.fromkeys(made))
            if not made:
                skipped.add(line)
        elif (failed := _FAILED.search(text)) is not None:
            self.audit = _out_of_bounds(int(failed[1]))
        self.collectives.update(name[1] for name in _NAME.finditer(text))


def _read_text(lines: Iterable[LogLine], given: Given) -> Found:
    skipped, log = Skipped(), _Log()
    for line in lines:
        log.read(line, skipped)
    if log.tables > 1 and len(log.collectives) > 1:
        raise Refused(f"has tables of several collectives ({', '.join(sorted(log.collectives))}): split it")
    listed, groups = _devices(log.ranks, log.groups)
    if log.tables > 1 and _apart(log.found) > 1 + APART:
        raise Refused("has tables whose times differ by over 20 %, of several runs: split it")
    named = min(log.collectives) if len(log.collectives) == 1 else ""
    devices = _counted(listed, log.found, named, given, " (no Rank lines)")
    found = once(replace(one, world_size=devices, collective=named) for one in log.found)
    return Found(bandwidths=_audited(found, log.audit), notes=(*groups, *skipped.notes()))


def _apart(found: Iterable[ImportedBandwidth]) -> float:
    """Largest over least time of a size that several tables have: the median over sizes, 1 without any."""
    by_size: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for one in found:
        by_size[one.size_bytes, one.in_place, one.dtype, one.redop].append(one.time_s)
    return median([max(times) / min(times) for times in by_size.values() if len(times) > 1] or [1.0])


def _columns(text: str) -> list[str]:
    """The header's names, empty if damaged. Raises Refused for CPU times."""
    columns = text.replace("#wrong", "wrong").lstrip("# ").split()
    if "cputime" in columns:
        raise Refused(_CPU_TIME)
    return columns if "time" in columns else []


def _tokens(text: str, columns: list[str]) -> list[str]:
    """Date and time are two words in the last column `timestamp`."""
    tokens = text.split()
    if columns[-1] != "timestamp":
        return tokens
    return tokens[:-2] if _DATE.match(" ".join(tokens[-2:])) else []


def _devices(ranks: dict[int, set[str]], groups: dict[int, int]) -> tuple[int, tuple[str, ...]]:
    if any(len(said) > 1 for said in ranks.values()):
        raise Refused(
            "has several Rank 0: as many runs of one process, built without MPI (make MPI=1), whose "
            "bandwidths are of no network; of runs after each other, split the log"
        )
    if ranks and sorted(ranks) != list(range(len(ranks))):
        raise Refused(f"lacks lines of ranks: the largest is {max(ranks)}, {len(ranks)} are there")
    return _of_a_group(groups.values())


def _bandwidths(tokens: Sequence[str], columns: Sequence[str]) -> Iterator[ImportedBandwidth]:
    """Empty if the columns do not match the header."""
    places, time = columns.count("time"), columns.index("time")
    width = (len(columns) - (columns[-1] == "timestamp") - time) // places
    left, right = tokens[: -places * width], tokens[-places * width :]
    if width < 3 or not 2 <= len(left) <= time or len(tokens) < places * width + 2:
        return
    groups = [right[place * width : (place + 1) * width] for place in range(places)]
    words = [one for one in left[2:] if not one.lstrip("-").isdigit()]
    values = [_values(group) for group in groups]
    if None in values or not all(one.isdigit() for one in left[:2]):
        return
    for in_place, (group, value) in enumerate(zip(groups, values, strict=True)):
        assert value is not None
        said = group[3] if width > 3 and columns[time + 3] == "wrong" else "N/A"
        wrong = int(number(said)) if _NUMBER.fullmatch(said) else None  # may be written as 1.04858e+06
        dtype, redop = [*words, "", ""][:2]
        yield bandwidth("nccl_tests", "", 0, left[0], value, dtype, redop, bool(in_place), wrong)


def _values(group: Sequence[str]) -> tuple[float, float, float] | None:
    if any(not _NUMBER.fullmatch(one) for one in group[:3]) or any(CUT in one for one in group):
        return None
    time, algbw, busbw = map(number, group[:3])
    return (time, algbw, busbw) if time > 0 else None


TOOL = Tool("nccl_tests", ("busbw", "nccl_version"), _SURE, _read)
