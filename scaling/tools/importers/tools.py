"""All importers, how a log's tool is recognised, and how logs are read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from stat import S_IFDIR, S_IFREG
from typing import NamedTuple

from msgspec.structs import replace

from scaling import files
from scaling.errors import UsageError
from scaling.text import one_line
from scaling.tools.importers import (
    collectives,
    horovod,
    language_models,
    mxnet,
    nccl_tests,
    pytorch,
    suites,
    superbench,
    tensorflow,
    tokens,
    trainers,
    vision,
)
from scaling.tools.importers.engine import Grammar, Unfinished
from scaling.tools.importers.launches import Clock, ReadLog, refuse_same_launch
from scaling.tools.importers.lines import CUT, blocks, of_blocks, untagged
from scaling.tools.importers.logs import Found, Given, Refused, Tool

_MODULES = (
    horovod, tensorflow, mxnet, nccl_tests, collectives, suites, pytorch, language_models, tokens, trainers,
    superbench, vision,
)  # fmt: skip
TOOLS = {one.name: one for module in _MODULES for one in vars(module).values() if isinstance(one, Grammar | Tool)}
# suites run other tools, whose lines are in their logs, too
SUITES = ("dlbs", "mlperf")
# a library that prints in logs of these trainers, which print their own rate
INSIDE = {
    "deepspeed": {"hf_trainer", "megatron", "lightning"}, "tf_orbit": {"tf_official"},
    "keras": {"tf_official", "horovod"},
}  # fmt: skip

_WHITE = b" \t\r\n"


class Log(NamedTuple):
    """A log whose tool is known; a suite may have run another tool `inside`."""

    path: Path
    tool: str
    digest: str
    inside: str = ""


def recognise(path: Path, wanted: str | None = None) -> Log:
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
        if wanted is None:
            tools.update(name for name in TOOLS.keys() - tools if _has(bare, lines, TOOLS[name]))
    tool = wanted or _one_of(tools)
    return Log(path, tool, digest.hexdigest(), " or ".join(sorted(tools - {tool})) if tool in SUITES else "")


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


def _has(text: str, lines: Iterable[str], tool: Grammar | Tool) -> bool:
    marks = [mark for mark in tool.marks if mark in text]
    return any(re.search(tool.sure, line) for mark in marks for line in lines if mark in line)


def _one_of(tools: Iterable[str]) -> str:
    found = set(tools)
    names = sorted(name for name in found if not found & INSIDE.get(name, set()))
    if suites := [name for name in SUITES if name in names]:
        return suites[0]
    if not names:
        raise Refused(f"no line of it is of a known tool ({', '.join(TOOLS)}); --tool NAME says why not")
    if len(names) > 1:
        raise Refused(f"has lines of {' and of '.join(names)}: split it, or choose one with --tool {names[0]}")
    return names[0]


def read(log: Log, given: Given) -> ReadLog:
    """Read a log into rows with the log's name and notes on skipped lines. Raises Refused."""
    tool = TOOLS[log.tool]
    clock = Clock(tool.marks)
    try:
        found = tool.read(of_blocks(clock.watch(blocks(log.path))), given)
    except Unfinished as why:
        raise Refused(f"{why}; --tool {log.inside} reads its other lines" if log.inside else str(why)) from None
    if not found.rows and not found.bandwidths:
        raise Refused(f"has no line that is whole and says a rate of {log.tool}")
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
            log = recognise(path, wanted)
            if log.digest in seen:
                raise Refused(f"is {seen[log.digest]} again: a launch counts once")
            seen[log.digest] = path
            one = read(log, given)
            refuse_same_launch(one, found)
            found.append(one)
        except UsageError as error:
            raise UsageError(f"LOG {path}: {error}") from None
    return [one.found for one in found]
