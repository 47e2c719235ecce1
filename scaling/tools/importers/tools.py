"""All importers; how a log's tool is recognised, which logs are of one launch, how logs are read into a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import closing
from datetime import datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path
from stat import S_IFDIR, S_IFREG
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from scaling import files
from scaling.analysis.table.imported import FACTS, UNKNOWN
from scaling.errors import UsageError
from scaling.records.run import ImportedRow
from scaling.text import one_line
from scaling.tools.importers import collectives, generic, images, table, trainers
from scaling.tools.importers.engine import Grammar
from scaling.tools.importers.lines import CUT, MOST_SHAPES, blocks, of_blocks, shapes, untagged
from scaling.tools.importers.logs import Found, Given, Refused, Tool, Trace

_MODULES = (images, collectives, trainers)
TOOLS = {one.name: one for module in _MODULES for one in vars(module).values() if isinstance(one, Grammar | Tool)}
NOTHING = Given()
_SURE = {name: (tool.marks, re.compile(tool.sure)) for name, tool in TOOLS.items()}
# what `--same-work` makes equal
_SAME = ("model", "precision", "parallelism")
# a library that prints in logs of these trainers, which print their own rate
INSIDE = {"deepspeed": {"hf_trainer", "megatron", "lightning"}}

_WHITE = b" \t\r\n"
# blocks of an unknown log that are searched for lines that look like rates
_LOOKED_AT = 16


def forms(tool: Grammar | Tool) -> Iterator[str]:
    """The name of a tool, and the forms of its lines with a rate."""
    yield tool.name
    lines = [line.text for line in tool.lines if line.has_rate] if isinstance(tool, Grammar) else []
    pattern = tool.said[1] if isinstance(tool, Grammar) else tool.sure.pattern
    yield from (f"    {text}" for text in lines or [pattern])


class Unknown(Refused):
    """A log of no known tool; `hints` are lines that look like rates, and the command that reads them."""

    hints: tuple[str, ...] = ()


def recognise(path: Path, wanted: str | None = None, given: Given = NOTHING) -> tuple[str, str]:
    """Find a log's tool, and a digest of its text without tags and white space; `wanted` overrides the lines.

    Raises Refused for no tool or several.
    """
    if why_not := _why_not(path):
        raise Refused(why_not)
    digest = sha256()
    tools: set[str] = set()
    known: set[int] = set()
    for block in blocks(path):
        _, lines = untagged(block)
        bare = "\n".join(lines)
        digest.update(bare.replace(CUT, "").encode("utf-8", "replace").translate(None, _WHITE))
        if wanted is None and table.is_table(next(filter(str.strip, lines), ""), given.form):
            wanted = table.NAME
        elif wanted is None and given.form.rate:
            wanted = generic.NAME
        elif wanted is None and (new := [one for one in {*shapes(bare)} if hash(one) not in known]):
            known = {*map(hash, new), *(known if len(known) < MOST_SHAPES else ())}
            bare = b"\n".join(new).decode()
            tools.update(name for name in TOOLS.keys() - tools if _has(bare, *_SURE[name]))
    for name in [*tools]:
        also = getattr(TOOLS[name], "also", "")
        if also and not any(re.search(also, block) for block in blocks(path)):
            tools.remove(name)
    return wanted or _one_of(tools, path), digest.hexdigest()


def _why_not(path: Path) -> str:
    try:
        kind = files.kind(path)
    except OSError as error:
        return error.strerror or str(error)
    if kind == S_IFREG:
        return "" if path.stat().st_size else "is empty"
    if kind == S_IFDIR:
        return "is a folder: give the logs in it"
    if kind or str(path) == "-":
        return "is no regular file: it is read twice, save it first"
    return "no such file"


def _has(text: str, marks: Sequence[str], sure: re.Pattern[str]) -> bool:
    found = [mark for mark in marks if mark in text]
    return any(sure.search(line) for mark in found for line in text.split("\n") if mark in line)


def _one_of(found: Set[str], path: Path) -> str:
    names = sorted(name for name in found if not found & INSIDE.get(name, set()))
    if not names:
        unknown = Unknown("no line of it is of a known tool (--list shows their lines); --rate reads any log")
        unknown.hints = generic.hints(of_blocks(islice(blocks(path), _LOOKED_AT)), str(path))
        raise unknown
    if len(names) > 1:
        raise Refused(f"has lines of {' and of '.join(names)}: split it, or choose one with --tool {names[0]}")
    return names[0]


# ---------------------------------------------------------------- logs of one launch
#
# Files of its ranks, or copies of its output. They ran at the same time. Without times, their rates rise and fall
# together, because ranks wait for each other at each step.

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(\d\d):(\d\d):(\d\d)"
_TIMES = (
    re.compile(rf"(?<!\d)(\d{{4}})[-/](\d\d)[-/](\d\d)[T ]{_CLOCK}"),
    re.compile(rf"()\b({'|'.join(_MONTHS)}) ([ \d]\d) {_CLOCK}"),  # syslog
    re.compile(rf"()\b[IWE](\d\d)(\d\d) {_CLOCK}"),  # glog
)
# of formats without a year
_YEAR = 2000
# of the shorter log
_LEAST_OVERLAP = 0.5


class Clock:
    """Times of a log's lines of data, those that have one of `marks`."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = marks
        self.first: datetime | None = None
        self.last: datetime | None = None

    def watch(self, blocks: Iterable[str]) -> Iterator[str]:
        """Yield the blocks. The first and the last line of data of each are looked at."""
        for block in blocks:
            if places := [place for mark in self._marks if (place := block.find(mark)) >= 0]:
                last = max(block.rfind(mark) for mark in self._marks)
                self.first = self.first or time_of(_line_at(block, min(places)))
                self.last = time_of(_line_at(block, last)) or self.last
            yield block

    def overlaps(self, other: Clock) -> bool:
        """Whether both ran at the same time for most of the shorter log; False if either has no times."""
        if self.first is None or self.last is None or other.first is None or other.last is None:
            return False
        shorter = min(self.last - self.first, other.last - other.first)
        common = min(self.last, other.last) - max(self.first, other.first)
        return shorter.total_seconds() > 0 and common > _LEAST_OVERLAP * shorter


