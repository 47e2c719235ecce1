"""What cards carry while nothing runs is listened to before each round, and is known of what they carry in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scaling.agent import watch
from scaling.agent.watch import IdleTraffic
from scaling.hosts import interfaces
from scaling.hosts.interfaces import Counter
from scaling.records.host import Nic
from scaling.sweep.sweep import LISTEN_S
from tests.support.inline import Launch, Run, host

BYTES_PER_S = 1e6


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    listen = IdleTraffic.listen

    def noted(one: IdleTraffic, seconds: float, now_s: float) -> None:
        found.append(now_s)
        listen(one, seconds, now_s)

    monkeypatch.setattr(IdleTraffic, "listen", noted)
    return found


def measured(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: int = 2,
    burst_bytes: Callable[[float], float] = lambda now_s: 0.0,
    **fields: Any,
) -> Run:
    """A sweep of two devices on so many hosts, whose cards always carry so much, whoever runs, and until any time
    these bytes beside that."""
    nics = [
        (Nic(name="eth0", address=f"10.0.0.{node}", netmask="255.255.255.0", up=True, mtu=1500),)
        for node in (1, 2)
    ]
    hosts = [host(f"node{number % nodes + 1}", cores=2, nics=nics[number % nodes]) for number in range(2)]
    launch = Launch(2, hosts)

    def read() -> dict[str, Counter]:
        now_s = launch.clock.now_s
        return {"eth0": Counter(0, round(BYTES_PER_S * now_s + burst_bytes(now_s)))}

    monkeypatch.setattr(interfaces, "read", read)
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=launch.clock))
    return launch.sweep(folder, **{"kinds": ["exchange", "together"], "world_sizes": [2], "rounds": 2, **fields})


@pytest.mark.parametrize("interleave", [False, True])
def test_what_cards_carry_anyway_is_all_that_they_carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interleave: bool
) -> None:
    """However many stretches of windows there were."""
    found = measured(tmp_path, monkeypatch, interleave=interleave)
    assert {record.epoch is not None for record in found.records} == {interleave}
    for record in found.of(size=2):
        for rank in record.ranks:
            (carried,), (idle,) = rank.telemetry.traffic, rank.telemetry.idle_traffic
            assert carried.sent_bytes > 0
            assert idle.sent_bytes == pytest.approx(carried.sent_bytes, rel=1e-3)


def test_a_burst_while_it_is_listened_is_not_carried_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: list[float]
) -> None:
    """Scaled to the time of the windows it would be more than they carried themselves."""

    def burst_bytes(now_s: float) -> float:
        return 20.0 * BYTES_PER_S if heard and now_s > heard[0] + LISTEN_S / 2 else 0.0

    found = measured(tmp_path, monkeypatch, burst_bytes=burst_bytes, rounds=1)
    for record in found.of(size=2):
        for rank in record.ranks:
            (carried,), (idle,) = rank.telemetry.traffic, rank.telemetry.idle_traffic
            assert idle.sent_bytes == pytest.approx(carried.sent_bytes, rel=1e-3)


def test_each_rank_listens_before_each_round_and_nothing_starts_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: list[float]
) -> None:
    found = measured(tmp_path, monkeypatch, kinds=["exchange"], rounds=3)
    assert len(heard) == 2 * 3
    ended_s = 0.0
    for number, record in enumerate(found.records):
        for at_s in heard[2 * number : 2 * number + 2]:
            assert ended_s <= at_s <= record.started_unix_s - LISTEN_S
        ended_s = max(window.end_unix_s for rank in record.ranks for window in rank.windows)


def test_within_one_host_nobody_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: list[float]
) -> None:
    assert measured(tmp_path, monkeypatch, nodes=1).records
    assert heard == []
