"""RecordIO files of pictures as MXNet's im2rec writes them, without MXNet.

A record: a magic number, its length in 29 bits with 3 above that say whether it is whole, the content, filled up
to 4 bytes (dmlc-core's recordio.h). The content: flag, label, id, id2 (IRHeader of mxnet.recordio), as many labels
more as the flag says, the picture.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from scaling.errors import UsageError
from scaling.workloads.data.frames import Frames, Records
from scaling.workloads.data.specs import DataSpec, Split

MAGIC = 0xCED7230A
HEAD, LABELS = struct.Struct("<2I"), struct.Struct("<If2Q")
LENGTH = (1 << 29) - 1
# Of a class, as far as a float counts by ones.
MOST = 1 << 24


def file(place: Path, spec: DataSpec, split: Split) -> Path:
    """The file of a split; raises UsageError where it is missing."""
    path = place / spec.files[split][0]
    if not path.is_file():
        raise UsageError(f"{place}: no {path.name}")
    return path


def records(place: Path, spec: DataSpec, split: Split) -> Records:
    """Pictures and classes of a split; the heads of all records are read for that."""
    return Records([file(place, spec, split)], frames, parse)


def frames(file: int, size: int) -> Frames:
    """Where the records of an open file stand, with their heads and all of their parts; raises ValueError where it
    is no RecordIO file."""
    at, begin = 0, 0
    while at < size:
        head = os.pread(file, HEAD.size, at)
        if len(head) < HEAD.size or HEAD.unpack(head)[0] != MAGIC:
            raise ValueError(f"no RecordIO at {at:,}: the magic number is not {MAGIC:#x}")
        part, length = HEAD.unpack(head)[1] >> 29, HEAD.unpack(head)[1] & LENGTH
        if at + HEAD.size + length > size:
            raise ValueError(f"cut off at {size:,} bytes, within the record at {at:,}")
        begin = at if part in (0, 1) else begin
        at += HEAD.size + (length + 3) // 4 * 4
        if part in (0, 3):
            yield begin, min(at, size) - begin


def parse(framed: bytes) -> tuple[bytes, int]:
    """The picture of a record, head and all, and its class; raises ValueError where it has none."""
    content = whole(framed)
    if len(content) < LABELS.size:
        raise ValueError(f"a record of {len(content)} bytes, shorter than IRHeader")
    more, label, _, _ = LABELS.unpack_from(content)
    begin = LABELS.size + 4 * more
    if begin > len(content):
        raise ValueError(f"a record of {len(content)} bytes, shorter than its {more:,} labels")
    if more:
        label = struct.unpack_from("<f", content, LABELS.size)[0]
    if not (0 <= label <= MOST and label == int(label)):
        raise ValueError(f"label {label}, expected a class from 0")
    return content[begin:], int(label)


def whole(framed: bytes) -> bytes:
    """The content of a record, which was cut where the magic number stood in it by chance."""
    parts, at = [], 0
    while at < len(framed):
        length = HEAD.unpack_from(framed, at)[1] & LENGTH
        parts.append(framed[at + HEAD.size : at + HEAD.size + length])
        at += HEAD.size + (length + 3) // 4 * 4
    return struct.pack("<I", MAGIC).join(parts)
