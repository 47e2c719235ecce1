"""Links measured for real over the loopback; no figure is asserted, only what must hold of any."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from scaling.records.network import Place
from scaling.tools.check import prober
from scaling.tools.check.facts import Measure
from scaling.tools.check.prober import FLOAT, HELLO, PING, Listener, probe_link

HERE = Place(address="127.0.0.1", interface="lo")


TOKEN = b"0123456789abcdef"


@pytest.fixture
def listener() -> Iterator[Listener]:
    opened = Listener(HERE, TOKEN)
    yield opened
    opened.close()


def order(port: int, **changes: Any) -> Measure:
    fields: dict[str, Any] = {
        "network": "ib", "client": "node1", "server": "node2",
        "source": HERE, "address": "127.0.0.1", "port": port, "token": TOKEN,
        "latency_s": 0.02, "bandwidth_s": 0.05, "limit_s": 20.0,
    }  # fmt: skip
    return Measure(**{**fields, **changes})


def test_a_link_has_latency_and_bandwidth_both_ways(listener: Listener) -> None:
    link = probe_link(order(listener.port))
    assert link.error == ""
    assert (link.network, link.client, link.server) == ("ib", "node1", "node2")
    assert link.latency_s and link.forth_bits_per_s and link.back_bits_per_s
    assert link.offset_s is not None and abs(link.offset_s) < 1.0  # one machine, one clock


def test_pairs_measure_at_the_same_time(listener: Listener) -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(probe_link(order(listener.port)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [link.error for link in found] == ["", "", ""]


def test_both_ends_are_bound_to_the_address_of_their_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = Place(address="127.0.0.7", interface="lo")
        client = threading.Thread(
            target=probe_link, args=(order(server.getsockname()[1], source=source, limit_s=1.0),)
        )
        client.start()
        connection, (address, _) = server.accept()
        connection.close()
        client.join()
    assert address == "127.0.0.7"
    opened = Listener(Place(address="127.0.0.9", interface="lo"), TOKEN)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", opened.port), timeout=5)
    opened.close()


def test_an_interface_that_is_not_there_is_said() -> None:
    nowhere = Place(address="127.0.0.1", interface="none7")
    with pytest.raises(OSError, match="No such device"):
        Listener(nowhere, TOKEN)
    assert probe_link(order(1, source=nowhere)).error == "No such device"


def test_nobody_there_is_said_and_nothing_claimed(listener: Listener) -> None:
    listener.close()
    link = probe_link(order(listener.port))
    assert link.error == "Connection refused"
    assert (link.latency_s, link.forth_bits_per_s, link.back_bits_per_s) == (None, None, None)


def test_a_server_that_stays_silent_costs_no_more_than_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, says nothing
        assert probe_link(order(server.getsockname()[1], limit_s=0.2)).error == "timed out"


@pytest.mark.parametrize(
    "hello",
    [HELLO.pack(b"another token...", PING, 0.1), HELLO.pack(TOKEN, PING, 1e9), HELLO.pack(TOKEN, b"?", 0.1)],
)
def test_a_stranger_is_not_served(listener: Listener, hello: bytes) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), timeout=10) as stranger:
        stranger.sendall(hello)
        assert stranger.recv(1) == b""
    assert probe_link(order(listener.port)).error == ""


def test_a_peer_that_leaves_half_way_does_no_harm(listener: Listener) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), timeout=10) as leaver:
        leaver.sendall(HELLO.pack(TOKEN, prober.FORTH, 0.1)[:9])
    assert probe_link(order(listener.port)).error == ""


def test_a_clock_that_is_ahead_shows() -> None:
    near, far = socket.socketpair()

    def answer() -> None:
        while far.recv(FLOAT.size):
            far.sendall(FLOAT.pack(time.time() + 3600))

    answering = threading.Thread(target=answer)
    answering.start()
    with near, far:
        latency_s, offset_s = prober.ping(near, 0.01)
        near.shutdown(socket.SHUT_WR)
        answering.join()
    assert latency_s > 0
    assert offset_s == pytest.approx(3600, abs=5)


def test_large_packets_that_vanish_leave_the_latency(monkeypatch: pytest.MonkeyPatch, listener: Listener) -> None:
    really = prober.drain
    monkeypatch.setattr(prober, "drain", lambda *given: 0.0 * really(*given))
    link = probe_link(order(listener.port))
    assert link.error == "no data arrived"
    assert link.latency_s is not None and link.forth_bits_per_s is None
