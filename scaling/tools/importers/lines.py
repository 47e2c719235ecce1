"""A log as lines, without colours and without tags that other programs put in front.

A carriage return ends a line too, because progress bars use it. Of a notebook, outputs and Markdown are read. An
unfinished last line gets an ellipsis, and a number directly before an ellipsis is not read. SageMaker prints
carriage returns and escapes as `#015` and `#033`.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial
from io import BytesIO
from itertools import chain, count, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

from scaling.errors import UsageError

BLOCK_BYTES = 1 << 20
# kept of a line
MOST_LINE_BYTES = 1 << 20
CUT = "\u2026"
# what reading a damaged object or line raises
DAMAGED = (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
# of the first block: with a larger share of control characters it is not text
MOST_CONTROL = 0.02
_ENDING = re.compile(rb"[\r\n]")
_CONTROL = bytes(set(range(32)) - set(b"\a\b\t\n\f\r\x1b"))
_MAGIC = {
    b"\x1f\x8b": "is compressed: gunzip it first", b"BZh": "is compressed: bunzip2 it first",
    b"PK\x03\x04": "is a zip archive: unzip it first", b"\xfd7zXZ": "is compressed: unxz it first",
    b"\x28\xb5\x2f\xfd": "is compressed: unzstd it first",
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), "is UTF-16: iconv -f UTF-16 -t UTF-8 first"),
}  # fmt: skip
# ECMA-48: control sequences (colours) and terminal titles
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?)")


class LogLine(NamedTuple):
    """A line: its number from 1, the rank in the launcher's tag if any, its text and its shape."""

    number: int
    rank: int | None
    text: str
    shape: bytes = b""


# LogLine, without the cost of calling it for each of millions of lines
_line: Callable[[Iterable[Any]], LogLine] = partial(tuple.__new__, LogLine)

# ---------------------------------------------------------------- shapes
# A line with 0 for each digit. A pattern that names no digit finds the same places in all lines of a shape, so it
# is searched once for each. Logs of millions of lines have few shapes.

_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
# an escape or a set of characters, else how often
_COUNTS = re.compile(r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|\{\d*(?:,\d*)?\}")
_DIGIT = re.compile(r"\d|\\N|\(\?P=")
# kept of a log with many, and bytes of one that is kept
MOST_SHAPES, LONGEST_SHAPE = 1 << 14, 1 << 10


def shapes(text: str) -> list[bytes]:
    """The shapes of the lines of a text."""
    return text.encode().translate(_AS_ZERO).split(b"\n")


@cache
def names_digit(pattern: str) -> bool:
    """Whether a pattern may match one line and not another of the same shape."""
    return _DIGIT.search(_COUNTS.sub(r"\1", pattern)) is not None


def blocks(log: Path) -> Generator[str]:
    """Yield whole lines, about a MiB at a time. Raises UsageError for unreadable files and binary files."""
    rest = b""
    try:
        with BytesIO(_outputs(log)) if log.suffix == ".ipynb" else log.open("rb") as file:
            first = file.read(BLOCK_BYTES)
            _refuse_binary(first)
            rest_of_file = iter(partial(file.read, BLOCK_BYTES), b"")
            for data in chain([first.removeprefix(BOM_UTF8)], rest_of_file):
                is_long = len(rest) == MOST_LINE_BYTES  # an ellipsis marks what is dropped of its line
                ending = _ENDING.search(data) if is_long else None
                text = rest + (CUT.encode() + data[ending.start() :] if ending else b"" if is_long else data)
                end = max(text.rfind(b"\n"), text.rfind(b"\r", 0, -1)) + 1  # a last \r may be half of \r\n
                whole, rest = text[:end], text[end : end + MOST_LINE_BYTES]
                if whole:
                    yield _cleaned(whole)
    except OSError as error:
        raise UsageError(error.strerror or str(error)) from None
    if rest:
        yield _cleaned(rest) + (CUT if not rest.endswith(b"\r") else "") + "\n"


def _outputs(notebook: Path) -> bytes:
    """Outputs and Markdown of a Jupyter notebook, in order. Raises UsageError for another file."""
    try:
        cells = json.loads(notebook.read_bytes())["cells"]
        parts = list[dict[str, Any]]()
        for cell in cells:
            parts += cell.get("outputs", ())
            parts += [{"text": cell.get("source", "")}] * (cell.get("cell_type") == "markdown")
        texts = [part.get("text") or part.get("data", {}).get("text/plain", "") for part in parts]
        return "\n".join(map("".join, texts)).encode("utf-8", "replace")
    except DAMAGED:
        raise UsageError("is no notebook with outputs: save what its cell printed as text") from None


def _refuse_binary(data: bytes) -> None:
    for magic, says in _MAGIC.items():
        if data.startswith(magic):
            raise UsageError(says)
    if len(data) - len(data.translate(None, _CONTROL)) > MOST_CONTROL * len(data):
        raise UsageError("is a binary file, not a log")


def _cleaned(data: bytes) -> str:
    text = data.decode("utf-8", "replace").replace("#015", "\r").replace("#033[", "\x1b[")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _ANSI.sub("", text) if "\x1b" in text else text


# ---------------------------------------------------------------- tags

# mpirun -tag-output `[1,3]<stdout>:`, PRRTE `[job@1,3]<stdout>: `, SageMaker `[1,mpirank:3,algo-1]<stdout>:`,
# horovodrun with Gloo `[3]<stdout>:`; mpirun -timestamp-output puts a date in front
_MPIRUN = (
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?"
    r"\[(?:[^\],\s]*,)?(?:mpirank:)?\d{1,6}(?:,[\w.-]{1,64})?\]<std(?:out|err)>:[ \t]?"
)
# service[process] of syslog and journald
_UNIT = r"[\w.-]+ [\w./@-]+\[\d+\]: "
_TAGS = (
    _MPIRUN,
    r"\[(?:rank|default)\d{1,6}\]:[ \t]?",  # torchrun
    r"\d{1,6}: ",  # srun -l
    r"\[\d{1,6}\] ",  # Hydra's -l and -prepend-rank
    r"\[pod/[^\]\s]+\][ \t]?",  # kubectl logs --prefix
    r"\([A-Za-z_][\w.:<>-]*(?:,(?: rank=\d+,)?)? pid=\d+(?:, ip=[\w.:-]+)?\)[ \t]?",  # Ray, SkyPilot
    r"[A-Za-z][\w.-]*[-_]\d+ +\| ?|[a-z][\w.-]*  +\| ?",  # docker compose
    r"(?:<\d{1,3}>)?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d " + _UNIT,
    # a time with its zone: kubectl logs --timestamps, docker logs -t, RFC 5424
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)[ \t](?:" + _UNIT + ")?",
    r">[ \t]?",  # quotes of mail and Markdown
)
# the tags of a line, and what begins a row or a fence of Markdown
_START = re.compile(rf"((?:[ \t]*(?:{'|'.join(_TAGS)}))*)([ \t]*(?:\||```|~~~))?")
_FENCE = re.compile(r"[ \t]*(?:```|~~~)[\w ]*$")
_WITHIN = re.compile(r"\[[^\]\n]*\]<std(?:out|err)>:")
# The rank of the whole job; a number of a launcher that may count nodes.
_RANK = re.compile(r"\[(?:[^\],\s]*,)?(?:mpirank:)?(\d+)(?:,[\w.-]+)?\]<std|\[rank(\d+)\]:")
_NUMBER = re.compile(r"\[default(\d+)\]:|(?<![\w:.+-])(\d+): |\[(\d+)\] ")
_CELL = re.compile(r"(?<!\\)\|")
# what Ray adds to a line that stands for similar ones
_REPEATED = re.compile(r" \[repeated \d+x across cluster\](?: \(Ray .*\))?\s*$")


