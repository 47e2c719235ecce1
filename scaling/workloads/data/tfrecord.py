"""TFRecord files of tf.train.Example with pictures, without TensorFlow.

A record: its length (8 bytes, little-endian), a masked CRC-32C of that, the content, and its masked CRC-32C
(tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details"). The content is a protocol buffer:
features, by name a list of bytes, floats or integers (tensorflow/core/example/feature.proto).
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
# Of a class: what fits in the labels of a batch.
MOST = 1 << 62


def files(place: Path, spec: DataSpec, split: Split) -> list[Path]:
    """The files of a split; raises UsageError where one of `train-00000-of-01024` and its fellows is missing."""
    pattern = spec.files[split][0].replace("-00000-", "-*-")
    found = sorted(place.glob(pattern))
    if not found:
        raise UsageError(f"{place}: no {pattern}")
    count = found[0].name.rpartition("-of-")[2]
    if count.isdecimal() and len(found) != int(count):
        raise UsageError(f"{place}: {len(found):,} files {pattern}, expected {int(count):,} by their names")
    return found


def records(place: Path, spec: DataSpec, split: Split) -> Records:
    """Pictures and classes of a split, numbered from 0; the heads of all records are read for that."""
    return Records(files(place, spec, split), frames, parse)


def frames(file: int, size: int) -> Frames:
    """Where the contents of an open file stand; raises ValueError where it is no TFRecord file."""
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
    """The picture of an Example and its class, which the format counts from 1; raises ValueError without them."""
    found = dict(_features(content))
    if PICTURE not in found or LABEL not in found:
        raise ValueError(f"an Example without {PICTURE.decode()} and {LABEL.decode()}")
    picture, label = found[PICTURE], found[LABEL]
    if not isinstance(picture, bytes) or not isinstance(label, int) or not 1 <= label <= MOST:
        raise ValueError(f"{LABEL.decode()} is {label!r}, expected a number from 1")
    return picture, label - 1


def _features(content: bytes) -> Iterator[tuple[bytes, bytes | int]]:
    """Example.features.feature: by name its first value; floats are passed over."""
    for features in _fields(content, 1):
        for entry in _fields(features, 1):
            name, feature = _only(entry, 1), _only(entry, 2)
            for value in _fields(feature, 1):
                yield name, _only(value, 1)
            for value in _fields(feature, 3):
                yield name, _number(value)


def _number(values: bytes) -> int:
    """The first of an Int64List, packed or not."""
    packed = values[1:] if values[:1] == b"\x08" else _only(values, 1)
    value = _varint(packed, 0)[0]
    return value - (1 << 64) if value >> 63 else value


def _only(content: bytes, wanted: int) -> bytes:
    return next(_fields(content, wanted), b"")


def _fields(content: bytes, wanted: int) -> Iterator[bytes]:
    """Fields of a number that have a length; others are passed over."""
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
    """CRC-32C (Castagnoli, reflected), turned by 15 bits and shifted, as TFRecord files have it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF
