"""RecordIO files of pictures as written by MXNet's im2rec, read without MXNet.

* Record (dmlc-core's recordio.h): a magic number, its length in 29 bits with 3 bits above for its part, the
  content, padded to 4 bytes.
* Content (IRHeader of mxnet.recordio): flag, label, id, id2, as many further labels as the flag says, the picture.
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
# The largest class: floats are exact integers up to here.
MOST = 1 << 24


def file(place: Path, spec: DataSpec, split: Split) -> Path:
    path = place / spec.files[split][0]
    if not path.is_file():
        raise UsageError(f"{place}: no {path.name}")
    return path


def records(place: Path, spec: DataSpec, split: Split) -> Records:
    """Return pictures and classes of a split. This reads the heads of all records."""
    return Records([file(place, spec, split)], frames, parse)


def frames(file: int, size: int) -> Frames:
    """Yield where each record of an open file begins, and its bytes with heads. Raises ValueError."""
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
    """Return the picture and the class of a record with its head. Raises ValueError if it has none."""
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
    """Join the content of a record, which was cut where it contained the magic number."""
    parts, at = [], 0
    while at < len(framed):
        length = HEAD.unpack_from(framed, at)[1] & LENGTH
        parts.append(framed[at + HEAD.size : at + HEAD.size + length])
        at += HEAD.size + (length + 3) // 4 * 4
    return struct.pack("<I", MAGIC).join(parts)
