"""The preflight of nodes that share no subnet, of cards behind InfiniBand's interfaces, and of ports of a card."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from msgspec.structs import replace

from scaling.hosts.fabric import Entry
from scaling.records.host import HostInfo
from scaling.records.network import Network
from scaling.tools.check import lead
from scaling.tools.check.facts import Facts, RankFacts, Verdict
from scaling.tools.check.verdicts import network
from tests.support import clouds
from tests.support.check_facts import prepared, rank

Make = Callable[[str, int], HostInfo]


def ranks(make: Make, count: int = 3) -> tuple[RankFacts, ...]:
    return tuple(rank(make(name, number), number) for number, name in enumerate("abcdef"[:count], 1))


def facts(told: Sequence[RankFacts], words: Sequence[str] = (), known: dict[str, Entry] | None = None) -> Facts:
    found = lead.find_networks(told, words, known or {})
    return Facts(
        ranks=tuple(told), networks=found.networks, absent=found.absent, named=bool(words), prepared=prepared(told)
    )


def only(told: Sequence[RankFacts], words: Sequence[str] = (), known: dict[str, Entry] | None = None) -> Network:
    (found,) = lead.find_networks(told, words, known or {}).networks
    return found


def texts(verdicts: Iterator[Verdict]) -> list[str]:
    return [verdict.text for verdict in verdicts]


@pytest.mark.parametrize("make", [clouds.calico, clouds.cilium, clouds.flannel])
@pytest.mark.parametrize("words", [(), ("eth0",)])
def test_pods_are_measured_between_all(make: Make, words: Sequence[str]) -> None:
    found = only(ranks(make), words)
    assert (found.word, found.routed, list(found.places)) == ("eth0", True, ["a", "b", "c"])


def test_pods_that_share_a_node_are_on_the_network_of_all() -> None:
    near = clouds.flannel("d", 1)
    loopback, eth0 = near.nics
    near = replace(near, nics=(loopback, replace(eth0, address="10.244.1.9")))
    found = only([*ranks(clouds.flannel), rank(near, 4)])
    assert list(found.places) == ["a", "b", "c", "d"]


def test_a_network_with_a_subnet_per_rack_is_measured_beside_the_common_one() -> None:
    found = lead.find_networks(ranks(clouds.racks), (), {}).networks
    assert {one.word: one.routed for one in found} == {"data0": True, "mgmt0": False}


def test_a_wider_subnet_than_the_nodes_masks() -> None:
    found = only(ranks(clouds.flannel), (), {"pods": Entry(subnet="10.244.0.0/16")})
    assert (found.subnet, found.routed, len(found.places)) == ("10.244.0.0/16", True, 3)


def test_what_is_routed_is_said_to_be() -> None:
    assert texts(network.membership(facts(ranks(clouds.calico)))) == ["eth0: routed on every node"]


def test_a_name_that_resolves_to_a_routed_address_is_well() -> None:
    (verdict,) = network.names(facts(ranks(clouds.calico)))
    assert verdict.level == "ok"


def test_a_node_in_another_subnet_without_a_route_is_not_on_the_network() -> None:
    lost = clouds.machine("d", ["ib0 10.9.9.9/24"], ["10.9.9.0/24 dev ib0"])
    found = lead.find_networks([*ranks(clouds.dgx), rank(lost, 4)], ["ib0"], {})
    assert found.absent == {"ib0": {"d": "ib0 has 10.9.9.9, another subnet"}}


# ---------------------------------------------------------------- cards


def test_the_card_behind_ib0_is_looked_at() -> None:
    def with_one_down(name: str, number: int) -> HostInfo:
        host = clouds.dgx(name, number)
        return host if name != "b" else replace(host, hcas=(replace(host.hcas[0], active=False), *host.hcas[1:]))

    assert texts(network.rdma(facts(ranks(with_one_down), ["ib0"]))) == ["ib0: mlx5_0 is not active on b"]


def test_a_card_that_a_container_was_not_given() -> None:
    def without(name: str, number: int) -> HostInfo:
        host = clouds.dgx(name, number)
        return replace(host, hcas=tuple(replace(hca, opens=False) for hca in host.hcas))

    said = "ib0: mlx5_0 is not in /dev/infiniband, or not for this user on a, b, c"
    assert texts(network.rdma(facts(ranks(without), ["ib0"]))) == [said]


def test_a_port_that_a_card_does_not_have() -> None:
    two = [clouds.card("mlx4_0", f"ib{port - 1}", port=port) for port in (1, 2)]

    def host(name: str, number: int) -> HostInfo:
        return clouds.machine(name, [f"ib0 10.0.0.{number}/24"], [], *two)

    def said(card: str) -> list[str]:
        return texts(network.rdma(facts(ranks(host), ["ib"], {"ib": Entry(interface="ib0", hca=card)})))

    assert said("mlx4_0:2") == said("mlx4_0") == []
    assert said("mlx4_0:3") == ["ib: there is no mlx4_0:3 on a, b, c"]


def test_the_rate_of_infiniband_is_its_cards() -> None:
    assert only(ranks(clouds.dgx), ["ib0"]).rate_bits_per_s == 400e9


def test_cards_by_node() -> None:
    hca: dict[str, str | tuple[str, ...]] = {"a": "mlx5_0", "*": "mlx5_1"}
    found = only(ranks(clouds.dgx), ["ib"], {"ib": Entry(interface="ib0", hca=hca)})
    assert [place.hca for place in found.places.values()] == ["mlx5_0", "mlx5_1", "mlx5_1"]
