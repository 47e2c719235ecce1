"""What several folders of unit tests need: cores whose speed is scripted, and an NVML of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_nvml import Install, installer
from tests.support.turns import scripted_canaries


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What canaries will take, to be filled; then always the same. No test asks real cores how fast they are."""
    return scripted_canaries(monkeypatch)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    yield from installer(monkeypatch)
