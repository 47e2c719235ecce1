"""The hash of a model's parameters by which ranks are compared, alike in every framework. Worker's side."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray


def digest_of(weights: Mapping[str, NDArray[Any]]) -> str:
    """Of the parameters' bytes in their order: equal on all ranks in synchronous modes. 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for array in weights.values():
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]
