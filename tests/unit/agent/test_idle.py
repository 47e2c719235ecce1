"""What a host's cards carry while nothing runs, as an agent hears it."""

from __future__ import annotations

import pytest

from scaling.agent.idle import IdleTraffic
from scaling.hosts import interfaces
from scaling.hosts.interfaces import Counter
from scaling.records.telemetry import Traffic


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter]:
    """What the kernel would say of the cards."""
    found = {"eth0": Counter(1000, 2000)}
    monkeypatch.setattr(interfaces, "read", lambda: dict(found))
    return found


def test_it_is_heard_once_and_scaled_to_any_time(counters: dict[str, Counter]) -> None:
    idle = IdleTraffic()
    idle.listen(0.5, now_s=10.0)
    counters["eth0"] = Counter(1100, 2400)
    assert not idle.is_due(10.4)
    assert idle.is_due(10.5)
    assert not idle.is_due(11.0)
    assert idle.over(2.0) == (Traffic(name="eth0", received_bytes=400, sent_bytes=1600),)


def test_who_never_listened_knows_of_nothing() -> None:
    assert IdleTraffic().over(2.0) == ()
