"""The preflight: which networks, who reports, and what a rank tells."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from scaling.errors import LaunchError, UsageError
from scaling.frameworks import hvd
from scaling.hosts.fabric import Entry
from scaling.tools.check import gather, lead
from scaling.tools.check.facts import RankFacts
from scaling.tools.check.lead import Lead
from scaling.tools.check.messages import LEAD_DECODER, ToLead, ToRank
from scaling.tools.check.prober import Prober
from scaling.transport.inline import Hub
from scaling.transport.mailbox import Mailbox
from tests.support.check_facts import FABRIC, FOUR, nic, node, rank, ranks
from tests.support.fake_nvml import FakeGpu, installer
from tests.support.inline_child import Clock

# ---------------------------------------------------------------- which networks


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
        ("ib1", "--interconnect ib1: on no host; did you mean 'ib"),
        ("10.10.0.1/24", "write for example 10.10.0.0/24"),
    ],
)
def test_words_that_mean_nothing(word: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        found(ranks(), [word], FABRIC)


def test_a_speed_that_no_card_has_is_not_believed() -> None:
    claims = {name: {"nics": (nic("ib0", f"10.10.0.{n}", speed_bits_per_s=10e9),)} for n, name in enumerate(FOUR)}
    (veth,) = lead.find_networks(ranks(hosts=claims), (), {}).networks
    assert veth.rate_bits_per_s is None
    (card,) = lead.find_networks(
        ranks(hosts=claims, told={n: {"hardware": ("ib0",)} for n in FOUR}), (), {}
    ).networks
    assert card.rate_bits_per_s == 10e9


# ---------------------------------------------------------------- who reports


def test_silent_ranks_are_named() -> None:
    hub = Hub(3)
    Prober(hub.rank(1)).enrol(rank(node("node1", 1)))
    clock = Clock()
    mailbox: Mailbox[ToRank, ToLead] = Mailbox(
        hub.rank(0), LEAD_DECODER, turn=lambda: None, wait=lambda: clock.sleep(0.5), clock=clock
    )
    with pytest.raises(LaunchError, match=r"only 1 of 3 ranks reported within 60 s; silent: 0, 2"):
        Lead(mailbox).enrolled(60.0)


# ---------------------------------------------------------------- what a rank tells


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host's name that has an address; a Horovod that is installed here may ask for it."""
    monkeypatch.setattr(hvd, "address_of_name", lambda: "10.0.0.1")


@pytest.mark.usefixtures("named")
def test_a_rank_tells_of_this_host() -> None:
    told = gather.rank_facts("none")
    assert told.machine_cores >= 1
    assert told.host.hostname == socket.gethostname()
    assert (told.shm_free_bytes is None) == (told.shm_bytes is None)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=RankFacts) == told


@pytest.mark.usefixtures("named")
def test_gpus_are_set_up_once_for_all_that_a_rank_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time costs seconds where persistence mode is off."""
    for install in installer(monkeypatch):
        nvml = install(FakeGpu(), cuda=13000)
        told = gather.rank_facts("none")
        assert (
            [gpu.uuid for gpu in told.host.gpus] == [gpu.uuid for gpu in told.driver.gpus] == ["GPU-aaaa0000-1111"]
        )
        assert told.driver.cuda == "13.0"
        assert nvml.initialised == 1


def test_the_load_of_others() -> None:
    before = {1: ("init", 5.0), 7: ("rank", 1.0), 9: ("java", 100.0)}
    after = {1: ("init", 5.0), 7: ("rank", 1.5), 9: ("java", 100.8), 11: ("new", 3.0)}
    seen = gather.load(before, after, {7}, busy_s=1.4, passed_s=0.5)
    assert seen.other_cores == pytest.approx(1.8)
    ((name, used),) = seen.by
    assert name == "java"
    assert used == pytest.approx(1.6)


def test_no_shared_memory(tmp_path: Path) -> None:
    assert gather.shared_memory(tmp_path / "none") == (None, None)
