"""The kernel's account of TCP connections, from sockets between two addresses of this host."""

from __future__ import annotations

import socket

import pytest

from scaling.hosts import connections
from scaling.records.telemetry import Flow
from tests.support.waiting import eventually


def sent_to_far(before: connections.Reading) -> list[Flow]:
    return [one for one in connections.since(before, connections.read()) if one.peer == "127.0.0.2"]


@pytest.mark.parametrize(("family", "here", "there"), [
    (socket.AF_INET, "127.0.0.1", "127.0.0.2"),
    (socket.AF_INET6, "::ffff:127.0.0.1", "::ffff:127.0.0.2"),
])  # fmt: skip
def test_a_connection_is_counted_in_bytes_and_busy_while_its_reader_sleeps(
    family: socket.AddressFamily, here: str, there: str
) -> None:
    with socket.socket(family) as server:
        server.bind((there, 0))
        server.listen()
        sender = socket.socket(family)
        sender.bind((here, 0))
        sender.connect(server.getsockname())
        receiver, _ = server.accept()
        with sender, receiver:
            before = connections.read()
            sender.settimeout(0.1)
            sent = 0
            with pytest.raises(TimeoutError):
                while True:
                    sent += sender.send(bytes(1 << 16))
            eventually(lambda: any(one.busy_s > 0.1 for one in sent_to_far(before)))
            receiver.settimeout(5)
            left = sent
            while left:
                left -= len(receiver.recv(1 << 20))
            # The acknowledgement of the last bytes may be on its way.
            (found,) = eventually(lambda: [one for one in sent_to_far(before) if one.sent_bytes == sent])
    assert found.address == "127.0.0.1"
    assert found.busy_s > 0.1


def test_connections_inside_the_host_are_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        receiver, _ = server.accept()
        with receiver:
            assert not any(one.address == one.peer for one in connections.read())
