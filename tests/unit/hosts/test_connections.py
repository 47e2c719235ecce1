"""What went over TCP connections between two readings of the kernel's account."""

from __future__ import annotations

from scaling.hosts import connections
from scaling.hosts.connections import Account, Connection
from scaling.records.telemetry import Flow

CONNECTION = Connection("10.0.0.1", 1000, "10.0.0.2", 2000)
OTHER = Connection("10.0.0.1", 1001, "10.0.0.2", 2000)


def test_bytes_of_two_connections_add_up_and_their_times_overlap() -> None:
    before = {CONNECTION: Account(1_000_000, 1.0)}
    now = {CONNECTION: Account(4_000_000, 3.0), OTHER: Account(500_000, 0.5)}
    assert connections.since(before, now) == (
        Flow(address="10.0.0.1", peer="10.0.0.2", sent_bytes=3_500_000, busy_s=2.0),
    )


def test_what_says_little_is_left_out() -> None:
    assert connections.since({}, {CONNECTION: Account(99_999, 1.0)}) == ()
