"""Measure how well data-parallel training scales, what limits it, and what would help."""

import os
import sys
from collections.abc import Callable

__version__ = "0.1.0"

# `python -m` puts the working directory first in sys.path: a file there could replace a module of Python or of a
# library. Move it to the end; strategies from outside are still found there. getcwd fails in a removed folder.
try:
    if sys.argv[:1] == ["-m"] and sys.path[0] == os.getcwd():  # noqa: PTH109 (pathlib imports what may be replaced)
        sys.path.append(sys.path.pop(0))
except FileNotFoundError:
    pass

# Hears the steps of a measured script (frameworks/script/lead.py); None outside of a run.
_HEARS: Callable[[int], None] | None = None


def step(samples: int = 0) -> None:
    """Mark the end of one training step of this rank, on `samples` samples. It does nothing outside of a run."""
    if _HEARS is not None:
        _HEARS(samples)
