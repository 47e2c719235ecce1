"""Hosts prove over real connections that they reach each other; all of them are this machine, by its loopback."""

from __future__ import annotations

import ctypes
import re
import socket
import struct
from contextlib import closing
from itertools import combinations

import pytest
from msgspec.structs import replace

from scaling.agent.agent import Agent
from scaling.errors import LaunchError
from scaling.hosts import connections
from scaling.hosts.connections import ENOUGH_BYTES, MESSAGE, Attempts, Door, _unacknowledged_bytes
from scaling.records.host import Nic
from scaling.records.messages import SWEEP_DECODER, Admit, Admitting, Enrol, ToAgent, ToSweep, Way
from scaling.records.network import ALONE, AUTO, Network, Place
from scaling.run import enrolment
from scaling.run.enrolment import peers, prove
from scaling.transport.base import Hub, Mailbox
from tests.support.inline import enrol, host
from tests.support.inline_child import Clock
from tests.support.waiting import eventually

LO = Nic(name="lo", address="127.0.0.1", netmask="255.0.0.0", up=True, mtu=65536)
NAMES = ("a", "b", "c")


def network(interface: str = "lo", word: str = "eth0", **addresses: str) -> Network:
    """A routed network of three hosts, by default at three addresses of the loopback."""
    found = {name: f"127.0.0.{number}" for number, name in enumerate(NAMES, 1)} | addresses
    places = {name: Place(address=address, interface=interface) for name, address in found.items()}
    return Network(word=word, why="", places=places, routed=True)


def proved(*networks: Network, each: int = 1) -> tuple[Network, ...]:
    enrolled: list[Enrol] = [enrol(host(name, nics=(LO,))) for name in NAMES for _ in range(each)]
    hub, clock = Hub(len(enrolled)), Clock()
    agents = [Agent(hub.rank(rank), clock=clock) for rank in range(len(enrolled))]

    def turn() -> None:
        for agent in agents:
            agent.turn()

    mailbox = Mailbox[ToAgent, ToSweep](
        hub.rank(0), SWEEP_DECODER, turn=turn, wait=lambda: clock.sleep(0.01), clock=clock
    )
    try:
        return prove(mailbox, enrolled, networks)
    finally:
        turn()


def test_all_pairs_of_three_hosts_connect() -> None:
    assert [one.connections for one in proved(network(), each=2)] == [3]


def test_two_networks_are_proved_one_after_the_other() -> None:
    assert [one.connections for one in proved(network(word="eth0"), network(word="eth1"))] == [3, 3]


def test_a_subnet_that_all_hosts_share_is_proved_too() -> None:
    """The interface that packets leave by is not: the counters tell it."""
    assert [one.connections for one in proved(replace(network("eth0"), routed=False, subnet="127.0.0.0/8"))] == [3]


def test_one_host_alone_proves_nothing() -> None:
    alone = Network(word=AUTO, why="", places={"a": ALONE})
    assert proved(alone) == (alone,)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            network("eth0"),
            "--interconnect eth0: not all hosts can connect there: a goes to b at "
            "127.0.0.2 by lo (127.0.0.1), not by eth0; b goes to c at ",
        ),
        (network("eth0", AUTO), "--interconnect auto takes eth0, but not all hosts can connect there: a goes"),
        (network(b="203.0.113.7"), "b does not listen at 203.0.113.7: Cannot assign requested address"),
    ],
)
def test_what_is_wrong_is_said_with_the_hosts(wrong: Network, message: str) -> None:
    with pytest.raises(LaunchError, match=re.escape(message)):
        proved(wrong)


def test_doors_are_closed_in_the_end() -> None:
    agent = Agent(Hub(1).rank(0))
    agent._proving.obey(Admit(network="eth0", address="127.0.0.1"), 0.0)
    (opened,) = agent._proving.answers(0.0)
    assert isinstance(opened, Admitting)
    socket.create_connection(("127.0.0.1", opened.port)).close()
    agent._proving.obey(Admit(network="eth0", address=""), 0.0)
    assert agent._proving.answers(0.0) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", opened.port))


def test_a_peer_that_refuses_and_one_that_does_not_answer() -> None:
    with socket.socket() as closed, socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        closed.bind(("127.0.0.1", 0))
        callers = [
            socket.socket() for _ in range(3)
        ]  # they fill the queue of the server, so that one more must wait
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(full.getsockname())
        attempts = Attempts([closed.getsockname(), full.getsockname()], until_s=5.0)
        assert attempts.ways(4.9) is None
        assert attempts.ways(5.0) == (Way(error="Connection refused"), Way(error="timed out"))
        for caller in callers:
            caller.close()


# Classic BPF: packets of more than 1000 bytes are dropped, as by a switch with a smaller MTU than the hosts.
LARGE_ARE_LOST = b"".join(
    struct.pack("HBBI", *one) for one in ((0x80, 0, 0, 0), (0x25, 0, 1, 1000), (6, 0, 0, 0), (6, 0, 0, 0xFFFFFFFF))
)
SO_ATTACH_FILTER = 26


def lose_large_packets(sock: socket.socket) -> None:
    code = ctypes.create_string_buffer(LARGE_ARE_LOST, len(LARGE_ARE_LOST))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 4, ctypes.addressof(code)))


def lossy(address: str) -> Door:
    made = Door(address)
    lose_large_packets(made._listening)
    return made


def test_a_switch_that_loses_large_packets_is_named() -> None:
    """Small messages pass, so that hosts connect; an exchange would hang."""
    with closing(Door("127.0.0.1")) as good, closing(lossy("127.0.0.1")) as bad:
        attempts = Attempts([("127.0.0.1", good.port), ("127.0.0.1", bad.port)], until_s=5.0)

        def is_first_done() -> bool:
            good.read()
            return attempts.ways(0.0) is None and len(attempts._open) == 1

        eventually(is_first_done, within_s=30)
        passed, lost = attempts.ways(5.0) or ()
    assert passed == Way(source="127.0.0.1")
    assert lost.error.startswith("it connects, but 1 MiB does not pass: this host's MTU is ")


def test_a_network_too_slow_for_the_whole_message_passes_large_packets() -> None:
    """Nobody reads: the message stays in the other kernel's buffer and in this one's."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * ENOUGH_BYTES)
        server.bind(("127.0.0.1", 0))
        server.listen()
        attempts = Attempts([server.getsockname()], until_s=5.0)
        eventually(lambda: attempts.ways(0.0) is None and _passed(attempts) > ENOUGH_BYTES, within_s=30)
        assert attempts.ways(5.0) == (Way(source="127.0.0.1"),)


def _passed(attempts: Attempts) -> int:
    ((fd, unsent),) = attempts._unsent.items() or ((0, len(MESSAGE)),)
    return len(MESSAGE) - unsent - (_unacknowledged_bytes(attempts._open[fd][1]) if fd else 0)


def test_both_mtus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "Door", lossy)
    monkeypatch.setattr(enrolment, "CONNECT_S", 0.2)
    with pytest.raises(LaunchError, match=r"a to b at 127\.0\.0\.1: it connects, .*; that of b is 65536; "):
        proved(network(b="127.0.0.1"))


@pytest.mark.parametrize("count", [2, 3, 4, 7, 100])
def test_each_pair_of_hosts_connects(count: int) -> None:
    names = [str(number) for number in range(count)]
    pairs = {frozenset((name, peer)) for number, name in enumerate(names) for peer in peers(names, number)}
    assert pairs == {frozenset(pair) for pair in combinations(names, 2)}
