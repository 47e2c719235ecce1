"""A rank's start over ZeroMQ: the order in which an answer and rank 0's end are read."""

from __future__ import annotations

import struct
import time

import pytest
import zmq

from scaling.transport.zmq import REFUSED, _answered


class Late:
    """A socket and its monitor: a refusal and rank 0's end both arrive while the rank first waits."""

    def __init__(self, *messages: list[bytes]) -> None:
        self.messages = list(messages)
        self.events = [zmq.EVENT_CONNECTED]
        self.arrived = False

    def poll(self, _timeout_ms: int) -> bool:
        was, self.arrived = self.arrived, True
        if not was:
            self.events.append(zmq.EVENT_DISCONNECTED)
        return was and bool(self.messages)

    def recv_multipart(self) -> list[bytes]:
        return self.messages.pop(0)


class Watch:
    def __init__(self, late: Late) -> None:
        self.late = late

    def poll(self, _timeout_ms: int) -> bool:
        return bool(self.late.events)

    def recv_multipart(self, _flags: int) -> list[bytes]:
        return [struct.pack("=hi", self.late.events.pop(0), 0), b"tcp://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("messages", "answer"),
    [([[REFUSED, b"rank 1 came twice"]], (REFUSED, "rank 1 came twice")), ([], (b"", None))],
)
def test_a_refusal_is_read_though_rank_0_has_ended(messages: list[list[bytes]], answer: tuple[bytes, str]) -> None:
    late = Late(*messages)
    kind, why = _answered(zmq, late, Watch(late), time.monotonic() + 60, "")
    assert (kind, why) == (answer[0], answer[1] or why)
    assert answer[1] or why.startswith("it has another secret")
