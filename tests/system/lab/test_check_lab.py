"""The preflight over the nodes of a real lab: a sound one, and faults that are planted."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec
import pytest

from scaling.tools.check.facts import Findings
from scaling.tools.lab import wires
from scaling.tools.lab.state import Lab
from tests.support import labs
from tests.support.labs import needs_lab

pytestmark = needs_lab
IB_BITS_PER_S = 400e6
BURSTS = 1.2  # after a pause the shaper lets a bucketful pass; no flow can go beyond that


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with labs.lab("check", nodes=4, slots=1, nics=("ib0=400mbit", "eth0=100mbit")) as made:
        yield made


def check(lab: Lab, *arguments: str, all_reduce: bool = False) -> tuple[int, Findings]:
    """The preflight of all nodes: its exit code and what it found."""
    timed = "--all-reduce" if all_reduce else "--no-all-reduce"
    done = labs.run(lab, 4, "-m", "scaling", "check", "--json", timed, "--no-device-rates", *arguments)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, msgspec.json.decode(done.stdout, type=Findings)


def said(found: Findings, *topics: str) -> list[str]:
    return [one.text for one in found.verdicts if one.topic in topics and one.level != "ok"]


@contextmanager
def rated(lab: Lab, card: str, change: str, before: str) -> Iterator[None]:
    """Have a card so, and as it was before in the end."""
    with ExitStack() as stack:
        stack.callback(labs.command, "rate", "--name", lab.name, f"{card}={before}")
        done = labs.command("rate", "--name", lab.name, f"{card}={change}")
        assert done.returncode == 0, done.stderr
        yield


def test_a_sound_lab(lab: Lab) -> None:
    code, found = check(lab)
    assert code == 0
    assert said(found, "launch", "code", "versions", "names", "clocks", "network", "mtu", "links") == []
    assert [network.word for network in found.facts.networks] == ["ib", "ethernet"]
    for network, limit in (("ib", IB_BITS_PER_S), ("ethernet", 100e6)):
        carried = found.facts.bandwidths(network)
        assert len(carried) == 12
        assert max(carried.values()) <= BURSTS * limit


def test_the_busbw_of_an_all_reduce_is_that_of_the_shaped_links(lab: Lab) -> None:
    """Gloo's ring crosses each link once, so the shaping decides; what is asserted is far from its limits."""
    _, found = check(lab, "--interconnect", "ib,ethernet", all_reduce=True)
    assert [one.error + one.left_out for one in found.facts.all_reduces] == ["", ""]
    timed = {one.network: one.everyone for one in found.facts.all_reduces}
    for network, limit in (("ib", IB_BITS_PER_S), ("ethernet", 100e6)):
        one = timed[network]
        assert one is not None and one.ranks == 4
        assert limit / 10 < 8 * one.best_busbw_bytes_per_s <= BURSTS * limit


def test_one_nodes_link_at_a_tenth_is_named(lab: Lab) -> None:
    with rated(lab, "node2.ib0", "10%", "100%"):
        code, found = check(lab, "--interconnect", "ib")
    assert code == 1
    (slow,) = [text for text in said(found, "bandwidth") if "slow" in text]
    assert slow.startswith("ib: node2 is slow: it sends ")
    for (sender, receiver), carried in found.facts.bandwidths("ib").items():
        if "node2" in (sender, receiver):
            assert carried <= BURSTS * IB_BITS_PER_S / 10


def test_a_card_that_is_down_is_named_and_the_others_are_measured(lab: Lab) -> None:
    with rated(lab, "node3.ib0", "down", "up"):
        code, found = check(lab, "--interconnect", "ib")
    assert code == 1
    assert said(found, "network") == ["ib is not on every node: ib0 is down on node3"]
    assert len(found.facts.bandwidths("ib")) == 6


def test_packets_of_another_size_are_named(lab: Lab) -> None:
    set_mtu(lab, 1400)
    try:
        _, found = check(lab, "--interconnect", "eth0")
    finally:
        set_mtu(lab, 1500)
    (text,) = said(found, "mtu")
    assert text.startswith("eth0: 1500 on node1, node2, node3; 1400 on node4")


def set_mtu(lab: Lab, mtu: int) -> None:
    with wires.inside(lab, "node4") as ip:
        ip.link("set", index=socket.if_nametoindex("eth0"), mtu=mtu)


def test_a_pair_that_cannot_reach_each_other_is_named(lab: Lab) -> None:
    with labs.unreachable(lab, "node3", "ib0", "10.10.0.1"):
        code, found = check(lab, "--interconnect", "ib")
    assert code == 1
    (text,) = said(found, "links")
    assert text in ("ib: node1-node3: timed out", "ib: node3-node1: timed out")
    assert len(found.facts.bandwidths("ib")) == 10
