"""nccl-tests (github.com/NVIDIA/nccl-tests): the table of a collective, or the object of `-J`.

Columns come and go with versions and collectives: they are read by the header's names, two groups of time, algbw,
busbw and wrong values from the right. GB/s are 1e9 bytes a second (as its document on performance says).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from msgspec.structs import replace

from scaling.records.imported import ImportedBandwidth
from scaling.tools.importers import nccl_tests_json
from scaling.tools.importers.found import Found, Given, Refused, Skipped, number, once, world_size
from scaling.tools.importers.lines import CUT, LogLine

MARKS = ("busbw", "nccl_version")
# Where it was pasted as text, Markdown took the signs at the beginnings of lines.
SURE = re.compile(r'(?:#|^)\s*size\s+count\s.*\balgbw\s+busbw\b|"nccl_version"\s*:')
_RANK = re.compile(r"(?:#\s+|^\s*)Rank\s+(\d+)\s+((?:Group\s+(\d+)\s+)?Pid\s.*)")
_FAILED = re.compile(r"Out of bounds values\s*:\s*([1-9]\d*)\s+FAILED")
_ROW = re.compile(r"^\s*\d+\s+\d+\s")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """The lines of the table. Raises Refused."""
    each = iter(lines)
    for first in each:
        if first.text.strip():
            whole = chain([first], each)
            if first.text.lstrip().startswith("{"):
                return nccl_tests_json.read(whole, given)
            return _read_text(whole, given)
    raise Refused("is empty")


class _Log:
    """What the lines of a text say."""

    def __init__(self) -> None:
        self.ranks: dict[int, set[str]] = {}
        self.groups: dict[int, int] = {}
        self.collectives: set[str] = set()
        self.columns: list[str] = []
        self.tables = 0
        self.found: dict[ImportedBandwidth, None] = {}  # each once: tables are printed again
        self.audit = ""

    def read(self, line: LogLine, skipped: Skipped) -> None:
        """What a line says of it. Raises Refused of CPU time."""
        text = line.text
        if (rank := _RANK.search(text)) is not None:
            self.ranks.setdefault(int(rank[1]), set()).add(" ".join(rank[2].split()))
            self.groups[int(rank[1])] = int(rank[3] or 0)
        elif SURE.search(text):
            self.columns, self.tables = _columns(text), self.tables + 1
        elif self.columns and _ROW.match(text):
            made = list(_bandwidths(_tokens(text, self.columns), self.columns))
            self.found.update(dict.fromkeys(made))
            if not made:
                skipped.add(line)
        elif (failed := _FAILED.search(text)) is not None:
            self.audit = nccl_tests_json.out_of_bounds(int(failed[1]))
        self.collectives.update(name[1] for name in nccl_tests_json.NAME.finditer(text))


def _read_text(lines: Iterable[LogLine], given: Given) -> Found:
    skipped, log = Skipped(), _Log()
    for line in lines:
        log.read(line, skipped)
    devices, groups = _devices(log.ranks, log.groups, given)
    if log.tables > 1 and len(log.collectives) > 1:
        raise Refused(f"has tables of several collectives ({', '.join(sorted(log.collectives))}): split it")
    named = min(log.collectives) if len(log.collectives) == 1 else ""
    found = once(_with(one, devices, named) for one in log.found)
    return Found(bandwidths=nccl_tests_json.audited(found, log.audit), notes=(*groups, *skipped.notes()))


def _columns(text: str) -> list[str]:
    """The header's names; none where it is damaged. Raises Refused of CPU time."""
    columns = text.replace("#wrong", "wrong").lstrip("# ").split()
    if "cputime" in columns:
        raise Refused(nccl_tests_json.CPU_TIME)
    return columns if "time" in columns else []


def _tokens(text: str, columns: list[str]) -> list[str]:
    """Of a line, without its date and time, which are two words in the one column `timestamp` at its end."""
    tokens = text.split()
    if columns[-1] != "timestamp":
        return tokens
    return tokens[:-2] if _DATE.match(" ".join(tokens[-2:])) else []


def _devices(ranks: dict[int, set[str]], groups: dict[int, int], given: Given) -> tuple[int, tuple[str, ...]]:
    """Of one group, and what is to be said of several."""
    if any(len(said) > 1 for said in ranks.values()):
        raise Refused(
            "has several Rank 0: as many runs of one process, built without MPI (make MPI=1), whose "
            "bandwidths are of no network; of runs after each other, split the log"
        )
    if ranks and sorted(ranks) != list(range(len(ranks))):
        raise Refused(f"lacks lines of ranks: the largest is {max(ranks)}, {len(ranks)} are there")
    size, notes = nccl_tests_json.of_a_group(groups.values())
    return world_size([size] if size else [], given, " (no Rank lines)"), notes


def _bandwidths(tokens: Sequence[str], columns: Sequence[str]) -> Iterator[ImportedBandwidth]:
    """Out of place and in place; nothing of a line whose columns are not those of the header."""
    width = (len(columns) - (columns[-1] == "timestamp") - columns.index("time")) // 2
    left, groups = tokens[: -2 * width], (tokens[-2 * width : -width], tokens[-width:])
    if not 2 <= len(left) <= columns.index("time") or len(tokens) < 2 * width + 2:
        return
    words = [one for one in left[2:] if not one.lstrip("-").isdigit()]
    values = [_values(group) for group in groups]
    if None in values or not all(one.isdigit() for one in left[:2]):
        return
    for in_place, (group, value) in enumerate(zip(groups, values, strict=True)):
        assert value is not None
        wrong = group[3] if width > 3 and columns[columns.index("time") + 3] == "wrong" else "N/A"
        yield ImportedBandwidth(
            tool="nccl_tests",
            log="",
            collective="",
            world_size=0,
            size_bytes=int(left[0]),
            dtype=words[0] if words else "",
            redop=words[1] if len(words) > 1 and words[1] != "none" else "",
            in_place=bool(in_place),
            time_s=value[0] / 1e6,
            algbw_gbytes_per_s=value[1],
            busbw_gbytes_per_s=value[2],
            wrong=int(number(wrong)) if _NUMBER.fullmatch(wrong) else None,  # many are 1.04858e+06
        )


def _values(group: Sequence[str]) -> tuple[float, float, float] | None:
    """Microseconds, algbw, busbw."""
    if any(not _NUMBER.fullmatch(one) for one in group[:3]) or any(CUT in one for one in group):
        return None
    time, algbw, busbw = map(number, group[:3])
    return (time, algbw, busbw) if time > 0 else None


def _with(one: ImportedBandwidth, devices: int, collective: str) -> ImportedBandwidth:
    return replace(one, world_size=devices, collective=collective)
