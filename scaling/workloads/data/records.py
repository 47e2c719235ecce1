"""Files of consecutive records with pictures: RecordIO and TFRecord, read without their frameworks."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from scaling.errors import UsageError
from scaling.workloads.data import DataSpec, Split, reading

# For each record of a file: where its content begins, and its bytes.
Frames: TypeAlias = Iterator[tuple[int, int]]
# Returns the picture in a record, and its class.
Parse: TypeAlias = Callable[[bytes], tuple[bytes, int]]

# A process may open 1,024 files by default, and frameworks need some.
MOST_OPEN = 64


def records(place: Path, spec: DataSpec, split: Split) -> Records:
    """Return pictures and classes (from 0) of a split. This reads the heads of all records."""
    if spec.format == "recordio":
        return Records([recordio_file(place, spec, split)], _recordio_frames, _recordio_parse)
    return Records(tfrecord_files(place, spec, split), _tfrecord_frames, _tfrecord_parse)


class Records:
    """All records of the files at `paths`. Only their heads are read until a record is requested. `frames` finds
    the records of an open file of a given size in bytes. `parse` raises ValueError if a record has no picture."""

    def __init__(self, paths: Sequence[Path], frames: Callable[[int, int], Frames], parse: Parse) -> None:
        self.paths, self._parse = tuple(map(str, paths)), parse
        self._open: dict[int, int] = {}
        found = [(number, *one) for number in range(len(paths)) for one in self._frames(number, frames)]
        if not found:
            raise UsageError(f"{self.paths[0]}: no records in it{' or its fellows' if len(paths) > 1 else ''}")
        self._where = np.array(found, np.int64).reshape(-1, 3)

    def _frames(self, number: int, frames: Callable[[int, int], Frames]) -> Frames:
        file = self._file(number)
        try:
            yield from frames(file, os.fstat(file).st_size)
        except ValueError as error:
            raise UsageError(f"{self.paths[number]}: {error}") from None
        finally:
            os.close(self._open.pop(number))

    def _file(self, number: int) -> int:
        if number not in self._open:
            if len(self._open) >= MOST_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            with reading(self.paths[number]):
                self._open[number] = os.open(self.paths[number], os.O_RDONLY | os.O_CLOEXEC)
        return self._open[number]

    def __len__(self) -> int:
        return len(self._where)

    def name(self, index: int) -> str:
        """Return the place of a record, for messages."""
        number, begin, _ = self._where[index]
        return f"{self.paths[number]} at {begin:,}"

    def read(self, index: int) -> tuple[bytes, int]:
        """Return an encoded picture and its class. Raises UsageError if the record has none."""
        number, begin, size = map(int, self._where[index])
        content = os.pread(self._file(number), size, begin)
        try:
            return self._parse(content)
        except (ValueError, IndexError) as error:
            raise UsageError(f"{self.name(index)}: {error}") from None

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    __del__ = close


# ---------------------------------------------------------------- RecordIO
#
# As MXNet's im2rec writes it.
# * Record (dmlc-core's recordio.h): a magic number, its length in 29 bits with 3 bits above for its part, the
#   content, padded to 4 bytes.
# * Content (IRHeader of mxnet.recordio): flag, label, id, id2, as many further labels as the flag says, the
#   picture.


MAGIC = 0xCED7230A
RECORDIO_HEAD, LABELS = struct.Struct("<2I"), struct.Struct("<If2Q")
LENGTH = (1 << 29) - 1
# The largest class: floats are exact integers up to here.
MOST_FLOAT = 1 << 24


def recordio_file(place: Path, spec: DataSpec, split: Split) -> Path:
    path = place / spec.files[split][0]
    if not path.is_file():
        raise UsageError(f"{place}: no {path.name}")
    return path


def _recordio_frames(file: int, size: int) -> Frames:
    """Yield where each record of an open file begins, and its bytes with heads. Raises ValueError."""
    at, begin, head_bytes = 0, 0, RECORDIO_HEAD.size
    while at < size:
        head = os.pread(file, head_bytes, at)
        if len(head) < head_bytes or RECORDIO_HEAD.unpack(head)[0] != MAGIC:
            raise ValueError(f"no RecordIO at {at:,}: the magic number is not {MAGIC:#x}")
        part, length = divmod(RECORDIO_HEAD.unpack(head)[1], LENGTH + 1)
        if at + head_bytes + length > size:
            raise ValueError(f"cut off at {size:,} bytes, within the record at {at:,}")
        begin = at if part in (0, 1) else begin
        at += head_bytes + (length + 3) // 4 * 4
        if part in (0, 3):
            yield begin, min(at, size) - begin


def _recordio_parse(framed: bytes) -> tuple[bytes, int]:
    """Return the picture and the class of a record with its head. Raises ValueError if it has none."""
    # The content was cut where it contained the magic number.
    parts, at = [], 0
    while at < len(framed):
        length = RECORDIO_HEAD.unpack_from(framed, at)[1] & LENGTH
        parts.append(framed[at + RECORDIO_HEAD.size : at + RECORDIO_HEAD.size + length])
        at += RECORDIO_HEAD.size + (length + 3) // 4 * 4
    content = struct.pack("<I", MAGIC).join(parts)
    if len(content) < LABELS.size:
        raise ValueError(f"a record of {len(content)} bytes, shorter than IRHeader")
    more, label, _, _ = LABELS.unpack_from(content)
    begin = LABELS.size + 4 * more
    if begin > len(content):
        raise ValueError(f"a record of {len(content)} bytes, shorter than its {more:,} labels")
    if more:
        label = struct.unpack_from("<f", content, LABELS.size)[0]
    if not (0 <= label <= MOST_FLOAT and label == int(label)):
        raise ValueError(f"label {label}, expected a class from 0")
    return content[begin:], int(label)


# ---------------------------------------------------------------- TFRecord
#
# Files of tf.train.Example.
# * Record: its length (8 bytes, little-endian), a masked CRC-32C of that, the content, and its masked CRC-32C
#   (tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details").
# * Content: a protocol buffer of features, each a name and a list of bytes, floats or integers
#   (tensorflow/core/example/feature.proto).


PICTURE, LABEL = "image/encoded", "image/class/label"
TFRECORD_HEAD, TAIL = struct.Struct("<QI"), 4
# The largest class that fits in the labels of a batch.
MOST_INT = 1 << 62


def tfrecord_files(place: Path, spec: DataSpec, split: Split) -> list[Path]:
    """Return the files of a split. Raises UsageError if one of `train-00000-of-01024` and so on is missing."""
    pattern = spec.files[split][0].replace("-00000-", "-*-")
    found = sorted(place.glob(pattern))
    if not found:
        raise UsageError(f"{place}: no {pattern}")
    count = found[0].name.rpartition("-of-")[2]
    if count.isdecimal() and len(found) != int(count):
        raise UsageError(f"{place}: {len(found):,} files {pattern}, expected {int(count):,} by their names")
    return found


def _tfrecord_frames(file: int, size: int) -> Frames:
    """Yield where the contents of an open file begin. Raises ValueError if it is no TFRecord file."""
    at, head_bytes = 0, TFRECORD_HEAD.size
    while at < size:
        head = os.pread(file, head_bytes, at)
        if len(head) < head_bytes or masked_crc(head[:8]) != TFRECORD_HEAD.unpack(head)[1]:
            raise ValueError(f"no TFRecord at {at:,}: the checksum of its length does not hold")
        length = TFRECORD_HEAD.unpack(head)[0]
        if at + head_bytes + length + TAIL > size:
            raise ValueError(f"cut off at {size:,} bytes, within the record at {at:,}")
        yield at + head_bytes, length
        at += head_bytes + length + TAIL


def _tfrecord_parse(content: bytes) -> tuple[bytes, int]:
    """Return an Example's picture and class, which the format counts from 1. Raises ValueError without them."""
    found = dict(_features(content))
    if PICTURE.encode() not in found or LABEL.encode() not in found:
        raise ValueError(f"an Example without {PICTURE} and {LABEL}")
    picture, label = found[PICTURE.encode()], found[LABEL.encode()]
    if not isinstance(picture, bytes) or not isinstance(label, int) or not 1 <= label <= MOST_INT:
        raise ValueError(f"{LABEL} is {label!r}, expected a number from 1")
    return picture, label - 1


