"""The preflight of four nodes in this process, whose links are parts of the loopback and measured for real."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from itertools import combinations

import pytest

from scaling.errors import Interrupted
from scaling.hosts import networks
from scaling.hosts.networks import Entry
from scaling.tools.check import __main__, lead, prober
from scaling.tools.check.facts import LEAD_DECODER, Facts, Findings, Link, Measure, RankFacts, ToLead, ToRank
from scaling.tools.check.lead import Lead
from scaling.tools.check.prober import Prober
from scaling.tools.check.verdicts import judge
from scaling.transport.base import Hub, Mailbox
from tests.support.check_facts import FOUR, nic, node, rank


def mailbox(hub: Hub, turn: Callable[[], None]) -> Mailbox[ToRank, ToLead]:
    """Rank 0's, which sleeps for real."""
    return Mailbox(hub.rank(0), LEAD_DECODER, turn=turn, wait=lambda: time.sleep(0.001))


class Preflight:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, told: Sequence[RankFacts]) -> None:
        monkeypatch.setattr(lead, "BANDWIDTH_S", (0.01, 0.02))
        monkeypatch.setattr(lead, "LATENCY_S", (0.005, 0.01))
        # the addresses of these nodes are all of this host's loopback
        monkeypatch.setattr(networks, "usable", lambda host: host.nics)
        monkeypatch.setattr(prober, "WATCH_S", 0.01)
        hub = Hub(len(told))
        self.signals: list[list[int]] = [[] for _ in told]
        self.probers = [
            Prober(hub.rank(number), signals=self.signals[number], bind=lambda *_: None)
            for number in range(hub.size)
        ]
        for mine, one in zip(self.probers, told, strict=True):
            mine.say(one)
        self.said: list[str] = []
        self.lead = Lead(mailbox(hub, self.turn))
        self.lead.say = self.said.append

    def turn(self) -> None:
        for one in self.probers:
            one.turn()

    def run(self, known: dict[str, Entry] | None = None, words: Sequence[str] = ()) -> Facts:
        found = self.lead.found(self.lead.enrolled(), words, known or {})
        measured = self.lead.linked(found, time.monotonic() + 60)
        self.lead.dismiss()
        self.turn()
        assert all(one.left for one in self.probers)
        return measured


def on_loopback(names: Sequence[str] = FOUR) -> list[RankFacts]:
    """Hosts whose cards have addresses of 127.0.0.0/8, which all are this machine's."""
    hosts = [
        node(name, number, nics=(nic("ib0", f"127.10.0.{number}"), nic("eth0", f"127.20.0.{number}")))
        for number, name in enumerate(names, 1)
    ]
    return [rank(one, number) for number, one in enumerate(hosts)]


def test_four_nodes_and_two_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    preflight = Preflight(monkeypatch, on_loopback())
    measured = preflight.run()
    assert {(link.network, link.error) for link in measured.links} == {("ib0", ""), ("eth0", "")}
    assert len(measured.links) == 12
    for word in ("ib0", "eth0"):
        assert len(measured.bandwidths(word)) == len(measured.latencies(word)) == 12
        assert all(value > 0 for value in measured.bandwidths(word).values())
    assert preflight.said[0] == "4 ranks on 4 nodes; networks: ib0, eth0"
    text = __main__.render(Findings(facts=measured, verdicts=judge(measured), wall_s=1.0))
    assert text.count("node4") >= 4
    assert not {verdict.level for verdict in judge(measured) if verdict.topic == "links"}


def test_a_link_that_looks_slow_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def probe(order: Measure, _bind: object) -> Link:
        pair = " ".join(sorted((order.client, order.server)))
        first = pair not in measured
        measured.append(pair)
        speed = {"node1 node2": 1e9 if first else 9e9, "node1 node3": 1e9}.get(pair, 9e9)
        if pair == "node1 node3" and not first:  # a failure does not replace what was measured
            return Link(network=order.network, client=order.client, server=order.server, error="timed out")
        return Link(network=order.network, client=order.client, server=order.server, latency_s=1e-5,
                    forth_bits_per_s=speed, back_bits_per_s=9e9)  # fmt: skip

    monkeypatch.setattr(prober, "probe_link", probe)
    links = Preflight(monkeypatch, on_loopback()).run({"ib": Entry(interface="ib0")}).links
    slow = [sorted((link.client, link.server)) for link in links if link.forth_bits_per_s == 1e9]
    assert slow == [["node1", "node3"]]
    assert [(link.error, link.latency_s) for link in links] == [("", 1e-5)] * 6
    every = [" ".join(pair) for pair in combinations(FOUR, 2)]
    assert sorted(measured) == sorted([*every, "node1 node2", "node1 node3"])


