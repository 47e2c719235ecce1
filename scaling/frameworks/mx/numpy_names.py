"""NumPy's names that MXNet 1.9 needs and newer NumPys lack."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy


@contextmanager
def restored() -> Iterator[None]:
    """Allow MXNet to be imported, without its warnings about NumPy's other changes, which do not matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "bool" not in vars(numpy):
            numpy.bool = bool  # type: ignore[attr-defined, unused-ignore]
        yield
