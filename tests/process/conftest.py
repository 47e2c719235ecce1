"""What tests of children need that are fresh or forked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from scaling import frameworks
from scaling.agent.child import Starter
from tests.support import forked


@pytest.fixture
def adopting() -> Iterator[None]:
    with forked.adopting():
        yield


@pytest.fixture
def preload(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have fork servers of the fake framework import these modules, until the test ends."""
    monkeypatch.setitem(frameworks.FRAMEWORKS, "fake", frameworks.FRAMEWORKS["fake"])
    forked.preload(forked.IMPORTED)
    return forked.preload


@pytest.fixture
def starter(preload: object) -> Iterator[Starter]:
    one = Starter(forked.BASE)
    yield one
    one.close()
