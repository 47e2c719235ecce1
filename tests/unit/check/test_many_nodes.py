"""What the verdicts cost on a large cluster, by what they look at."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Interface

import pytest

from scaling.records import host
from scaling.tools.check.verdicts import network
from tests.support.check_facts import facts, nic


def test_each_card_is_looked_at_once_however_many_nodes_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Counter[str]()

    def interface(text: str) -> IPv4Interface:
        read[text] += 1
        return IPv4Interface(text)

    found = facts(tuple(f"node{number}" for number in range(1, 17)), each=2)
    monkeypatch.setattr(host, "IPv4Interface", interface)
    (verdict,) = network.names(found)
    assert verdict.level == "ok"
    assert read == {
        "127.0.0.1/255.0.0.0": 16,
        **{f"10.{net}.0.{number}/255.255.255.0": 1 for net in (10, 20) for number in range(1, 17)},
    }


def test_a_card_without_a_netmask_is_on_a_network_of_its_own() -> None:
    tunnel = nic("tun0", "10.30.0.1", netmask="")
    cards = (nic("ib0", "10.10.0.1"), nic("eth0", "10.20.0.1"), tunnel)
    assert [verdict.level for verdict in network.names(facts(hosts={"node1": {"nics": cards}}))] == ["ok"]
    assert str(tunnel.subnet) == "10.30.0.1/32"
