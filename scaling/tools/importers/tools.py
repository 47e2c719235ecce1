"""All importers, how a log's tool is recognised, and how logs are read."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.text import one_line
from scaling.tools.importers import horovod, mxnet, nccl_tests, pytorch, suites, tensorflow
from scaling.tools.importers.logs import CUT, Found, Given, Refused, Tool, blocks, of_blocks, untagged

TOOLS: dict[str, Tool] = {
    "horovod": horovod.TOOL,
    "tf_cnn_benchmarks": tensorflow.TF_CNN,
    "mxnet": mxnet.TOOL,
    "mxnet_benchmark": mxnet.BENCHMARK,
    "nccl_tests": nccl_tests.TOOL,
    "dllogger": suites.DLLOGGER,
    "torchtitan": pytorch.TORCHTITAN,
    "hf_trainer": pytorch.HF_TRAINER,
    "lightning": pytorch.LIGHTNING,
    "tf_official": tensorflow.TF_OFFICIAL,
    "dlbs": suites.DLBS,
    "mlperf": suites.MLPERF,
    "aws_fsdp": pytorch.AWS_FSDP,
}
# suites run other tools, whose lines are in their logs, too
SUITES = ("dlbs", "mlperf")

Cell = tuple[str, str, int, int, bool]
_ENDS = f"\n{CUT}"


class Log(NamedTuple):
    path: Path
    tool: str
    digest: str


def recognise(path: Path, wanted: str | None = None) -> Log:
    """Find a log's tool. Raises Refused for no tool or several; `wanted` overrides the lines."""
    if not path.is_file():
        raise Refused(_why_not(path))
    digest, before = sha256(), ""
    tools: set[str] = set()
    for block in blocks(path):
        text = f"{before}{block}".rstrip(_ENDS)
        before = "\n"  # ends of logs do not count: copies differ there
        digest.update(text.encode("utf-8", "replace"))
        if wanted is None:
            tools.update(name for name in TOOLS.keys() - tools if _has(block, TOOLS[name]))
    return Log(path, wanted or _one_of(tools), digest.hexdigest())


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


def _one_of(tools: Iterable[str]) -> str:
    names = sorted(tools)
    if suites := [name for name in SUITES if name in names]:
        return suites[0]
    if not names:
        raise Refused(f"no line of it is of a known tool ({', '.join(TOOLS)}); --tool NAME says why not")
    if len(names) > 1:
        raise Refused(f"has lines of {' and of '.join(names)}: split it, or choose one with --tool {names[0]}")
    return names[0]


def read(log: Log, given: Given) -> Found:
    """Read a log into rows with the log's name and notes on skipped lines. Raises Refused."""
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
    """Several workers of one launch would give a wrong interval."""
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
    """Read all logs. Raises UsageError with the log's name if one is refused, repeated, or of another worker."""
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
