"""NumPy's names that MXNet 1.9 needs to be imported and newer NumPys have lost."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy


@contextmanager
def restored() -> Iterator[None]:
    """Inside, MXNet can be imported, and what its import warns of is not said: nothing here meets NumPy's other
    changes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "bool" not in vars(numpy):
            numpy.bool = bool  # type: ignore[attr-defined, unused-ignore]
        yield
