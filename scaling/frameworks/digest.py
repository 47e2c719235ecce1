"""The hash of a model's parameters, by which ranks are compared. It runs in the worker."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray


def digest_of(weights: Mapping[str, NDArray[Any]]) -> str:
    """Hash the parameters' bytes in their order, as 16 hexadecimal digits. Synchronous ranks must agree."""
    digest = hashlib.sha256()
    for array in weights.values():
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]
