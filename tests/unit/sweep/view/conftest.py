"""A live view in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.live_views import Open, opening


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Open a live view in a terminal of a size; the view is closed at the end."""
    yield from opening(monkeypatch)
