"""The networks that the preflight measures: of --interconnect, of the fabric file, else all that nodes share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.hosts import networks
from scaling.hosts.networks import Entry, choose
from scaling.tools.check import lead
from scaling.tools.check.facts import RankFacts
from scaling.tools.check.verdicts import links
from tests.support import clouds
from tests.support.check_facts import FABRIC, FOUR, nic, pods, rank, ranks
from tests.support.golden import check_golden


def of_nics(*names: str) -> tuple[RankFacts, ...]:
    """Four nodes with these cards and addresses: `usb0 169.254.3.{}`."""
    cards = {n: tuple(nic(*one.format(n).split()) for one in names) for n in range(1, 5)}
    hosts = {node: {"nics": cards[n]} for n, node in enumerate(FOUR, 1)}
    return ranks(hosts=hosts)


ENS3 = {"node2": {"nics": (nic("ens3", "10.10.0.2"), nic("eth0", "10.20.0.2"))}}
LOST = clouds.machine("d", ["ib0 10.9.9.9/24"], ["10.9.9.0/24 dev ib0"])
NEAR = clouds.flannel("d", 1)
NEAR = replace(NEAR, nics=(NEAR.nics[0], replace(NEAR.nics[1], address="10.244.1.9")))
BY_NODE = {"ib": Entry(interface="ib0", hca={"a": "mlx5_0", "*": "mlx5_1"})}

FOUND: dict[str, tuple[Sequence[RankFacts], Sequence[str], dict[str, Entry]]] = {
    "by subnet where nobody names them": (ranks(), (), {}),
    "interfaces of different names are one network": (ranks(FOUR[:2], hosts=ENS3), (), {}),
    "a bridge of containers is none": (of_nics("eth0 10.20.0.{}", "docker0 172.17.0.1"), (), {}),
    "a service processor is none": (of_nics("usb0 169.254.3.{}", "eth0 10.20.0.{}"), (), {}),
    "a service processor that is named": (of_nics("usb0 169.254.3.{}", "eth0 10.20.0.{}"), ("usb0",), {}),
    "the fabric file and its rates": (ranks(), (), FABRIC),
    **{f"--interconnect {word}": (ranks(), (word,), FABRIC) for word in ("ib", "eth0", "10.20.0.0/24")},
    **{
        f"pods of {name}, {words}": (pods(make), words, {})
        for name, make in (("Calico", clouds.calico), ("Cilium", clouds.cilium), ("Flannel", clouds.flannel))
        for words in ((), ("eth0",))
    },
    "pods that share a node are on the network of all": ([*pods(clouds.flannel), rank(NEAR, 4)], (), {}),
    "a subnet per rack beside the common one": (pods(clouds.racks), (), {}),
    "a wider subnet than the masks": (pods(clouds.flannel), (), {"pods": Entry(subnet="10.244.0.0/16")}),
    "a node in another subnet without a route": ([*pods(clouds.dgx), rank(LOST, 4)], ("ib0",), {}),
    "cards by node": (pods(clouds.dgx), ("ib",), BY_NODE),
}


def test_the_networks_that_are_measured() -> None:
    lines = []
    for name, arguments in FOUND.items():
        facts = lead.find_networks(*arguments)
        lines.append(f"## {name}")
        for one in facts.networks:
            rate = f"{one.rate_bits_per_s / 1e9:g} Gb/s {one.why}" if one.rate_bits_per_s else one.why
            lines.append(f"{one.word}: {links.where(one)}, {rate}")
            lines += [
                f"  {node}: {at.interface} {at.address} {at.hca}".rstrip() for node, at in one.places.items()
            ]
            lines += [f"  {node}: {why}" for node, why in facts.absent.get(one.word, {}).items()]
        lines.append("")
    check_golden("check-networks.txt", "\n".join(lines))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("ib1", "--interconnect ib1: no host is on it; did you mean 'ib"),
        ("10.10.0.1/24", "write for example 10.10.0.0/24"),
    ],
)
def test_words_that_mean_nothing(word: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        lead.find_networks(ranks(), [word], FABRIC)


def test_a_run_and_the_preflight_choose_the_same_cards_and_leave_the_loopback_out() -> None:
    """Also with a card that is not active, and an address of another network on the loopback."""
    one, *others = (told.host for told in pods(clouds.dgx))
    idle = replace(one, hcas=tuple(replace(card, active=False) for card in one.hcas))
    anycast = replace(one.nics[0], name="lo", address="10.99.0.1")
    for first in (one, idle, replace(one, nics=(anycast, *one.nics))):
        hosts = [first, *others]
        of_run = choose(hosts, "ib0")
        facts = lead.find_networks([rank(host, number) for number, host in enumerate(hosts)], ["ib0"], {})
        assert facts.networks[0].places == of_run.places
        faults = ["ib0: mlx5_0 is not active on a"] if first is idle else []
        assert [one.text for one in links.rdma(facts)] == faults
        assert {place.hca for place in of_run.places.values()} == {"" if first is idle else "mlx5_0"}
        assert anycast not in networks.usable(first)


@pytest.mark.parametrize(("hca", "fault"), [("mlx5_1", ""), ("any", ""), ("", "is not in /dev/infiniband")])
def test_a_card_behind_the_interface_is_no_fault_if_the_fabric_file_names_others(hca: str, fault: str) -> None:
    """A container may be given the cards of the file alone."""
    told = [one.host for one in pods(clouds.dgx)]
    closed = [replace(host, hcas=(replace(host.hcas[0], opens=False), *host.hcas[1:])) for host in told]
    found = [rank(host, number) for number, host in enumerate(closed)]
    facts = lead.find_networks(found, ["ib"], {"ib": Entry(interface="ib0", hca=hca)})
    said = [one.text for one in links.rdma(facts)]
    assert len(said) == bool(fault) and fault in "".join(said)