# a number that a terminal wrapped: its rest is a line
_WRAPPED = re.compile(rf"\n(?<=\d\n)(?=[\d.,]{{1,20}}\s*{CUT}?(?:\n|$))")


def of_blocks(found: Iterable[str], wraps: bool = True) -> Iterator[LogLine]:
    """Yield the lines. If a terminal `wraps` them, a line is marked as cut before the rest of its number."""
    first, held = 1, list[LogLine]()
    for block in found:
        ranks, texts = untagged(block)
        ranks = [*(one.rank for one in held), *islice(ranks, len(texts))]
        joined = "\n".join([*(one.text for one in held), *texts])
        if wraps and _WRAPPED.search(joined) is not None:
            joined = _WRAPPED.sub(f"{CUT}\n", joined)
        *each, last = map(_line, zip(count(first), ranks, joined.split("\n"), shapes(joined), strict=False))
        yield from each
        first, held = last.number, [last]
    yield from held


def untagged(block: str) -> tuple[Iterable[int | None], Sequence[str]]:
    """Split whole lines into their ranks and texts."""
    lines = block.removesuffix("\n")
    texts, each = lines.split("\n"), shapes(lines)
    starts = {shape: _start(shape) for shape in {*each}}
    if not any(map(any, starts.values())):
        return repeat(None), texts
    ends = [starts[shape][0] for shape in each]
    tags = [text[:end] for text, end in zip(texts, ends, strict=True)]
    texts = [text[end:] for text, end in zip(texts, ends, strict=True)]
    if any(sign in block for sign in ("<std", "|", "```", "~~~", "across cluster]")):
        texts = list(map(_bare, tags, texts))
    return [_rank(tag) if tag else None for tag in tags], texts


def _start(shape: bytes) -> tuple[int, bool]:
    """The length of the tags of a shape, and whether Markdown follows."""
    found = _START.match(shape.decode())
    return (found.end(1), found[2] is not None) if found else (0, False)


def _bare(tags: str, text: str) -> str:
    """Take off tags that mpirun puts within a line, and what Ray and Markdown put after it."""
    if "across cluster]" in text:
        text = _REPEATED.sub("", text)
    if "<std" in text and (within := _WITHIN.search(tags)) is not None:
        text = text.replace(within[0], "")
    if "|" in text and text.lstrip().startswith("|") and text.rstrip().endswith("|"):
        return _row(text)
    return "" if ("```" in text or "~~~" in text) and _FENCE.match(text) else text


@lru_cache(maxsize=4096)
def _rank(tags: str) -> int | None:
    """Return the rank if the tags agree."""
    found = _RANK.findall(tags) or _NUMBER.findall(tags)
    ranks = {next(filter(None, groups)) for groups in found}
    return int(ranks.pop()) if len(ranks) == 1 else None


def _row(text: str) -> str:
    """Return the cells of a Markdown table; a bar in a cell is written `\\|`."""
    cells = _CELL.split(text.strip())[1:-1]
    return "  ".join(cell.strip().replace("\\|", "|") for cell in cells)