def _line_at(block: str, place: int) -> str:
    return block[block.rfind("\n", 0, place) + 1 : block.find("\n", place)]


def time_of(line: str) -> datetime | None:
    """Return the first time of a line, without its zone."""
    for form in _TIMES:
        if (found := form.search(line)) is not None:
            year, month, day, *clock = found.groups()
            hour, minute, second = map(int, clock)
            number = _MONTHS.index(month) + 1 if month in _MONTHS else int(month)
            try:
                return datetime(int(year or _YEAR), number, int(day), hour, minute, second)
            except ValueError:
                continue
    return None


# of rates of one step; ranks of one launch differ less
_NEAR = 0.1
# equal rates without a change may be chance
_LEAST_VALUES = 3
# changes from step to step: their least number, least rank correlation, largest probability of it by chance
_LEAST_CHANGES, _LEAST_CORRELATION, _CHANCE = 8, 0.7, 1e-4


def is_together(one: Trace, other: Trace) -> bool:
    """Whether the rates after the first step are the same, or nearly so and change together."""
    _, ours, theirs = np.intersect1d(one.places, other.places, return_indices=True)
    first, second = np.array(one.rates)[ours[1:]], np.array(other.rates)[theirs[1:]]
    if not first.size or np.any(np.abs(first - second) > _NEAR * first):
        return False
    if np.array_equal(first, second):
        return len(set(first.tolist())) >= _LEAST_VALUES
    first, second = np.diff(first), np.diff(second)
    if first.size < _LEAST_CHANGES or not np.ptp(first) or not np.ptp(second):
        return False
    from scipy.stats import spearmanr  # type: ignore[import-untyped]  # slow, and rarely needed

    found = spearmanr(first, second)
    return bool(found.statistic >= _LEAST_CORRELATION and found.pvalue < _CHANCE)


class ReadLog(NamedTuple):
    """A log that was read, and the times of its lines."""

    path: Path
    found: Found
    clock: Clock


def refuse_same_launch(new: ReadLog, others: Iterable[ReadLog]) -> None:
    """Raise Refused if the log is of the launch of another: its row would be a second launch, with an interval."""
    for other in others:
        if not {*map(_cell, new.found.rows)} & {*map(_cell, other.found.rows)}:
            continue
        if new.found.worker is not None and other.found.worker not in (None, new.found.worker):
            why = f"is of worker {new.found.worker}, {other.path} of worker {other.found.worker}"
        elif new.clock.overlaps(other.clock):
            why = f"ran at the same time as {other.path}, from {new.clock.first} to {new.clock.last}"
        elif any(is_together(one, of_other) for one in new.found.traces for of_other in other.found.traces):
            why = f"has the rates of {other.path} step by step"
        else:
            continue
        raise Refused(
            f"{why}: both are of one launch, which counts once; give one log of each launch, or all of its ranks "
            "in one file if each says its own rate alone"
        )


def _cell(row: ImportedRow) -> tuple[object, ...]:
    return (row.tool, row.world_size, row.parallelism, *(getattr(row, name) for name in FACTS))


# ---------------------------------------------------------------- reading


def read(path: Path, named: str, given: Given) -> ReadLog:
    """Read a log into rows with the log's name and notes on skipped lines. Raises Refused."""
    tool = generic.of_form(given.form) if named == generic.NAME else TOOLS.get(named, table.TOOL)
    clock = Clock(tool.marks)
    with closing(blocks(path)) as text:
        found = tool.read(of_blocks(clock.watch(text), tool is not table.TOOL), given)
    if not found.rows and not found.bandwidths:
        raise Refused("; ".join([f"has no line that is whole and says a rate of {named}", *found.notes]))
    log = one_line(path.name)
    found = replace(
        found,
        rows=tuple(replace(row, log=log, notes=(*row.notes, *found.notes)) for row in found.rows),
        bandwidths=tuple(replace(one, log=log, notes=found.notes) for one in found.bandwidths),
    )
    return ReadLog(path, found, clock)


def read_all(logs: Iterable[tuple[Path, Given]], wanted: str | None = None) -> list[Found]:
    """Read all logs, each with its values from the command line. Raises UsageError with the log's name if one is
    refused, repeated, or of the launch of another."""
    seen: dict[str, Path] = {}
    found: list[ReadLog] = []
    for path, given in logs:
        try:
            tool, digest = recognise(path, wanted, given)
            if digest in seen:
                raise Refused(f"is {seen[digest]} again: a launch counts once")
            seen[digest] = path
            one = read(path, tool, given)
            refuse_same_launch(one, found)
            found.append(one)
        except UsageError as error:
            named = Unknown(f"LOG {path}: {error}")
            named.hints = error.hints if isinstance(error, Unknown) else ()
            raise named from None
    return [one.found for one in found]


def of_one_work(rows: Sequence[ImportedRow], same_work: bool, base: int) -> tuple[ImportedRow, ...]:
    """Give the rows what the user says of them all. Raises UsageError for rows that say otherwise."""
    sizes = sorted({row.world_size for row in rows})
    if base and base not in sizes:
        raise UsageError(f"--base {base}: no log is of {base} devices ({', '.join(map(str, sizes))} are)")
    known: dict[str, dict[str, str]] = {name: {} for name in (_SAME if same_work else ())}
    for name, said in known.items():
        for row in rows:
            value = getattr(row, name)
            if value not in ("", UNKNOWN):
                said.setdefault(value.casefold(), row.log)
        if len(said) > 1:
            (one, log), (other, of_other) = list(said.items())[:2]
            raise UsageError(f"--same-work: the {name} of {log} is {one}, of {of_other} it is {other}")
    shared = {name: next(iter(said)) for name, said in known.items() if said}
    lacking = ({name: one for name, one in shared.items() if getattr(row, name) in ("", UNKNOWN)} for row in rows)
    return tuple(
        replace(row, **own, same_work=same_work, base=base) for row, own in zip(rows, lacking, strict=True)
    )
