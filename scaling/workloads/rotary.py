"""Angles of rotary position embeddings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def angles(length: int, size: int, base: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cosine and sine of each position's angles: (length, size / 2), float32 (Su 2021, section 3.2.2)."""
    turns = np.outer(np.arange(length), base ** -(np.arange(0, size, 2) / size))
    return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)
