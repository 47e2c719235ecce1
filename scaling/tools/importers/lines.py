"""A log as lines: streamed, decoded, without colours and launchers' tags.

Progress bars end their lines with a carriage return, so that one ends a line here. A last line that has no end may
be cut: it gets an ellipsis, as people write it, and no number before one is taken for whole.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from scaling.errors import UsageError

BLOCK_BYTES = 1 << 20
# Of a line, what is kept.
MOST_LINE_BYTES = 1 << 20
CUT = "\u2026"
# Of the first block: above this share of control characters it is no text.
MOST_CONTROL = 0.02
_ENDING = re.compile(rb"[\r\n]")
_CONTROL = bytes(set(range(32)) - set(b"\a\b\t\n\f\r\x1b"))
_MAGIC = {
    b"\x1f\x8b": "is compressed: gunzip it first",
    b"BZh": "is compressed: bunzip2 it first",
    b"PK\x03\x04": "is a zip archive: unzip it first",
    b"\xfd7zXZ": "is compressed: unxz it first",
    b"\xff\xfe": "is UTF-16: iconv -f UTF-16 -t UTF-8 first",
    b"\xfe\xff": "is UTF-16: iconv -f UTF-16 -t UTF-8 first",
}
# ECMA-48: control sequences, as colours are, and the titles of terminals.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?)")
# mpirun's -tag-output (`[1,3]<stdout>:`, of PRRTE `[job@1,3]<stdout>: `, of SageMaker
# `[1,mpirank:3,algo-1]<stdout>:`), horovodrun with Gloo (`[3]<stdout>:`, perhaps a time before), torchrun's
# (`[rank3]:`, `[default3]:`), srun -l (`3: `) and Hydra's -l and -prepend-rank (`[3] `).
_TAG = re.compile(
    r"^(?:[A-Z][\w :]{15,30})?(\[(?:[^\],\s]*,)?(?:mpirank:)?(\d{1,6})(?:,[\w.-]{1,64})?\]<std(?:out|err)>:)[ \t]?"
    r"|^\[(?:rank|default)(\d{1,6})\]:[ \t]?"
    r"|^[ ]*(\d{1,6}): "
    r"|^\[(\d{1,6})\] "
)
# What kubectl logs --timestamps and docker logs -t set before that.
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z ")
_MAY_BE_TAG = re.compile(r"(?m)^(?:[^\n]{0,70}<std|\[rank|\[default|[ ]*\d{1,6}: |\[\d{1,6}\] |\d{4}-\d\d-\d\dT)")


class LogLine(NamedTuple):
    """A line: its number from 1, who said it as far as a launcher's tag tells, its text."""

    number: int
    rank: int | None
    text: str


def blocks(log: Path) -> Iterator[str]:
    """Whole lines, about a MiB at a time. Raises UsageError for what cannot be read and what is no text."""
    rest = b""
    try:
        with log.open("rb") as file:
            first = file.read(BLOCK_BYTES)
            _refuse_binary(first)
            for data in _chunks(first.removeprefix(BOM_UTF8), file):
                text = rest + (_from_its_end(data) if len(rest) == MOST_LINE_BYTES else data)
                end = max(text.rfind(b"\n"), text.rfind(b"\r", 0, -1)) + 1  # a last \r may be half an end
                whole, rest = text[:end], text[end : end + MOST_LINE_BYTES]
                if whole:
                    yield _cleaned(whole)
    except OSError as error:
        raise UsageError(error.strerror or str(error)) from None
    if rest:
        yield _cleaned(rest) + (CUT if not rest.endswith(b"\r") else "") + "\n"


def _from_its_end(data: bytes) -> bytes:
    """What follows the head of a line that is longer than what is kept: its middle is left out, and marked."""
    ending = _ENDING.search(data)
    return CUT.encode() + data[ending.start() :] if ending else b""


def _chunks(first: bytes, file: Iterable[bytes]) -> Iterator[bytes]:
    data = first
    while data:
        yield data
        data = file.read(BLOCK_BYTES)  # type: ignore[attr-defined]


def _refuse_binary(data: bytes) -> None:
    for magic, says in _MAGIC.items():
        if data.startswith(magic):
            raise UsageError(says)
    if len(data) - len(data.translate(None, _CONTROL)) > MOST_CONTROL * len(data):
        raise UsageError("is a binary file, not a log")


def _cleaned(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _ANSI.sub("", text) if "\x1b" in text else text


def of_blocks(found: Iterable[str]) -> Iterator[LogLine]:
    """The lines of blocks, tags taken off. Pure."""
    number = 0
    for block in found:
        tagged = _MAY_BE_TAG.search(block) is not None
        for text in block.split("\n")[:-1]:
            number += 1
            rank, rest = untagged(text) if tagged else (None, text)
            yield LogLine(number, rank, rest)


def untagged(text: str) -> tuple[int | None, str]:
    """Who said a line, and the line without the tags that say so: mpirun sets one before each piece that it was
    handed, in the middle of a line too."""
    if (time := _TIME.match(text)) is not None:
        text = text[time.end() :]
    tag = _TAG.match(text)
    if tag is None:
        return None, text
    rest = text[tag.end() :]
    return int(tag[2] or tag[3] or tag[4] or tag[5]), rest.replace(tag[1], "") if tag[1] else rest
