"""The networks that the preflight measures: of --interconnect, of the fabric file, else all that nodes share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.hosts import networks
from scaling.hosts.networks import Entry, choose
from scaling.records.network import Network
from scaling.tools.check import lead
from scaling.tools.check.facts import RankFacts
from scaling.tools.check.verdicts import links
from tests.support import clouds
from tests.support.check_facts import FABRIC, FOUR, Make, nic, pods, rank, ranks


def found(
    told: Sequence[RankFacts], words: Sequence[str] = (), known: dict[str, Entry] | None = None
) -> dict[str, str]:
    return {one.word: one.subnet for one in lead.find_networks(told, words, known or {}).networks}


def test_networks_by_subnet_where_nobody_names_them() -> None:
    assert found(ranks()) == {"ib0": "10.10.0.0/24", "eth0": "10.20.0.0/24"}


def test_interfaces_of_different_names_are_one_network() -> None:
    told = ranks(
        ("node1", "node2"), hosts={"node2": {"nics": (nic("ens3", "10.10.0.2"), nic("eth0", "10.20.0.2"))}}
    )
    assert found(told) == {"10.10.0.0/24": "10.10.0.0/24", "eth0": "10.20.0.0/24"}


def test_a_bridge_of_containers_is_no_network() -> None:
    bridge = nic("docker0", "172.17.0.1")
    hosts = {name: {"nics": (nic("eth0", f"10.20.0.{n}"), bridge)} for n, name in enumerate(FOUR)}
    assert found(ranks(hosts=hosts)) == {"eth0": "10.20.0.0/24"}


def test_a_service_processor_is_no_network_unless_it_is_named() -> None:
    hosts = {
        name: {"nics": (nic("usb0", f"169.254.3.{n}"), nic("eth0", f"10.20.0.{n}"))} for n, name in enumerate(FOUR)
    }
    assert found(ranks(hosts=hosts)) == {"eth0": "10.20.0.0/24"}
    assert found(ranks(hosts=hosts), ["usb0"]) == {"usb0": "169.254.3.0/24"}


def test_the_networks_of_the_fabric_file_and_their_rate() -> None:
    named = lead.find_networks(ranks(), (), FABRIC).networks
    assert [(one.word, one.rate_bits_per_s) for one in named] == [("ib", 10e9), ("ethernet", 1e9)]
    assert named[0].places["node2"].address == "10.10.0.2"


@pytest.mark.parametrize(("word", "name"), [("ib", "ib"), ("eth0", "eth0"), ("10.20.0.0/24", "10.20.0.0/24")])
def test_words_of_interconnect(word: str, name: str) -> None:
    assert list(found(ranks(), [word], FABRIC)) == [name]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("ib1", "--interconnect ib1: no host is on it; did you mean 'ib"),
        ("10.10.0.1/24", "write for example 10.10.0.0/24"),
    ],
)
def test_words_that_mean_nothing(word: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        found(ranks(), [word], FABRIC)


# ---------------------------------------------------------------- networks of nodes without a common subnet


def only_network(
    told: Sequence[RankFacts], words: Sequence[str] = (), known: dict[str, Entry] | None = None
) -> Network:
    (found,) = lead.find_networks(told, words, known or {}).networks
    return found


@pytest.mark.parametrize("make", [clouds.calico, clouds.cilium, clouds.flannel])
@pytest.mark.parametrize("words", [(), ("eth0",)])
def test_pods_are_measured_between_all(make: Make, words: Sequence[str]) -> None:
    found = only_network(pods(make), words)
    assert (found.word, found.routed, list(found.places)) == ("eth0", True, ["a", "b", "c"])


def test_pods_that_share_a_node_are_on_the_network_of_all() -> None:
    near = clouds.flannel("d", 1)
    loopback, eth0 = near.nics
    near = replace(near, nics=(loopback, replace(eth0, address="10.244.1.9")))
    assert list(only_network([*pods(clouds.flannel), rank(near, 4)]).places) == ["a", "b", "c", "d"]


def test_a_network_with_a_subnet_per_rack_is_measured_beside_the_common_one() -> None:
    found = lead.find_networks(pods(clouds.racks), (), {}).networks
    assert {one.word: one.routed for one in found} == {"data0": True, "mgmt0": False}


def test_a_wider_subnet_than_the_nodes_masks() -> None:
    found = only_network(pods(clouds.flannel), (), {"pods": Entry(subnet="10.244.0.0/16")})
    assert (found.subnet, found.routed, len(found.places)) == ("10.244.0.0/16", True, 3)


def test_a_node_in_another_subnet_without_a_route_is_not_on_the_network() -> None:
    lost = clouds.machine("d", ["ib0 10.9.9.9/24"], ["10.9.9.0/24 dev ib0"])
    found = lead.find_networks([*pods(clouds.dgx), rank(lost, 4)], ["ib0"], {})
    assert found.absent == {"ib0": {"d": "ib0 has 10.9.9.9, another subnet"}}


def test_the_rate_of_infiniband_is_its_cards() -> None:
    assert only_network(pods(clouds.dgx), ["ib0"]).rate_bits_per_s == 400e9


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


def test_cards_by_node() -> None:
    hca: dict[str, str | tuple[str, ...]] = {"a": "mlx5_0", "*": "mlx5_1"}
    found = only_network(pods(clouds.dgx), ["ib"], {"ib": Entry(interface="ib0", hca=hca)})
    assert [place.hca for place in found.places.values()] == ["mlx5_0", "mlx5_1", "mlx5_1"]
