"""No sweep of these tests asks real cores how fast they are."""

from __future__ import annotations

import pytest

from tests.support.turns import scripted_canaries


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What canaries will take, to be filled; then always the same."""
    return scripted_canaries(monkeypatch)
