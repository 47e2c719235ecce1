"""Which cases of a test run always, and which with `./launch/test --matrix` alone."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def cases(every: Iterable[Any], default: Container[Any]) -> list[Any]:
    """Parameters for pytest.mark.parametrize: those that are not in `default` have the mark `matrix`.

    A tuple is the values of several arguments.
    """
    return [one if one in default else _marked(one) for one in every]


def _marked(one: Any) -> Any:
    return pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.matrix)
