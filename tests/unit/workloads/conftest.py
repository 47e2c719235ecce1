"""Each test of workloads reads its samples anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scaling.workloads import feeds


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    feeds.forget()
    yield
    feeds.forget()
