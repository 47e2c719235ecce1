"""Mailboxes over a hub and over MPI."""

from __future__ import annotations

import signal
from collections import deque
from math import inf
from typing import Any

import pytest

from scaling.errors import Interrupted, SilentRanks
from scaling.records.messages import (
    AGENT_DECODER,
    SWEEP_DECODER,
    Alive,
    Dismiss,
    Reserved,
    Signalled,
    ToAgent,
    ToSweep,
)
from scaling.transport.base import Hub, Mailbox, send_news
from scaling.transport.mpi import TAGS, MpiCluster

# Rank 0's mailbox: whose news it is, what a signal does, and when it sleeps.

HELD = Reserved(attempt=1, slot=0, ports=(1,))


class Box:
    def __init__(self, size: int = 2, silent_s: float = inf) -> None:
        self.hub = Hub(size)
        self.now_s = 0.0
        self.turns = 0
        self.mailbox = Mailbox[ToAgent, ToSweep](
            self.hub.rank(0),
            SWEEP_DECODER,
            turn=self.turn,
            wait=self.wait,
            clock=lambda: self.now_s,
            silent_s=silent_s,
        )

    def turn(self) -> None:
        self.turns += 1

    def wait(self) -> None:
        self.now_s += 1.0


def test_news_come_with_their_rank_in_order_and_it_sleeps_only_without() -> None:
    box = Box()
    send_news(box.hub.rank(1), HELD, HELD)
    send_news(box.hub.rank(0), HELD)
    assert list(box.mailbox.news()) == [(1, HELD), (1, HELD), (0, HELD)]
    assert (box.turns, box.now_s) == (1, 0.0)
    assert list(box.mailbox.news()) == []
    assert (box.turns, box.now_s) == (2, 1.0)


def test_a_signal_is_noted_and_ends_what_waits() -> None:
    box = Box()
    assert list(box.mailbox.news_within(3.0)) == [] and box.now_s == 3.0
    send_news(box.hub.rank(1), Signalled(signal=signal.SIGTERM), HELD)
    assert list(box.mailbox.news()) == [(1, HELD)]
    assert box.mailbox.signalled == signal.SIGTERM
    with pytest.raises(Interrupted) as stop:
        list(box.mailbox.news_within(3.0))
    assert stop.value.exit_code == 143
    assert box.now_s < 6.0


def test_a_signal_before_the_last_answer_ends_the_wait() -> None:
    box = Box()
    send_news(box.hub.rank(1), Signalled(signal=signal.SIGTERM), HELD)
    with pytest.raises(Interrupted):
        box.mailbox.answers(Reserved, [1], 9.0)


def test_an_order_to_all_reaches_all() -> None:
    box = Box(3)
    box.mailbox.order_all(Dismiss())
    for rank in range(3):
        message = box.hub.rank(rank).receive("agent")
        assert message is not None
        assert AGENT_DECODER.decode(message[1]) == Dismiss()


def test_a_rank_that_says_nothing_is_named_with_its_host() -> None:
    box = Box(3, silent_s=120.0)
    box.mailbox.hosts = ("node1", "node1", "node2")
    with pytest.raises(SilentRanks, match=r"^no message from rank 2 on node2 for 120 s") as raised:
        while box.now_s < 1000.0:
            for rank in (0, 1):
                send_news(box.hub.rank(rank), Alive())
            assert len(list(box.mailbox.news())) == 2
            box.mailbox.answers(HELD.__class__, [2], 1.0)
    assert raised.value.ranks == [2]
    assert 119.0 < box.now_s < 125.0


def test_the_time_in_which_rank_0_itself_was_stopped_is_no_silence() -> None:
    box = Box(2, silent_s=120.0)
    for _ in range(100):
        box.now_s += 1e4
        assert list(box.mailbox.news()) == []
    for rank in (0, 1):
        send_news(box.hub.rank(rank), Alive())
    assert len(list(box.mailbox.news())) == 2
    assert list(box.mailbox.news_within(110.0)) == []


# Messages over MPI: what the library's probe says first is not believed.


class Sluggish:
    """An MPI library, and its COMM_WORLD, whose probe looks at what has arrived before it looks for more."""

    ANY_SOURCE = ANY_TAG = -1
    BYTE = "byte"
    rank, size = 0, 2

    def __init__(self, *sent: bytes) -> None:
        self.COMM_WORLD = self
        self._sent = deque(sent)
        self._arrived: deque[bytes] = deque()

    def Get_library_version(self) -> str:
        return "Sluggish MPI 1.0, for tests"

    def Status(self) -> Sluggish:
        return self

    def Iprobe(self, source: int, tag: int, status: Any) -> bool:
        found = bool(self._arrived)
        self._arrived.extend(self._sent)
        self._sent.clear()
        return found

    def Get_source(self) -> int:
        return 1

    def Get_tag(self) -> int:
        return TAGS["agent"]

    def Get_count(self, kind: str) -> int:
        return len(self._arrived[0])

    def Recv(self, into: Any, source: int, tag: int) -> None:
        into[0][:] = self._arrived.popleft()


def test_what_came_during_a_sleep_is_found_at_the_first_look() -> None:
    """Else agents would sleep twice: Open MPI's first probe never finds it."""
    cluster = MpiCluster(Sluggish(b"order"))
    assert cluster.receive("agent") == (1, b"order")
    assert cluster.receive("agent") is None
