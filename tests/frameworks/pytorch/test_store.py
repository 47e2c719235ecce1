"""How ranks find torch's store."""

from __future__ import annotations

import socket
import time
from datetime import timedelta

import pytest

from scaling.frameworks.pytorch import store

WITHIN = timedelta(seconds=20)


@pytest.fixture
def reserved() -> socket.socket:
    """A port that is held, and refuses until something listens."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held


def test_a_client_is_made_when_the_store_listens(reserved: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused once, torch's own looks again after half a second."""
    did: list[str] = []

    def sleep(seconds: float) -> None:
        did.append("look")
        if len(did) == 3:
            reserved.listen()

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(store, "TCPStore", lambda *where, **how: did.append("client"))
    with reserved:
        store.open_store("127.0.0.1", reserved.getsockname()[1], hosts=False, timeout=WITHIN)
    assert did == ["look"] * 3 + ["client"]


def test_who_is_never_there_is_left_to_torch(reserved: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(store, "TCPStore", lambda *where, **how: made.append(how["timeout"]))
    with reserved:
        store.open_store("127.0.0.1", reserved.getsockname()[1], hosts=False, timeout=timedelta(seconds=1))
    store.open_store("no-such-host.invalid", 1, hosts=False, timeout=WITHIN)
    assert made == [timedelta(seconds=1), WITHIN]
