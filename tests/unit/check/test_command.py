"""The preflight's text and its command line."""

from __future__ import annotations

import msgspec
import pytest

from scaling.errors import UsageError
from scaling.hosts import fabric
from scaling.tools.check import __main__, flags
from scaling.tools.check.facts import Facts, Findings, Verdict
from tests.support.check_facts import FOUR, facts, links


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
    monkeypatch.delenv(fabric.VARIABLE, raising=False)
    assert flags.parse(argv) == asked


def test_the_fabric_of_a_lab_comes_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fabric.VARIABLE, "/lab/fabric.toml")
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
