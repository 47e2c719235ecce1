"""TFRecord files of tf.train.Example with pictures, read without TensorFlow.

* Record: its length (8 bytes, little-endian), a masked CRC-32C of that, the content, and its masked CRC-32C
  (tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details").
* Content: a protocol buffer of features, each a name and a list of bytes, floats or integers
  (tensorflow/core/example/feature.proto).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from scaling.errors import UsageError
from scaling.workloads.data.frames import Frames, Records
from scaling.workloads.data.specs import DataSpec, Split

PICTURE, LABEL = b"image/encoded", b"image/class/label"
HEAD, TAIL = struct.Struct("<QI"), 4
MASK = 0xA282EAD8
# The largest class that fits in the labels of a batch.
MOST = 1 << 62


def files(place: Path, spec: DataSpec, split: Split) -> list[Path]:
    """Return the files of a split. Raises UsageError if one of `train-00000-of-01024` and so on is missing."""
    pattern = spec.files[split][0].replace("-00000-", "-*-")
    found = sorted(place.glob(pattern))
    if not found:
        raise UsageError(f"{place}: no {pattern}")
    count = found[0].name.rpartition("-of-")[2]
    if count.isdecimal() and len(found) != int(count):
        raise UsageError(f"{place}: {len(found):,} files {pattern}, expected {int(count):,} by their names")
    return found


def records(place: Path, spec: DataSpec, split: Split) -> Records:
    """Return pictures and classes (from 0) of a split. This reads the heads of all records."""
    return Records(files(place, spec, split), frames, parse)


def frames(file: int, size: int) -> Frames:
    """Yield where the contents of an open file begin. Raises ValueError if it is no TFRecord file."""
    at = 0
    while at < size:
        head = os.pread(file, HEAD.size, at)
        if len(head) < HEAD.size or masked_crc(head[:8]) != HEAD.unpack(head)[1]:
            raise ValueError(f"no TFRecord at {at:,}: the checksum of its length does not hold")
        length = HEAD.unpack(head)[0]
        if at + HEAD.size + length + TAIL > size:
            raise ValueError(f"cut off at {size:,} bytes, within the record at {at:,}")
        yield at + HEAD.size, length
        at += HEAD.size + length + TAIL


def parse(content: bytes) -> tuple[bytes, int]:
    """Return an Example's picture and class, which the format counts from 1. Raises ValueError without them."""
    found = dict(_features(content))
    if PICTURE not in found or LABEL not in found:
        raise ValueError(f"an Example without {PICTURE.decode()} and {LABEL.decode()}")
    picture, label = found[PICTURE], found[LABEL]
    if not isinstance(picture, bytes) or not isinstance(label, int) or not 1 <= label <= MOST:
        raise ValueError(f"{LABEL.decode()} is {label!r}, expected a number from 1")
    return picture, label - 1


def _features(content: bytes) -> Iterator[tuple[bytes, bytes | int]]:
    """Yield each name of Example.features.feature with its first value, without floats."""
    for features in _fields(content, 1):
        for entry in _fields(features, 1):
            name, feature = _only(entry, 1), _only(entry, 2)
            for value in _fields(feature, 1):
                yield name, _only(value, 1)
            for value in _fields(feature, 3):
                yield name, _number(value)


def _number(values: bytes) -> int:
    packed = values[1:] if values[:1] == b"\x08" else _only(values, 1)
    value = _varint(packed, 0)[0]
    return value - (1 << 64) if value >> 63 else value


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


# ---------------------------------------------------------------- CRC-32C


def _entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


TABLE = tuple(map(_entry, range(256)))


def masked_crc(content: bytes) -> int:
    """Return CRC-32C (Castagnoli, reflected), rotated by 15 bits, plus MASK, as in TFRecord files."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF
