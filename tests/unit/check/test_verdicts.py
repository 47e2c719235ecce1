"""Facts of the preflight -> verdicts: software, limits, names, clocks, networks, routed pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Interface
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.hosts.networks import Entry
from scaling.records import host
from scaling.records.host import Hca, HostInfo, Interpreter
from scaling.records.network import Network
from scaling.tools.check import lead, verdicts
from scaling.tools.check.facts import Facts, Link, Load, RankFacts, Verdict, grouped, size, some
from scaling.tools.check.verdicts import NCCL_SEGMENT_BYTES, SHM_ADVISED_BYTES, judge, links
from tests.support import clouds
from tests.support.check_facts import FABRIC, FOUR, facts, gpu, nic, ok, only, prepared, rank, to_mend

# Facts -> verdicts: a sound cluster has nothing to mend; each planted fault is named, alone, with its mend.

NCCL = {"nvidia-nccl-cu13": "2.29.7", "nvidia-nccl-cu12": "2.27.7"}


@pytest.mark.parametrize(
    ("name", "level", "mend"),
    [
        ("torch", "error", "pip install torch==VERSION on every node"),
        ("nvidia-nccl-cu13", "error", "pip install nvidia-nccl-cu13==VERSION on every node"),
        ("horovod (mxnet)", "error", "run ./launch/install again on every node"),
        ("triton", "warning", "pip install triton==VERSION on every node"),
    ],
)
def test_what_one_node_alone_has(name: str, level: str, mend: str) -> None:
    verdict = only(facts(hosts={"node2": {"versions": {name: "1"}}}))
    assert (verdict.level, verdict.topic) == (level, "versions")
    assert verdict.text == f"{name}: missing on node1, node3, node4; 1 on node2"
    assert verdict.mend.startswith(mend)


def with_nccl(*packages: str) -> Interpreter:
    return Interpreter(
        framework="tensorflow", path="/env", python="3.11", versions={name: NCCL[name] for name in packages}
    )


def test_two_nccls_in_two_environments_are_fine() -> None:
    host = {"versions": NCCL, "interpreters": (with_nccl("nvidia-nccl-cu12"),)}
    assert [one for one in judge(facts(hosts=dict.fromkeys(FOUR, host))) if one.level != "ok"] == []


def test_two_nccls_in_a_frameworks_environment_are_named() -> None:
    host = {"versions": NCCL, "interpreters": (with_nccl(*NCCL),)}
    verdict = only(facts(hosts=dict.fromkeys(FOUR, host)))
    assert "nvidia-nccl-cu13 2.29.7 and nvidia-nccl-cu12 2.27.7 on node1" in verdict.text


IB_CARD = Hca(name="mlx5_0", port=1, link_layer="InfiniBand", active=True, interfaces=("ib0",))
EFA_CARD = Hca(name="rdmap16s27", port=1, link_layer="Unknown", active=True)
ROCE_CARD = Hca(name="mlx5_1", port=1, link_layer="Ethernet", active=True, interfaces=("eth0",))


# ---------------------------------------------------------------- nothing to mend


@pytest.mark.parametrize("nodes", [FOUR, FOUR[:2], FOUR[:1]])
@pytest.mark.parametrize("each", [1, 4])
def test_a_sound_cluster_has_nothing_to_mend(nodes: tuple[str, ...], each: int) -> None:
    assert to_mend(facts(nodes, each=each)) == []


def test_one_node_has_no_pairs() -> None:
    assert ok(facts(FOUR[:1]), "network") == ["one node: there are no pairs to measure"]


# ---------------------------------------------------------------- software


def test_nodes_with_different_numbers_of_ranks() -> None:
    sound = facts()
    launch, cores = to_mend(replace(sound, ranks=(*sound.ranks, sound.ranks[3])))
    assert (launch.level, launch.topic) == ("warning", "launch")
    assert "2 ranks on node4" in launch.text
    assert cores.text.endswith("16 on node1, node2, node3; 8 on node4")


def test_another_version_of_this_program() -> None:
    verdict = only(facts(told={"node3": {"code": "0ther"}}))
    assert (verdict.level, verdict.topic) == ("error", "code")
    assert "0ther on node3" in verdict.text


@pytest.mark.parametrize(
    ("hosts", "told", "level", "text"),
    [
        ({"versions": {"torch": "2.12.0"}}, {}, "error", "torch: missing on node1, node3, node4; 2.12.0 on node2"),
        ({"versions": {"nvidia-ml-py": "12.0"}}, {}, "warning", "nvidia-ml-py: missing on"),
        ({"versions": {"nvidia-nccl-cu12": "2.27.7"}}, {}, "error", "nvidia-nccl-cu12: missing on"),
        ({"versions": {"triton": "3.7.0"}}, {}, "warning", "triton: missing on"),
        ({"python": "3.12.1"}, {}, "error", "Python: 3.11 on node1, node3, node4; 3.12.1 on node2"),
        ({"gpu_driver": "550.1"}, {}, "warning", "GPU driver: missing on node1, node3, node4; 550.1 on node2"),
        ({}, {"mpi": "MPICH 5.0"}, "error", "MPI: Open MPI v5.0.11 on node1, node3, node4; MPICH 5.0 on node2"),
    ],
)
def test_different_versions_are_named(hosts: Any, told: Any, level: str, text: str) -> None:
    verdict = only(facts(hosts={"node2": hosts}, told={"node2": told}))
    assert (verdict.level, verdict.topic) == (level, "versions")
    assert text in verdict.text


def test_without_mpi_the_version_is_of_zeromq() -> None:
    talking: dict[str, Any] = {name: {"mpi": "ZeroMQ 4.3.5"} for name in FOUR}
    (told,) = ok(facts(told=talking), "versions")
    assert ", ZeroMQ 4.3.5" in told and "MPI" not in told
    verdict = only(facts(told=talking | {"node2": {"mpi": "ZeroMQ 4.3.4"}}))
    assert (verdict.level, verdict.text) == ("warning", "ZeroMQ: 4.3.5 on node1, node3, node4; 4.3.4 on node2")


def test_two_versions_of_nccl_are_fatal() -> None:
    hosts = {name: {"versions": {"nvidia-nccl-cu13": "2.29.7"}} for name in FOUR}
    assert to_mend(facts(hosts=hosts)) == []
    verdict = only(facts(hosts=hosts | {"node3": {"versions": {"nvidia-nccl-cu13": "2.27.5"}}}))
    assert (verdict.level, verdict.topic) == ("error", "versions")
    assert verdict.text == "nvidia-nccl-cu13: 2.29.7 on node1, node2, node4; 2.27.5 on node3"


def test_two_packages_of_one_nccl() -> None:
    both = {"versions": {"nvidia-nccl-cu13": "2.29.7", "nvidia-nccl-cu12": "2.27.7"}}
    verdict = only(facts(hosts=dict.fromkeys(FOUR, both)))
    assert (verdict.level, verdict.topic) == ("warning", "versions")
    assert "nvidia-nccl-cu13 2.29.7 and nvidia-nccl-cu12 2.27.7 on node1, node2, node3, node4" in verdict.text


# ---------------------------------------------------------------- limits


def test_a_memory_lock_without_an_rdma_card_does_not_matter() -> None:
    assert to_mend(facts(told={"node1": {"memlock_bytes": 65536}})) == []
    hosts = {"node1": {"hcas": (replace(IB_CARD, active=False, interfaces=()),)}}
    assert to_mend(facts(hosts=hosts, told={"node1": {"memlock_bytes": 65536}})) == []


@pytest.mark.parametrize(("card", "level"), [(IB_CARD, "error"), (EFA_CARD, "error"), (ROCE_CARD, "warning")])
def test_a_memory_lock_with_an_rdma_card_does(card: Hca, level: str) -> None:
    hosts = {name: {"hcas": (card,)} for name in FOUR}
    assert to_mend(facts(hosts=hosts)) == []
    verdict = only(facts(hosts=hosts, told={"node3": {"memlock_bytes": 65536}}))
    assert (verdict.level, verdict.topic) == (level, "memlock")
    assert "64 KiB on node3" in verdict.text
    assert "ulimit -l unlimited" in verdict.mend


@pytest.mark.parametrize("free", [SHM_ADVISED_BYTES - 1, 0, None])
def test_little_shared_memory(free: int | None) -> None:
    verdict = only(facts(told={"node2": {"shm_free_bytes": free}}))
    assert (verdict.level, verdict.topic) == ("warning", "shared memory")
    assert "on node2 free" in verdict.text


def test_too_little_shared_memory_for_nccl() -> None:
    hosts = {name: {"gpus": (gpu(0, of=1),), "gpu_driver": "550.1"} for name in FOUR}
    verdict = only(facts(hosts=hosts, told={"node2": {"shm_free_bytes": 4 * NCCL_SEGMENT_BYTES - 1}}))
    assert (verdict.level, verdict.topic) == ("error", "shared memory")


def test_more_ranks_than_cores() -> None:
    verdict = only(facts(FOUR[:1], each=17))
    assert (verdict.level, verdict.topic) == ("warning", "cores")
    assert "17 ranks on 16 cores" in verdict.text


def test_nodes_of_one_machine_share_its_cores() -> None:
    verdict = only(facts(each=5, hosts={name: {"boot_id": "one"} for name in FOUR}))
    assert "20 ranks on 16 cores on node1, node2, node3, node4 (one machine)" in verdict.text


def test_ranks_bound_to_a_core_of_many() -> None:
    changes = {name: {"machine_cores": 64} for name in FOUR}
    verdict = only(facts(told=changes))
    assert (verdict.level, verdict.topic) == ("warning", "cores")
    assert verdict.text == "the launcher binds the ranks of a node to 16 of 64 cores on node1, node2, node3, node4"
    assert "--bind-to none" in verdict.mend


@pytest.mark.parametrize(
    ("cores", "quota", "said"),
    [
        (64, 16.0, "a cgroup's quota grants"),
        (64, 16.9, "a cgroup's quota grants"),
        (16, 20.0, "the launcher binds"),
    ],
)
def test_cores_that_a_quota_takes_are_not_blamed_on_the_launcher(cores: int, quota: float, said: str) -> None:
    own = {"cores": tuple((core,) for core in range(cores)), "cpu_quotas": {"a": quota}}
    changes = {name: {"machine_cores": 64} for name in FOUR}
    verdict = only(facts(told=changes, hosts=dict.fromkeys(FOUR, own)))
    assert verdict.text.startswith(said)
    assert ("--bind-to none" in verdict.mend) == (cores == 16)


@pytest.mark.parametrize(("quota", "level"), [(1.0, "warning"), (0.5, "warning"), (2.0, "ok")])
def test_a_quota_below_the_ranks_of_its_cgroup(quota: float, level: str) -> None:
    """Whatever their masks are."""
    own = {"cores": ((0,), (1,)), "cpu_quotas": {"a": quota}}
    told = facts(FOUR[:1], each=2, told={"node1": {"machine_cores": 2}}, hosts={"node1": own})
    (verdict,) = verdicts.cores(told)
    assert verdict.level == level
    assert ("docker --cpus" in verdict.mend) == (level == "warning")


def test_nodes_with_fewer_cores() -> None:
    verdict = only(facts(hosts={"node4": {"cores": ((0,), (1,))}}, told={"node4": {"machine_cores": 2}}))
    assert verdict.text.endswith("16 on node1, node2, node3; 2 on node4")


def test_other_processes() -> None:
    sound = facts()
    busy = replace(sound.prepared["node2"], load=Load(other_cores=3.2, by=(("java", 3.0), ("sshd", 0.01))))
    verdict = only(replace(sound, prepared={**sound.prepared, "node2": busy}))
    assert (verdict.level, verdict.topic) == ("warning", "load")
    assert verdict.text == "node2: other processes use 3.2 of 16 cores (java 3.0)"


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("asker", "addresses", "level", "text"),
    [
        ("node1", (), "warning", "node2 does not resolve, asked on node1"),
        ("node2", ("127.0.1.1",), "warning", "node2 resolves to 127.0.1.1, which no other node can reach"),
        ("node1", ("127.0.1.1", "10.10.0.2"), "error", "node2 resolves to 127.0.1.1, which is the asking node"),
        ("node1", ("10.10.0.3",), "error", "node2 resolves to 10.10.0.3, which is node3's"),
        ("node1", ("192.168.7.7",), "warning", "node2 resolves to 192.168.7.7, not one of its own addresses"),
    ],
)
def test_names_that_lead_elsewhere(asker: str, addresses: tuple[str, ...], level: str, text: str) -> None:
    sound = facts()
    told = sound.prepared[asker]
    wrong = replace(told, resolved={**told.resolved, "node2": addresses})
    verdict = only(replace(sound, prepared={**sound.prepared, asker: wrong}))
    assert (verdict.level, verdict.topic) == (level, "names")
    assert text in verdict.text


def test_a_horovod_that_listens_at_the_hosts_name_is_an_error_on_the_network_asked_for() -> None:
    told = {name: {"name_addresses": {"torch:horovod": f"10.10.0.{n}"}} for n, name in enumerate(FOUR, 1)}
    verdict = only(facts(told=told, words=["ib", "ethernet"]))
    assert (verdict.level, verdict.topic) == ("error", "names")
    assert only(facts(told=told)).level == "warning"  # another network works, and none was asked for
    why = "it listens at the address of the host's name: node1 is 10.10.0.1, on ethernet 10.20.0.1"
    assert verdict.text == f"torch:horovod: not measurable over ethernet: {why}"
    assert "`10.20.0.1 node1` into /etc/hosts" in verdict.mend
    told["node3"] = {"name_addresses": {"torch:horovod": ""}}
    verdict = only(facts(told=told))
    assert verdict.text == "torch:horovod: listens at the address of the host's name, which is no address of node3"


def test_a_name_on_a_network_of_its_own() -> None:
    private = nic("docker0", "172.17.0.1")
    sound = facts(hosts={"node2": {"nics": (nic("ib0", "10.10.0.2"), nic("eth0", "10.20.0.2"), private)}})
    wrong = {
        name: replace(told, resolved={**told.resolved, "node2": ("172.17.0.1",)})
        for name, told in sound.prepared.items()
    }
    verdict = only(replace(sound, prepared=wrong))
    assert verdict.text == "node2 resolves to 172.17.0.1, on a network without other nodes, asked on every node"


def test_the_name_of_a_single_node_may_be_loopback() -> None:
    sound = facts(FOUR[:1])
    told = {"node1": replace(sound.prepared["node1"], resolved={"node1": ("127.0.1.1",)})}
    assert to_mend(replace(sound, prepared=told)) == []
    unknown = {"node1": replace(sound.prepared["node1"], resolved={"node1": ()})}
    assert only(replace(sound, prepared=unknown)).text == "node1 does not resolve, asked on node1"


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize(
    ("ahead_s", "text"), [(0.2, "node3 is 0.20 s ahead"), (-3600.0, "node3 is 3600.00 s behind")]
)
def test_a_clock_that_is_off(ahead_s: float, text: str) -> None:
    sound = facts()

    def shifted(link: Link) -> Link:
        sign = (link.server == "node3") - (link.client == "node3")
        return replace(link, offset_s=(link.offset_s or 0.0) + sign * ahead_s)

    verdict = only(replace(sound, links=tuple(map(shifted, sound.links))))
    assert (verdict.level, verdict.topic) == ("warning", "clocks")
    assert verdict.text.startswith(text)


def test_clocks_are_compared_along_the_links_that_there_are() -> None:
    sound = facts()
    chain = {("node1", "node2"), ("node2", "node3"), ("node3", "node4")}
    kept = tuple(link for link in sound.links if (link.client, link.server) in chain)
    assert ok(replace(sound, links=tuple(reversed(kept))), "clocks") == ["within 0.30 ms of each other"]
    assert "unknown on node4" in ok(replace(sound, links=kept[:2]), "clocks")[0]


# ---------------------------------------------------------------- networks


def test_a_card_that_is_down() -> None:
    down = (nic("ib0", "10.10.0.3", up=False), nic("eth0", "10.20.0.3"))
    verdict = only(facts(hosts={"node3": {"nics": down}}))
    assert (verdict.level, verdict.topic) == ("error", "network")
    assert verdict.text == "ib is not on every node: ib0 is down on node3"
    found = only(facts(hosts={"node3": {"nics": down}}, fabric={}))  # nobody asked for it
    assert (found.level, found.text) == ("warning", "ib0 is not on every node: ib0 is down on node3")


def test_no_network_in_common() -> None:
    hosts = {name: {"nics": (nic("eth0", f"10.{n}.0.1"),)} for n, name in enumerate(FOUR)}
    sound = facts(hosts=hosts, fabric={})
    assert [one.topic for one in to_mend(sound) if one.level == "error"] == ["network"]


def test_an_rdma_card_that_only_the_fabric_file_knows() -> None:
    known = {"ib": replace(FABRIC["ib"], hca="mlx5_0,mlx5_1")}
    dead = replace(IB_CARD, name="mlx5_1", active=False)
    both = {"hcas": (IB_CARD, replace(dead, active=True))}
    hosts = {"node1": both, "node2": both, "node3": {"hcas": (IB_CARD, dead)}}
    verdict = only(facts(hosts=hosts, fabric=known))
    assert (verdict.level, verdict.topic) == ("error", "rdma")
    assert verdict.text == "ib: mlx5_1 is not active on node3; there is no mlx5_0, mlx5_1 on node4"


def test_packets_of_different_size() -> None:
    cards = (nic("ib0", "10.10.0.2", mtu=9000), nic("eth0", "10.20.0.2"))
    verdict = only(facts(hosts={"node2": {"nics": cards}}))
    assert (verdict.level, verdict.topic) == ("warning", "mtu")
    assert verdict.text.startswith("ib: 1500 on node1, node3, node4; 9000 on node2")
    assert "mtu 9000" in verdict.mend


# ---------------------------------------------------------------- phrases


def test_phrases() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some("abcdef") == "a, b, c, d and 2 more"
    assert grouped({"n1": "x", "n2": "y", "n3": "x"}) == "x on n1, n3; y on n2"
    assert [size(count) for count in (None, 65536, 64 << 20, 3 << 29)] == [
        "unlimited",
        "64 KiB",
        "64.0 MiB",
        "1.5 GiB",
    ]


# The preflight of nodes that share no subnet, of cards behind InfiniBand's interfaces, and of ports of a card.

Make = Callable[[str, int], HostInfo]


def ranks(make: Make, count: int = 3) -> tuple[RankFacts, ...]:
    return tuple(rank(make(name, number), number) for number, name in enumerate("abcdef"[:count], 1))


def routed_facts(
    told: Sequence[RankFacts], words: Sequence[str] = (), known: dict[str, Entry] | None = None
) -> Facts:
    found = lead.find_networks(told, words, known or {})
    return Facts(
        ranks=tuple(told), networks=found.networks, absent=found.absent, named=bool(words), prepared=prepared(told)
    )


def routed_only(
    told: Sequence[RankFacts], words: Sequence[str] = (), known: dict[str, Entry] | None = None
) -> Network:
    (found,) = lead.find_networks(told, words, known or {}).networks
    return found


def texts(verdicts: Iterator[Verdict]) -> list[str]:
    return [verdict.text for verdict in verdicts]


@pytest.mark.parametrize("make", [clouds.calico, clouds.cilium, clouds.flannel])
@pytest.mark.parametrize("words", [(), ("eth0",)])
def test_pods_are_measured_between_all(make: Make, words: Sequence[str]) -> None:
    found = routed_only(ranks(make), words)
    assert (found.word, found.routed, list(found.places)) == ("eth0", True, ["a", "b", "c"])


def test_pods_that_share_a_node_are_on_the_network_of_all() -> None:
    near = clouds.flannel("d", 1)
    loopback, eth0 = near.nics
    near = replace(near, nics=(loopback, replace(eth0, address="10.244.1.9")))
    found = routed_only([*ranks(clouds.flannel), rank(near, 4)])
    assert list(found.places) == ["a", "b", "c", "d"]


def test_a_network_with_a_subnet_per_rack_is_measured_beside_the_common_one() -> None:
    found = lead.find_networks(ranks(clouds.racks), (), {}).networks
    assert {one.word: one.routed for one in found} == {"data0": True, "mgmt0": False}


def test_a_wider_subnet_than_the_nodes_masks() -> None:
    found = routed_only(ranks(clouds.flannel), (), {"pods": Entry(subnet="10.244.0.0/16")})
    assert (found.subnet, found.routed, len(found.places)) == ("10.244.0.0/16", True, 3)


def test_what_is_routed_is_said_to_be() -> None:
    assert texts(links.membership(routed_facts(ranks(clouds.calico)))) == ["eth0: routed on every node"]


def test_a_name_that_resolves_to_a_routed_address_is_well() -> None:
    (verdict,) = links.name_verdicts(routed_facts(ranks(clouds.calico)))
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

    assert texts(links.rdma(routed_facts(ranks(with_one_down), ["ib0"]))) == ["ib0: mlx5_0 is not active on b"]


def test_a_card_that_a_container_was_not_given() -> None:
    def without(name: str, number: int) -> HostInfo:
        host = clouds.dgx(name, number)
        return replace(host, hcas=tuple(replace(hca, opens=False) for hca in host.hcas))

    said = "ib0: mlx5_0 is not in /dev/infiniband, or this user cannot open it on a, b, c"
    assert texts(links.rdma(routed_facts(ranks(without), ["ib0"]))) == [said]


def test_a_port_that_a_card_does_not_have() -> None:
    two = [clouds.card("mlx4_0", f"ib{port - 1}", port=port) for port in (1, 2)]

    def host(name: str, number: int) -> HostInfo:
        return clouds.machine(name, [f"ib0 10.0.0.{number}/24"], [], *two)

    def said(card: str) -> list[str]:
        return texts(links.rdma(routed_facts(ranks(host), ["ib"], {"ib": Entry(interface="ib0", hca=card)})))

    assert said("mlx4_0:2") == said("mlx4_0") == []
    assert said("mlx4_0:3") == ["ib: there is no mlx4_0:3 on a, b, c"]


def test_the_rate_of_infiniband_is_its_cards() -> None:
    assert routed_only(ranks(clouds.dgx), ["ib0"]).rate_bits_per_s == 400e9


def test_cards_by_node() -> None:
    hca: dict[str, str | tuple[str, ...]] = {"a": "mlx5_0", "*": "mlx5_1"}
    found = routed_only(ranks(clouds.dgx), ["ib"], {"ib": Entry(interface="ib0", hca=hca)})
    assert [place.hca for place in found.places.values()] == ["mlx5_0", "mlx5_1", "mlx5_1"]


# What the verdicts cost on a large cluster, by what they look at.


def test_each_card_is_looked_at_once_however_many_nodes_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Counter[str]()

    def interface(text: str) -> IPv4Interface:
        read[text] += 1
        return IPv4Interface(text)

    found = facts(tuple(f"node{number}" for number in range(1, 17)), each=2)
    monkeypatch.setattr(host, "IPv4Interface", interface)
    (verdict,) = links.name_verdicts(found)
    assert verdict.level == "ok"
    assert read == {
        "127.0.0.1/255.0.0.0": 16,
        **{f"10.{net}.0.{number}/255.255.255.0": 1 for net in (10, 20) for number in range(1, 17)},
    }


def test_a_card_without_a_netmask_is_on_a_network_of_its_own() -> None:
    tunnel = nic("tun0", "10.30.0.1", netmask="")
    cards = (nic("ib0", "10.10.0.1"), nic("eth0", "10.20.0.1"), tunnel)
    assert [verdict.level for verdict in links.name_verdicts(facts(hosts={"node1": {"nics": cards}}))] == ["ok"]
    assert str(tunnel.subnet) == "10.30.0.1/32"
