"""The preflight's text and its command line."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from scaling.errors import LaunchError, UsageError
from scaling.frameworks.horovod import strategy as hvd
from scaling.hosts import networks
from scaling.hosts.networks import Entry
from scaling.tools.check import __main__, flags, gather, lead
from scaling.tools.check.facts import LEAD_DECODER, Facts, Findings, RankFacts, ToLead, ToRank, Verdict
from scaling.tools.check.lead import Lead
from scaling.tools.check.prober import Prober
from scaling.transport.base import Hub
from scaling.transport.mailbox import Mailbox
from tests.support.check_facts import FABRIC, FOUR, facts, links, nic, node, rank, ranks
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


# ---------------------------------------------------------------- test command


def test_the_matrix() -> None:
    speed = {("node1", "node2"): 9.4e9, ("node2", "node1"): 38.2e9}
    sound = facts(FOUR[:2], words=("ib",))
    shown = Facts(ranks=sound.ranks, networks=sound.networks, prepared=sound.prepared,
                  links=links(FOUR[:2], "ib", lambda a, b: speed[a, b], latency_s=31e-6))  # fmt: skip
    verdict = Verdict(level="warning", topic="mtu", text="ib: 9000 on node1", mend="ip link")
    assert __main__.render(Findings(facts=shown, verdicts=(verdict,), wall_s=4.21)).splitlines() == [
        "ib: 10.10.0.0/24, 10 Gb/s by the fabric file",
        "  latency in us, half the median round trip of small messages over TCP",
        "               1     2",
        "   1 node1     -    31",
        "   2 node2    31     -",
        "  bandwidth in Gb/s, one TCP flow from the row's node to the column's",
        "               1     2",
        "   1 node1     -  9.40",
        "   2 node2  38.2     -",
        "",
        "warning  mtu            ib: 9000 on node1; mend: ip link",
        "",
        "1 warning; the preflight took 4.2 s",
    ]


def test_what_was_not_measured_shows_as_such() -> None:
    sound = facts(FOUR[:3], words=("ib",))
    failed = [*sound.links[:2]]
    failed[0] = msgspec.structs.replace(failed[0], forth_bits_per_s=None, back_bits_per_s=None, error="timed out")
    rows = __main__.render(
        Findings(facts=msgspec.structs.replace(sound, links=tuple(failed)), verdicts=(), wall_s=1.0)
    )
    bandwidth = rows.split("bandwidth in Gb/s")[1].splitlines()
    assert [line.split()[2:] for line in bandwidth[2:5]] == [
        ["-", "x", "9.40"],
        ["x", "-", "."],
        ["9.40", ".", "-"],
    ]
    assert __main__.LEGEND in bandwidth


def test_many_nodes_are_summed_up() -> None:
    names = tuple(f"n{number}" for number in range(__main__.WIDE + 1))
    text = __main__.render(Findings(facts=facts(names, words=("ib",)), verdicts=(), wall_s=1.0))
    assert "least   median     most" in text
    assert max(map(len, text.splitlines())) < 80


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        ([], flags.Asked()),
        (["--json"], flags.Asked(json=True)),
        (["--interconnect", " ib0, eth0"], flags.Asked(interconnect=("ib0", "eth0"))),
        (["--fabric", "f.toml"], flags.Asked(fabric="f.toml")),
    ],
)
def test_the_command_line(monkeypatch: pytest.MonkeyPatch, argv: list[str], asked: flags.Asked) -> None:
    monkeypatch.delenv(networks.VARIABLE, raising=False)
    assert flags.parse(argv) == asked


def test_the_fabric_of_a_lab_comes_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(networks.VARIABLE, "/lab/fabric.toml")
    asked = flags.parse([])
    assert asked is not None and asked.fabric == "/lab/fabric.toml"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--interconect", "ib"], "--interconect"),
        (["--interconnect", ","], "names no network"),
        (["--interconnect", "ib,ib"], "names a network twice"),
        (["ib"], "ib"),
    ],
)
def test_mistakes_in_the_call(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        flags.parse(argv)


def test_help_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert flags.parse(["--help"]) is None
    assert "--interconnect" in capsys.readouterr().out