def test_a_node_that_lacks_its_address_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    told = on_loopback()
    told[2] = rank(node("node3", 3, nics=(nic("ib0", "127.10.0.3"), nic("ib1", "198.51.100.3"))), 2)
    told[3] = rank(node("node4", 4, nics=(nic("ib0", "127.10.0.4"), nic("ib1", "198.51.100.4"))), 3)
    measured = Preflight(monkeypatch, told).run({"ib": Entry(interface="ib0"), "other": Entry(interface="ib1")})
    assert len([link for link in measured.links if link.network == "ib" and not link.error]) == 6
    assert not [link for link in measured.links if link.network == "other"]
    assert {verdict.text.split(": ")[-1] for verdict in judge(measured) if verdict.topic == "links"} == {
        "Cannot assign requested address"
    }


@pytest.mark.parametrize(("words", "level"), [((), "warning"), (("auto",), "warning"), (("ib0",), "error")])
def test_a_node_off_a_network_is_an_error_only_where_that_was_named(
    monkeypatch: pytest.MonkeyPatch, words: Sequence[str], level: str
) -> None:
    told = on_loopback(FOUR[:3])
    told[2] = rank(node("node3", 3, nics=(nic("eth0", "127.20.0.3"),)), 2)
    (off,) = (one for one in judge(Preflight(monkeypatch, told).run(words=words)) if "not on every" in one.text)
    assert (off.level, off.text.partition(":")[0]) == (level, "ib0 is not on every node")


def test_only_the_first_rank_of_a_node_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    two = on_loopback(FOUR[:2])
    measured = Preflight(monkeypatch, [two[0], two[0], two[1], two[1]]).run()
    assert len(measured.links) == 2
    assert measured.nodes == ("node1", "node2")


def test_one_node_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    preflight = Preflight(monkeypatch, on_loopback(FOUR[:1]))
    assert preflight.run().links == ()
    assert preflight.said == ["one node; no network between nodes"]


def test_a_signal_on_any_rank_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    preflight = Preflight(monkeypatch, on_loopback())
    preflight.signals[2].append(signal.SIGINT)
    with pytest.raises(Interrupted) as stopped:
        preflight.run()
    assert stopped.value.exit_code == 130


def test_a_bug_in_a_thread_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    preflight = Preflight(monkeypatch, on_loopback())
    monkeypatch.setattr(prober, "watch", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        preflight.run()


def test_a_pair_without_an_answer_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaling.tools.check.lead.GRACE_S", 0.0)
    monkeypatch.setattr("scaling.tools.check.lead.LATE_S", 0.0)
    preflight = Preflight(monkeypatch, on_loopback(FOUR[:2]))
    over = threading.Event()
    monkeypatch.setattr("scaling.tools.check.prober.probe_link", lambda *_: over.wait(60))
    assert {link.error for link in preflight.run().links} == {"no answer"}
    over.set()


def test_names_are_resolved_or_not() -> None:
    found = prober.resolve(["localhost", "no-such-host.invalid"])
    assert found == {"localhost": ("127.0.0.1",), "no-such-host.invalid": ()}


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def late(*_: object) -> list[object]:
        answered.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", late)
    assert prober.resolve(["node1"], within_s=0.01) == {"node1": ()}
    answered.set()


def test_no_rank_goes_on_before_all_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank says next is of another kind, which the preflight cannot read."""
    monkeypatch.setattr(lead, "LEAVE_S", 60.0)
    hub, went_on = Hub(3), threading.Event()
    probers = [Prober(hub.rank(number)) for number in range(hub.size)]

    def serve(number: int) -> None:
        if number == 2:
            went_on.wait(0.1)
        probers[number].serve()
        went_on.set()
        hub.rank(number).send(0, "sweep", b"of another kind")

    threads = [threading.Thread(target=serve, args=(number,), daemon=True) for number in (1, 2)]
    for thread in threads:
        thread.start()
    with lead.leading(hub.rank(0), probers[0], goes_on=True):
        assert not went_on.is_set()
    for thread in threads:
        thread.join(60)
    assert {hub.rank(0).receive("sweep") for _ in threads} == {(number, b"of another kind") for number in (1, 2)}
