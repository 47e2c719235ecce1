"""Benchmarks of collectives: the table of NVIDIA's nccl-tests, and AMD's rccl-tests with `-Z json`.

Columns of the table differ between versions and collectives, so the header's names are used. From the right there
are two groups of time, algbw, busbw and wrong values. GB/s are 1e9 bytes/s (its performance document).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling.records.run import ImportedBandwidth
from scaling.tools.importers.lines import CUT, DAMAGED, LogLine
from scaling.tools.importers.logs import APART, Found, Given, Refused, Skipped, Tool, number, world_size

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


def _counted(said: set[int], found: Sequence[ImportedBandwidth], given: Given, hint: str = "") -> int:
    """Devices by the log, by the ratio of bandwidths if it is of one number alone, or by the flag."""
    fitting = _fitting(found)
    devices = world_size(said or set(fitting if len(fitting) == 1 else ()), given, hint)
    if fitting and devices not in fitting:
        near = " to ".join(map(str, dict.fromkeys((fitting[0], fitting[-1]))))
        raise Refused(f"says {devices} devices, but its busbw / algbw is of {near}: --world-size N must be that")
    return devices


def _fitting(found: Sequence[ImportedBandwidth]) -> list[int]:
    """Numbers of devices that explain each busbw, empty if none does or any would.

    Before 2020 algbw of shares was busbw (NVIDIA/nccl-tests#37)."""
    collective = found[0].collective if found else ""
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


# ---------------------------------------------------------------- results


def _bandwidth(
    tool: str, collective: str, devices: int, size_bytes: object, times: Sequence[object], dtype: object,
    redop: object, in_place: bool, wrong: int | None,
) -> ImportedBandwidth:  # fmt: skip
    """A result; `times`: microseconds, algbw and busbw. Raises ValueError, TypeError."""
    time_us, algbw, busbw = (number(str(value)) for value in times)
    if not (time_us > 0 and 0 <= busbw <= 2.01 * algbw + 4 * _ROUNDING):  # busbw is twice algbw at most
        raise ValueError
    return ImportedBandwidth(
        tool=tool, log="", collective=collective, world_size=devices, size_bytes=int(str(size_bytes)),
        dtype=str(dtype).strip(), redop=str(redop).strip().removeprefix("none"), in_place=in_place,
        time_s=time_us / 1e6, algbw_gbytes_per_s=algbw, busbw_gbytes_per_s=busbw, wrong=wrong,
    )  # fmt: skip


def _once(found: Iterable[ImportedBandwidth]) -> tuple[ImportedBandwidth, ...]:
    """Merge repeated measurements of a size and place: lower median, largest count of wrong values."""
    by_cell: dict[tuple[object, ...], list[ImportedBandwidth]] = {}
    for one in found:
        by_cell.setdefault((one.size_bytes, one.in_place, one.dtype, one.redop), []).append(one)
    ordered = (sorted(of_cell, key=lambda one: one.busbw_gbytes_per_s) for of_cell in by_cell.values())
    return tuple(
        replace(
            of_cell[(len(of_cell) - 1) // 2],
            wrong=max((one.wrong for one in of_cell if one.wrong is not None), default=None),
        )
        for of_cell in ordered
    )


# ---------------------------------------------------------------- the table of nccl-tests

# Pasted tables may lack the leading `#`, which Markdown removes.
_SURE = re.compile(r"(?:#|^)\s*size\s+count\s.*\balgbw\s+busbw\b")
_RANK = re.compile(r"(?:#\s+|^\s*)Rank\s+(\d+)\s+((?:Group\s+(\d+)\s+)?Pid\s.*)")
_PLACE = re.compile(r" on\s+(\S+) device\s+\S+ \[(\S+)\]")
_NAME = re.compile(rf"\b({'|'.join(COLLECTIVES)})_perf(?:_mpi)?\b")
_FAILED = re.compile(r"Out of bounds values\s*:\s*([1-9]\d*)\s+FAILED")
_ROW = re.compile(r"^\s*\d+\s+\d+\s")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")


class _Log:
    def __init__(self) -> None:
        self.ranks: dict[int, set[str]] = {}
        self.groups: set[str] = set()
        self.collectives: set[str] = set()
        self.columns: list[str] = []
        self.tables = 0
        self.found: dict[ImportedBandwidth, None] = {}  # without repeated tables
        self.audit = ""

    def read(self, text: str) -> None:
        """Read a line. Raises ValueError for a damaged row."""
        self.collectives.update(name[1] for name in _NAME.finditer(text))
        if (rank := _RANK.search(text)) is not None:
            self.ranks.setdefault(int(rank[1]), set()).add(" ".join(rank[2].split()))
            self.groups.add(rank[3] or "0")
        elif _SURE.search(text):
            self.columns, self.tables = _columns(text), self.tables + 1
        elif self.columns and _ROW.match(text):
            self.found.update(dict.fromkeys(_bandwidths(_tokens(text, self.columns), self.columns)))
        elif (failed := _FAILED.search(text)) is not None:
            self.audit = f"nccl-tests found wrong values: out of bounds {failed[1]}"

    def devices(self) -> set[int]:
        """Ranks of the log. Raises Refused for bandwidths that are of no number of devices."""
        ranks = self.ranks
        if any(len(said) > 1 for said in ranks.values()):
            raise Refused(
                "has several Rank 0: as many runs of one process, built without MPI (make MPI=1), whose "
                "bandwidths are of no network; of runs after each other, split the log"
            )
        if ranks and sorted(ranks) != list(range(len(ranks))):
            raise Refused(f"lacks lines of ranks: the largest is {max(ranks)}, {len(ranks)} are there")
        if len(self.groups) > 1:
            raise Refused(f"has {len(self.groups)} groups at once (NCCL_TESTS_SPLIT), which share the network")
        places = [place.groups() for said in ranks.values() if (place := _PLACE.search(min(said)))]
        if len(set(places)) < len(places):
            raise Refused("has two ranks on one GPU: its bandwidths are of no number of devices")
        return {len(ranks)} if ranks else set()


def _read(lines: Iterable[LogLine], given: Given) -> Found:
    skipped, log = Skipped(), _Log()
    for line in lines:
        try:
            log.read(line.text)
        except ValueError:
            skipped.add(line)
    if log.tables > 1 and len(log.collectives) > 1:
        raise Refused(f"has tables of several collectives ({', '.join(sorted(log.collectives))}): split it")
    if log.tables > 1 and _apart(log.found) > 1 + APART:
        raise Refused("has tables whose times differ by over 20 %, of several runs: split it")
    named = min(log.collectives) if len(log.collectives) == 1 else ""
    found = [replace(one, collective=named) for one in log.found]
    devices = _counted(log.devices(), found, given, " (no Rank lines)")
    found = [replace(one, world_size=devices) for one in _once(found)]
    if log.audit and not any(one.wrong for one in found):  # no line shows where
        found = [replace(one, audit=log.audit) for one in found]
    return Found(bandwidths=tuple(found), notes=skipped.notes())


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
        raise Refused("has CPU times (-C 1), which are not the collective's: run it without -C")
    return columns if "time" in columns else []


def _tokens(text: str, columns: list[str]) -> list[str]:
    """Date and time are two words in the last column `timestamp`."""
    tokens = text.split()
    if columns[-1] != "timestamp":
        return tokens
    return tokens[:-2] if _DATE.match(" ".join(tokens[-2:])) else []


def _bandwidths(tokens: Sequence[str], columns: Sequence[str]) -> Iterator[ImportedBandwidth]:
    """Raises ValueError if the columns do not match the header."""
    places, time = columns.count("time"), columns.index("time")
    width = (len(columns) - (columns[-1] == "timestamp") - time) // places
    left, right = tokens[: -places * width], tokens[-places * width :]
    if width < 3 or not 2 <= len(left) <= time or len(tokens) < places * width + 2:
        raise ValueError
    groups = [right[place * width : (place + 1) * width] for place in range(places)]
    words = [one for one in left[2:] if not one.lstrip("-").isdigit()]
    values = [value for group in groups for value in group[:3]]
    if not all(map(_NUMBER.fullmatch, values)) or CUT in "".join(right) or not "".join(left[:2]).isdigit():
        raise ValueError
    for in_place, group in enumerate(groups):
        said = group[3] if width > 3 and columns[time + 3] == "wrong" else "N/A"
        wrong = int(min(float(said), 1e18)) if _NUMBER.fullmatch(said) else None  # may be 1.04858e+06
        dtype, redop = [*words, "", ""][:2]
        yield _bandwidth("nccl_tests", "", 0, left[0], group[:3], dtype, redop, bool(in_place), wrong)


NCCL_TESTS = Tool("nccl_tests", ("busbw",), _SURE, _read)


# ---------------------------------------------------------------- rccl-tests
# Reporter of github.com/ROCm/rccl-tests. Ranks are processes, each with gpusPerRank devices. Later versions write
# a list.

_OBJECT = re.compile(r'\{[^{}]*"busBw"[^{}]*\}')
_NAMES = {name.replace("_", ""): name for name in COLLECTIVES}


def _read_rccl(lines: Iterable[LogLine], given: Given) -> Found:
    skipped, found = Skipped(), list[ImportedBandwidth]()
    for line in lines:
        objects = _OBJECT.findall(line.text)
        try:
            found += [_of_rccl(json.loads(one)) for one in objects]
        except DAMAGED:
            objects = []
        if not objects and '"size"' in line.text:
            skipped.add(line)
    said = {one.world_size for one in found}
    if len({one.collective for one in found}) > 1 or len(said) > 1:
        raise Refused("has several collectives or numbers of devices: split it")
    if found:
        _counted(said, found, given)
    return Found(bandwidths=_once(found), notes=skipped.notes())


def _of_rccl(one: dict[str, Any]) -> ImportedBandwidth:
    devices = int(one["ranks"]) * int(one["gpusPerRank"]) if "ranks" in one else int(one["gpus"])
    times = [one[name] for name in ("time", "algBw", "busBw")]
    wrong_values = str(one.get("wrong", one.get("#wrong")))
    wrong = int(wrong_values) if wrong_values.isdigit() else None
    said = one["name"]
    name = _NAMES.get(said.lower().replace("_", "").removesuffix("perf"), said)
    return _bandwidth(
        "rccl_tests", name, devices, one["size"], times, one["type"], one["redop"], bool(one["inPlace"]), wrong
    )


RCCL_TESTS = Tool("rccl_tests", ('"busBw"',), re.compile(r'(?=.*"inPlace":\s*\d).*"busBw":\s*[\d.]'), _read_rccl)
