"""What a host's cards carry while nothing runs, as an agent hears it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scaling.agent.idle import STRETCHES, IdleTraffic
from scaling.hosts import interfaces
from scaling.hosts.interfaces import Counter
from scaling.records.telemetry import Traffic

LISTENED_S = 0.5
# Between two looks of an agent: a little longer than a stretch.
LOOK_S = 1.001 * LISTENED_S / STRETCHES


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter]:
    """What the kernel would say of the cards."""
    found = {"eth0": Counter(1000, 2000)}
    monkeypatch.setattr(interfaces, "read", lambda: dict(found))
    return found


def heard(counters: dict[str, Counter], stretches: Sequence[tuple[int, int]], name: str = "eth0") -> IdleTraffic:
    """After so many bytes in each stretch, received and sent; it is over with the last of them."""
    idle = IdleTraffic()
    idle.listen(LISTENED_S, now_s=10.0)
    for number, (received, sent) in enumerate(stretches, 1):
        before = counters[name]
        counters[name] = Counter(before.received_bytes + received, before.sent_bytes + sent)
        assert idle.is_due(10.0 + number * LOOK_S) is (number == len(stretches))
    return idle


def sent_bytes(idle: IdleTraffic, seconds: float) -> float:
    (one,) = idle.over(seconds)
    return one.sent_bytes


def test_it_is_heard_once_and_scaled_to_any_time(counters: dict[str, Counter]) -> None:
    idle = heard(counters, [(20, 80)] * STRETCHES)
    assert not idle.is_due(11.0)
    (found,) = idle.over(2.0)
    assert (found.received_bytes, found.sent_bytes) == pytest.approx((400, 1600), abs=2)


def test_before_its_time_nothing_is_heard(counters: dict[str, Counter]) -> None:
    idle = IdleTraffic()
    idle.listen(LISTENED_S, now_s=10.0)
    counters["eth0"] = Counter(1100, 2400)
    assert not idle.is_due(10.0 + LOOK_S / 2)
    assert idle.over(2.0) == ()


@pytest.mark.parametrize("first", range(STRETCHES - 1))
def test_a_burst_is_not_taken_for_what_is_carried_all_the_time(counters: dict[str, Counter], first: int) -> None:
    """Wherever it falls, also over the edge of two stretches: 11 MB of it would be scaled to hundreds."""
    stretches = [(20, 80)] * STRETCHES
    stretches[first : first + 2] = [(20, 80 + 5_500_000)] * 2
    assert sent_bytes(heard(counters, stretches), 30.0) == pytest.approx(30.0 * 800, rel=0.01)


def test_a_stretch_that_lasted_longer_counts_by_its_own_time(counters: dict[str, Counter]) -> None:
    """An agent that was kept from looking takes what came meanwhile for no more per second."""
    idle, now_s = IdleTraffic(), 10.0
    idle.listen(LISTENED_S, now_s)
    for number in range(1, STRETCHES + 1):
        now_s += number * LOOK_S
        counters["eth0"] = Counter(1000, 2000 + round(1e6 * (now_s - 10.0)))
        assert idle.is_due(now_s) is (number == STRETCHES)
    assert sent_bytes(idle, 3.0) == pytest.approx(3e6, rel=1e-3)


def test_a_counter_that_begins_anew_costs_one_stretch(counters: dict[str, Counter]) -> None:
    counters["eth0"] = Counter(10**9, 10**9)
    idle = heard(counters, [(20, 80), (-(10**9), -(10**9)), (20, 80), (20, 80), (20, 80)])
    assert sent_bytes(idle, 2.0) == pytest.approx(1600, abs=2)


def test_who_listens_again_forgets_what_was_heard_before(counters: dict[str, Counter]) -> None:
    idle = heard(counters, [(20, 80)] * STRETCHES)
    idle.listen(LISTENED_S, now_s=20.0)
    assert sent_bytes(idle, 2.0) == pytest.approx(1600, abs=2)
    for number in range(1, STRETCHES + 1):
        assert idle.is_due(20.0 + number * LOOK_S) is (number == STRETCHES)
    assert idle.over(2.0) == (Traffic(name="eth0", received_bytes=0, sent_bytes=0),)


def test_who_never_listened_knows_of_nothing() -> None:
    assert IdleTraffic().over(2.0) == ()
