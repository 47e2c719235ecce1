"""CIFAR-10's binary version: records of one label byte and 3,072 pixel bytes, 32 x 32 for each colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scaling.errors import UsageError
from scaling.workloads.data.specs import DataSpec, Split

SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32


def read(place: Path, spec: DataSpec, split: Split) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return pixels (count, 3, 32, 32) and labels (count,). Raises UsageError for a file of another format."""
    names = spec.files[split]
    each = spec.splits[split] // len(names)
    records = np.concatenate([_records(place / name, each, spec) for name in names])
    return records[:, 1:].reshape(-1, *SHAPE), records[:, 0].astype(np.int64)


def _records(path: Path, expected: int, spec: DataSpec) -> NDArray[np.uint8]:
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) != expected * RECORD_BYTES:
        raise UsageError(
            f"{path}: {len(content):,} bytes, expected {expected * RECORD_BYTES:,}: {expected:,} records of "
            f"{RECORD_BYTES:,} bytes"
        )
    records = content.reshape(-1, RECORD_BYTES)
    if spec.classes is not None and records[:, 0].max() >= spec.classes:
        raise UsageError(f"{path}: label {records[:, 0].max()}, expected 0 to {spec.classes - 1}")
    return records
