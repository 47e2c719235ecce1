"""A rank's start over ZeroMQ: the order in which an answer and rank 0's end are read."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from scaling import __version__
from scaling.errors import LaunchError
from scaling.transport import zmq as transport
from scaling.transport.start import Secret, Start
from scaling.transport.zmq import REFUSED, _answered, _follow, _Search, _unlike

PLACE = Start(rank=1, ranks=2, host="nowhere", port=7000)


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
    kind, why = _answered(late, Watch(late), _Search(PLACE, lambda: None))
    assert (kind, why) == (answer[0], answer[1] or why)
    assert answer[1] or why.startswith("it has another secret")


def test_a_name_server_that_takes_long_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its last answer comes after the time in which rank 0 must be found."""
    clock = Clock()

    def unknown(host: str) -> list[str]:
        clock.now_s += 7
        return []

    monkeypatch.setattr(transport, "time", clock)
    monkeypatch.setattr(transport, "_addresses", unknown)
    with pytest.raises(LaunchError, match=r"within 120 s: .* cannot resolve nowhere; "):
        _follow(None, PLACE, Secret({}, tmp_path, PLACE), lambda: None)
    said = capsys.readouterr().err
    assert said.startswith("scaling: rank 1 waits for rank 0, up to 120 s: ") and said.count("\n") == 1


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"version": "0.0.9"}, "rank 1 on b has scaling 0.0.9, rank 0 has "),
        ({"version": 9}, "a rank has another version of scaling than rank 0, which has "),
        ({"ranks": 4}, "rank 1 on b was started with --ranks 4, rank 0 with 2; "),
        ({"rank": 2}, "rank 2 on b came twice, before from of only 2 ranks; "),
        ({"rank": 0}, "rank 0 on b came twice, before from as rank 0; "),
        ({"command": "other"}, "rank 1 on b runs other, rank 0 runs ; "),
    ],
)
def test_a_first_message_of_another_kind_is_no_traceback(changed: dict[str, Any], why: str) -> None:
    hello = {"rank": 1, "ranks": 2, "version": __version__, "host": "b", **changed}
    assert _unlike(msgspec.msgpack.encode(hello), PLACE._replace(rank=0), {}).startswith(why)
    assert _unlike(b"\xc1", PLACE._replace(rank=0), {}).startswith("a rank has another version of scaling")


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
