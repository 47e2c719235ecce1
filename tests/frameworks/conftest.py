"""The fork servers that tests of frameworks share end with the last of these."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import kept_forks


@pytest.fixture(scope="package", autouse=True)
def shared_forks() -> Iterator[None]:
    yield
    kept_forks.close()