def _features(content: bytes) -> Iterator[tuple[bytes, bytes | int]]:
    """Yield each name of Example.features.feature with its first value, without floats."""
    for features in _fields(content, 1):
        for entry in _fields(features, 1):
            name, feature = _only(entry, 1), _only(entry, 2)
            for value in _fields(feature, 1):
                yield name, _only(value, 1)
            for value in _fields(feature, 3):
                packed = value[1:] if value[:1] == b"\x08" else _only(value, 1)
                number = _varint(packed, 0)[0]
                yield name, number - (1 << 64) if number >> 63 else number


def _only(content: bytes, wanted: int) -> bytes:
    return next(_fields(content, wanted), b"")


def _fields(content: bytes, wanted: int) -> Iterator[bytes]:
    """Yield the fields of this number that have a length."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        kind, number = tag & 7, tag >> 3
        if kind == 0:
            _, at = _varint(content, at)
        elif kind == 2:
            length, at = _varint(content, at)
            if number == wanted:
                yield content[at : at + length]
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"no protocol buffer: a field of kind {kind}")


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while content[at] & 0x80:
        value |= (content[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return value | content[at] << shift, at + 1


def _entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


TABLE = tuple(map(_entry, range(256)))


def masked_crc(content: bytes) -> int:
    """Return CRC-32C (Castagnoli, reflected), rotated by 15 bits, plus a constant, as in TFRecord files."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
