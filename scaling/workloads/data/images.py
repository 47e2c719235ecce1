"""Images as bytes in a few files: IDX of MNIST and Fashion-MNIST, and CIFAR-10's binary version.

IDX has a magic number, big-endian sizes, then bytes (yann.lecun.com/exdb/mnist, "the IDX file format"). Files may
be packed with gzip.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scaling import files
from scaling.errors import UsageError
from scaling.workloads.data.specs import DataSpec, Split, reading

# The third byte means unsigned bytes, the fourth is the number of dimensions.
IMAGES, LABELS = 0x803, 0x801


def read_idx(place: Path, spec: DataSpec, split: Split) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return pixels (count, 1, height, width) and labels (count,). Raises UsageError with the found and the
    expected value if files are not as published."""
    images, labels = (_array(file, magic) for file, magic in _files(place, spec, split))
    if len(images[1]) != len(labels[1]):
        raise UsageError(f"{images[0]}: {len(images[1])} images, but {len(labels[1])} labels in {labels[0]}")
    check_count(images[0], len(images[1]), spec, split)
    if not images[1].size:
        raise UsageError(f"{images[0]}: {' x '.join(map(str, images[1].shape))} pixels, which is none")
    if spec.classes is not None and labels[1].max() >= spec.classes:
        raise UsageError(f"{labels[0]}: label {labels[1].max()}, expected 0 to {spec.classes - 1}")
    height, width = images[1].shape[1:]
    return images[1].reshape(-1, 1, height, width), labels[1].astype(np.int64)


def _files(place: Path, spec: DataSpec, split: Split) -> tuple[tuple[Path, int], tuple[Path, int]]:
    # The shorter name is the unpacked file.
    images, labels = (min(place.glob(pattern), key=lambda path: len(path.name)) for pattern in spec.files[split])
    return (images, IMAGES), (labels, LABELS)


def _array(path: Path, expected: int) -> tuple[Path, NDArray[np.uint8]]:
    content = _content(path)
    magic = int.from_bytes(content[:4], "big")
    if magic != expected:
        raise UsageError(f"{path}: magic number {magic}, expected {expected}: not an IDX file of --data")
    dimensions = magic & 0xFF
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise UsageError(f"{path}: {len(content)} bytes, shorter than its header")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    size = header + int(np.prod(shape, dtype=np.int64))
    if len(content) != size:
        raise UsageError(f"{path}: {len(content):,} bytes, expected {size:,} for {shape}")
    return path, np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        return gzip.decompress(files.read(path)) if path.suffix == ".gz" else files.read(path)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None


def check_count(path: Path, found: int, spec: DataSpec, split: Split) -> None:
    """Refuse another number of samples than was published. Raises UsageError."""
    expected = spec.splits.get(split, found)
    if found != expected:
        raise UsageError(f"{path}: {found:,} samples, expected {expected:,} of --data {spec.name} ({split})")


# ---------------------------------------------------------------- cifar
#
# CIFAR-10's binary version: records of one label byte and 3,072 pixel bytes, 32 x 32 for each colour.


SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32


def read_cifar(place: Path, spec: DataSpec, split: Split) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return pixels (count, 3, 32, 32) and labels (count,). Raises UsageError for a file of another format."""
    names = spec.files[split]
    each = spec.splits[split] // len(names)
    records = np.concatenate([_records(place / name, each, spec) for name in names])
    return records[:, 1:].reshape(-1, *SHAPE), records[:, 0].astype(np.int64)


def _records(path: Path, expected: int, spec: DataSpec) -> NDArray[np.uint8]:
    with reading(path):
        content = np.fromfile(path, np.uint8)
    if len(content) != expected * RECORD_BYTES:
        raise UsageError(
            f"{path}: {len(content):,} bytes, expected {expected * RECORD_BYTES:,}: {expected:,} records of "
            f"{RECORD_BYTES:,} bytes"
        )
    records = content.reshape(-1, RECORD_BYTES)
    if spec.classes is not None and records[:, 0].max() >= spec.classes:
        raise UsageError(f"{path}: label {records[:, 0].max()}, expected 0 to {spec.classes - 1}")
    return records
