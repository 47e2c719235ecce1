"""All importers, how a log's tool is recognised, and how logs are read into a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import closing
from hashlib import sha256
from itertools import islice
from pathlib import Path
from stat import S_IFDIR, S_IFREG
from typing import NamedTuple

from msgspec.structs import replace

from scaling import files
from scaling.analysis.table.imported import UNKNOWN
from scaling.errors import UsageError
from scaling.records.run import ImportedRow
from scaling.text import one_line
from scaling.tools.importers import collectives, generic, language_models, pytorch, table, tensorflow, vision
from scaling.tools.importers.engine import Grammar
from scaling.tools.importers.launches import Clock, ReadLog, refuse_same_launch
from scaling.tools.importers.lines import CUT, blocks, of_blocks, untagged
from scaling.tools.importers.logs import Found, Given, Refused, Tool

_MODULES = (tensorflow, collectives, pytorch, language_models, vision)
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


class Log(NamedTuple):
    """A log whose tool is known."""

    path: Path
    tool: str
    digest: str


def forms(tool: Grammar | Tool) -> Iterator[str]:
    """The name of a tool, and the forms of its lines with a rate."""
    yield tool.name
    lines = [line.text for line in tool.lines if line.has_rate] if isinstance(tool, Grammar) else []
    pattern = tool.said[1] if isinstance(tool, Grammar) else tool.sure.pattern
    yield from (f"    {text}" for text in lines or [pattern])


class Unknown(Refused):
    """A log of no known tool; `hints` are lines that look like rates, and the command that reads them."""

    hints: tuple[str, ...] = ()


def recognise(path: Path, wanted: str | None = None, given: Given = NOTHING) -> Log:
    """Find a log's tool. Raises Refused for no tool or several; `wanted` overrides the lines.

    The digest is of the text without tags and white space.
    """
    if why_not := _why_not(path):
        raise Refused(why_not)
    digest = sha256()
    tools: set[str] = set()
    for block in blocks(path):
        _, lines = untagged(block)
        bare = "\n".join(lines)
        digest.update(bare.replace(CUT, "").encode("utf-8", "replace").translate(None, _WHITE))
        if wanted is None and table.is_table(next(filter(str.strip, lines), ""), given.form):
            wanted = table.NAME
        elif wanted is None and given.form.rate:
            wanted = generic.NAME
        elif wanted is None:
            tools.update(name for name in TOOLS.keys() - tools if _has(bare, lines, *_SURE[name]))
    for name in [*tools]:
        also = getattr(TOOLS[name], "also", "")
        if also and not any(re.search(also, block) for block in blocks(path)):
            tools.remove(name)
    return Log(path, wanted or _one_of(tools, path), digest.hexdigest())


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


def _has(text: str, lines: Iterable[str], marks: Sequence[str], sure: re.Pattern[str]) -> bool:
    found = [mark for mark in marks if mark in text]
    return any(sure.search(line) for mark in found for line in lines if mark in line)


def _one_of(found: Set[str], path: Path) -> str:
    names = sorted(name for name in found if not found & INSIDE.get(name, set()))
    if not names:
        unknown = Unknown("no line of it is of a known tool (--list shows their lines); --rate reads any log")
        unknown.hints = generic.hints(of_blocks(islice(blocks(path), _LOOKED_AT)), str(path))
        raise unknown
    if len(names) > 1:
        raise Refused(f"has lines of {' and of '.join(names)}: split it, or choose one with --tool {names[0]}")
    return names[0]


def read(log: Log, given: Given) -> ReadLog:
    """Read a log into rows with the log's name and notes on skipped lines. Raises Refused."""
    tool = generic.of_form(given.form) if log.tool == generic.NAME else TOOLS.get(log.tool, table.TOOL)
    may_say = tool.may_say(given) if isinstance(tool, Grammar) else None
    clock = Clock(tool.marks)
    with closing(blocks(log.path)) as text:
        found = tool.read(of_blocks(clock.watch(text), tool is not table.TOOL, may_say), given)
    if not found.rows and not found.bandwidths:
        raise Refused("; ".join([f"has no line that is whole and says a rate of {log.tool}", *found.notes]))
    named = one_line(log.path.name)
    found = replace(
        found,
        rows=tuple(replace(row, log=named, notes=(*row.notes, *found.notes)) for row in found.rows),
        bandwidths=tuple(replace(one, log=named, notes=found.notes) for one in found.bandwidths),
    )
    return ReadLog(log.path, found, clock)


def read_all(logs: Iterable[tuple[Path, Given]], wanted: str | None = None) -> list[Found]:
    """Read all logs, each with its values from the command line. Raises UsageError with the log's name if one is
    refused, repeated, or of the launch of another."""
    seen: dict[str, Path] = {}
    found: list[ReadLog] = []
    for path, given in logs:
        try:
            log = recognise(path, wanted, given)
            if log.digest in seen:
                raise Refused(f"is {seen[log.digest]} again: a launch counts once")
            seen[log.digest] = path
            one = read(log, given)
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
