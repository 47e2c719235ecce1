"""The tools whose logs are read: how each is recognised, and who reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.text import one_line
from scaling.tools.importers import (
    aws_fsdp,
    dlbs,
    dllogger,
    hf_trainer,
    horovod,
    lightning,
    mlperf,
    mxnet,
    mxnet_benchmark,
    nccl_tests,
    tf_cnn,
    tf_official,
    torchtitan,
)
from scaling.tools.importers.found import Found, Given, Read, Refused
from scaling.tools.importers.lines import CUT, blocks, of_blocks, untagged


class Tool(NamedTuple):
    """A grammar: a line is the tool's for sure where one of `marks` stands in it and `sure` matches."""

    marks: tuple[str, ...]
    sure: re.Pattern[str]
    read: Read


TOOLS: dict[str, Tool] = {
    "horovod": Tool(horovod.MARKS, horovod.SURE, horovod.read),
    "tf_cnn_benchmarks": Tool(tf_cnn.MARKS, tf_cnn.SURE, tf_cnn.read),
    "mxnet": Tool(mxnet.MARKS, mxnet.SURE, mxnet.read),
    "mxnet_benchmark": Tool(mxnet_benchmark.MARKS, mxnet_benchmark.SURE, mxnet_benchmark.read),
    "nccl_tests": Tool(nccl_tests.MARKS, nccl_tests.SURE, nccl_tests.read),
    "dllogger": Tool(dllogger.MARKS, dllogger.SURE, dllogger.read),
    "torchtitan": Tool(torchtitan.MARKS, torchtitan.SURE, torchtitan.read),
    "hf_trainer": Tool(hf_trainer.MARKS, hf_trainer.SURE, hf_trainer.read),
    "lightning": Tool(lightning.MARKS, lightning.SURE, lightning.read),
    "tf_official": Tool(tf_official.MARKS, tf_official.SURE, tf_official.read),
    "dlbs": Tool(dlbs.MARKS, dlbs.SURE, dlbs.read),
    "mlperf": Tool(mlperf.MARKS, mlperf.SURE, mlperf.read),
    "aws_fsdp": Tool(aws_fsdp.MARKS, aws_fsdp.SURE, aws_fsdp.read),
}


Cell = tuple[str, str, int, int, bool]
_ENDS = f"\n{CUT}"


class Log(NamedTuple):
    """A log whose tool is known, and the digest of its text."""

    path: Path
    tool: str
    digest: str


def recognise(path: Path, wanted: str | None = None) -> Log:
    """Whose log it is. Raises Refused of a log of no tool or of two; `wanted` overrules what its lines say."""
    if not path.is_file():
        raise Refused(_why_not(path))
    digest, before = sha256(), ""
    tools: set[str] = set()
    for block in blocks(path):
        text = f"{before}{block}".rstrip(_ENDS)
        before = "\n"  # of the end of the log nothing counts: copies of one differ there
        digest.update(text.encode("utf-8", "replace"))
        if wanted is None:
            tools.update(name for name in TOOLS.keys() - tools if _has(block, TOOLS[name]))
    if wanted is None:
        _one_of(tools)
    return Log(path, wanted or tools.pop(), digest.hexdigest())


def _why_not(path: Path) -> str:
    if path.is_dir():
        return "is a folder: give the logs in it"
    return "is no regular file: it is read twice, save it first" if path.exists() else "no such file"


def _has(block: str, tool: Tool) -> bool:
    return any(mark in block for mark in tool.marks) and any(
        tool.sure.search(untagged(line)[1])
        for line in block.split("\n")
        if any(mark in line for mark in tool.marks)
    )


def _one_of(tools: Iterable[str]) -> None:
    names = sorted(tools)
    if not names:
        raise Refused(f"no line of it is of a known tool ({', '.join(TOOLS)}); --tool NAME says why not")
    if len(names) > 1:
        raise Refused(f"has lines of {' and of '.join(names)}: split it, or choose one with --tool {names[0]}")


def read(log: Log, given: Given) -> Found:
    """The rows of a log, each with its log's name and what was skipped. Raises Refused."""
    found = TOOLS[log.tool].read(of_blocks(blocks(log.path)), given)
    if not found.rows and not found.bandwidths:
        raise Refused(f"has no line that is whole and says a rate of {log.tool}")
    named = one_line(log.path.name)
    return replace(
        found,
        rows=tuple(replace(row, log=named, notes=(*row.notes, *found.notes)) for row in found.rows),
        bandwidths=tuple(replace(one, log=named, notes=found.notes) for one in found.bandwidths),
    )


def _refuse_other_workers(found: Found, path: Path, workers: dict[Cell, tuple[int, Path]]) -> None:
    """Of one cell: they are one launch, and an interval over them would say nothing of launches."""
    if found.worker is None:
        return
    for row in found.rows:
        cell = row.tool, row.model.casefold(), row.batch_size, row.world_size, row.synchronous
        worker, other = workers.setdefault(cell, (found.worker, path))
        if worker != found.worker:
            raise Refused(
                f"is of worker {found.worker}, {other} of worker {worker}: each says the total of all; "
                "give one worker's log of each launch"
            )


def read_all(paths: Iterable[Path], wanted: str | None, given: Given) -> list[Found]:
    """All logs of one import. Raises UsageError, which names the log, where one is refused or given twice, or is
    another worker's of the same training."""
    seen: dict[str, Path] = {}
    workers: dict[Cell, tuple[int, Path]] = {}
    found = []
    for path in paths:
        try:
            log = recognise(path, wanted)
            if log.digest in seen:
                raise Refused(f"is {seen[log.digest]} again: a launch counts once")
            seen[log.digest] = path
            found.append(read(log, given))
            _refuse_other_workers(found[-1], path, workers)
        except UsageError as error:
            raise UsageError(f"LOG {path}: {error}") from None
    return found
