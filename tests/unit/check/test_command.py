"""The preflight's networks, text, command line and schedule of pairs."""

from __future__ import annotations

import socket
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.errors import LaunchError, UsageError
from scaling.frameworks.horovod import strategy as hvd
from scaling.hosts import networks
from scaling.tools.check import __main__, flags, lead, prober
from scaling.tools.check.facts import (
    LEAD_DECODER,
    AllReduce,
    Facts,
    Findings,
    Link,
    RankFacts,
    ToLead,
    ToRank,
    Verdict,
    error,
    ok,
    warning,
)
from scaling.tools.check.lead import (
    BANDWIDTH_S,
    LATENCY_S,
    Lead,
    better,
    disjoint,
    hopeless,
    pair_rounds,
    plan_links,
)
from scaling.tools.check.prober import FIRST_BYTES, CpuUse, Prober, rate_bits_per_s, window_bytes
from scaling.transport.base import Hub, Mailbox
from tests.support.check_facts import (
    FOUR,
    facts,
    failed_gpu,
    links,
    node,
    on_cpus,
    on_gpu,
    rank,
    timed,
)  # fmt: skip
from tests.support.fake_nvml import FakeGpu, installer
from tests.support.golden import check_golden
from tests.support.inline_child import Clock

# ---------------------------------------------------------------- who reports


def test_silent_ranks_are_named() -> None:
    hub = Hub(3)
    Prober(hub.rank(1)).say(rank(node("node1", 1)))
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
    told = prober.rank_facts("none")
    assert told.machine_cores >= 1
    assert told.host.hostname == socket.gethostname()
    assert (told.shm_free_bytes is None) == (told.shm_bytes is None)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=RankFacts) == told


@pytest.mark.usefixtures("named")
def test_gpus_are_set_up_once_for_all_that_a_rank_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time costs seconds where persistence mode is off."""
    for install in installer(monkeypatch):
        nvml = install(FakeGpu(), cuda=13000)
        told = prober.rank_facts("none")
        assert (
            [gpu.uuid for gpu in told.host.gpus] == [gpu.uuid for gpu in told.driver.gpus] == ["GPU-aaaa0000-1111"]
        )
        assert told.driver.cuda == "13.0"
        assert nvml.initialised == 1


def test_the_load_of_others() -> None:
    before = CpuUse(10.0, 7.0, {1: ("init", 5.0), 7: ("rank", 1.0), 9: ("java", 100.0)})
    after = CpuUse(10.5, 8.4, {1: ("init", 5.0), 7: ("rank", 1.5), 9: ("java", 100.8), 11: ("new", 3.0)})
    seen = prober.load(before, after, {7})
    assert seen.other_cores == pytest.approx(1.8)
    ((name, used),) = seen.by
    assert name == "java"
    assert used == pytest.approx(1.6)


def test_no_shared_memory(tmp_path: Path) -> None:
    assert prober.shared_memory(tmp_path / "none") == (None, None)


def render(found: Facts, *verdicts: Verdict) -> str:
    return __main__.render(Findings(facts=found, verdicts=verdicts, wall_s=4.21))


def matrix(**changes: Any) -> Facts:
    """Four nodes on ib, of which node1-node2 is fast one way; the first pair has `changes`."""
    speed = {("node1", "node2"): 38.2e9}
    first, *rest = links(FOUR, "ib", lambda a, b: speed.get((a, b), 9.4e9), latency_s=31e-6)
    return facts(words=("ib",), links=(replace(first, **changes), *rest[: 1 if changes else None]))


MANY = tuple(f"n{number}" for number in range(__main__.WIDE + 1))
SHOWN: dict[str, Facts] = {
    "two nodes": facts(FOUR[:2], words=("ib",)),
    "four nodes": matrix(),
    "a pair that failed, and pairs not tried": matrix(
        forth_bits_per_s=None, back_bits_per_s=None, error="timed out"
    ),
    "many nodes": facts(MANY, words=("ib",), links=links(MANY, "ib", lambda a, b: 1e9 * (1 + int(b[1:])))),
    "all-reduces": facts(FOUR[:2], all_reduces=(
        AllReduce(network="ib", library="torch 9, Gloo", everyone=timed(1e9), inside={
            name: timed(5e9, 2) for name in FOUR[:2]}),
        AllReduce(network="eth", left_out="nodes are not on it: node2"),
    )),
    "all-reduces of many nodes": facts(FOUR[:2], all_reduces=(
        AllReduce(network="ib", library="torch 9, Gloo", everyone=timed(1e9), inside={
            name: timed(1e9 * number, 2) for number, name in enumerate(MANY, 1)}),
    )),
    "devices": facts(FOUR[:1], device_rates=(on_gpu(0), failed_gpu(1, "gone", matrix_flops_per_s=95e12))),
    "cores": facts(FOUR[:1], device_rates=(on_cpus(0),)),
    "many devices": facts(FOUR[:1], device_rates=tuple(on_gpu(n, of_sound=1 + n / 100) for n in range(25))),
    "devices without a rate": facts(FOUR[:1], device_rates=(failed_gpu(0),)),
}  # fmt: skip


def test_the_text_of_facts_and_verdicts() -> None:
    verdicts = (warning("mtu", "ib: 9000 on node1", "ip link"), error("links", "a", "b"), ok("names", "well"))
    told = [f"## {name}\n{render(found, *verdicts[: 1 + 2 * (name == 'cores')])}" for name, found in SHOWN.items()]
    check_golden("check-text.txt", "\n\n".join([*told, f"## nothing to mend\n{render(SHOWN['two nodes'])}", ""]))
    assert max(map(len, render(SHOWN["many nodes"]).splitlines())) < 80


@pytest.mark.parametrize(
    ("argv", "variable", "asked"),
    [
        ([], "", flags.Asked()),
        (["--json"], "", flags.Asked(json=True)),
        (["--fabric", "f.toml"], "", flags.Asked(fabric="f.toml")),
        ([], "/lab/fabric.toml", flags.Asked(fabric="/lab/fabric.toml")),  # of a lab
        (["--interconnect", " ib0, eth0"], "", flags.Asked(interconnect=" ib0, eth0")),
        (["--help"], "", None),
    ],
)
def test_the_command_line(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], variable: str, asked: flags.Asked | None
) -> None:
    monkeypatch.setenv(networks.VARIABLE, variable)
    assert flags.parse(argv) == asked
    assert asked is None or asked.networks == (("ib0", "eth0") if argv[1:] == [" ib0, eth0"] else ())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--interconect", "ib"], "--interconect"),
        (["--interconnect", ","], "no network is named"),
        (["--interconnect", "ib,ib"], "a network is named twice"),
        (["ib"], "ib"),
    ],
)
def test_mistakes_in_the_call(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        flags.parse(argv)


# Rounds of disjoint pairs, and what fits into the time.

FLOWING = [(0.01 * step, 1000 * step) for step in range(11)]


@pytest.mark.parametrize(
    ("marks", "bits_per_s"),
    [
        # The first quarter does not count.
        ([(0.0, 0), (0.001, 70_000), *((0.01 * step, 70_000 + 12_500 * step) for step in range(1, 41))], 10e6),
        # A stall at the end counts.
        (FLOWING, 800e3),
        ([*FLOWING, (0.9, 10_000)], 0.0),
        # A receiver that was held up is not taken for a fast link.
        ([(0.0, 0), (0.3, 1_000_000), (0.301, 2_000_000)], 8 * 2_000_000 / 0.301),
        ([(0.0, 0)], 0.0),
        ([(0.0, 0), (1.0, 0)], 0.0),
    ],
)
def test_the_rate_of_what_arrived(marks: list[tuple[float, int]], bits_per_s: float) -> None:
    assert rate_bits_per_s(marks) == pytest.approx(bits_per_s)


@pytest.mark.parametrize("bits_per_s", [1e6, 1e7, 1e9, 1e11])
def test_what_is_under_way_drains_soon(bits_per_s: float) -> None:
    for passed_s in (0.001, 0.01, 0.1, 1.0):
        acknowledged = int(bits_per_s / 8 * passed_s)
        window = window_bytes(acknowledged, passed_s)
        assert window <= max(FIRST_BYTES, 1.01 * bits_per_s / 8 * prober.HORIZON_S)
        assert window <= acknowledged + FIRST_BYTES


def names(count: int) -> list[str]:
    return [f"node{number}" for number in range(1, count + 1)]


@pytest.mark.parametrize("count", range(34))
def test_every_pair_meets_once_in_rounds_without_a_common_node(count: int) -> None:
    found = [one for one in pair_rounds(names(count)) if one]
    pairs = [frozenset(pair) for one in found for pair in one]
    assert sorted(map(sorted, pairs)) == sorted(map(sorted, combinations(names(count), 2)))
    for one in found:
        busy = [node for pair in one for node in pair]
        assert len(busy) == len(set(busy))
    assert len(found) == (0 if count < 2 else count - 1 + count % 2)


@pytest.mark.parametrize("count", [3, 4, 5, 8, 9, 16, 17])
def test_two_rounds_in_a_row_connect_all_nodes(count: int) -> None:
    for one, other in pairwise(pair_rounds(names(count))):
        reached = {names(count)[0]}
        for _ in range(count):
            reached |= {node for pair in (*one, *other) if reached & set(pair) for node in pair}
        assert reached == set(names(count))


@pytest.mark.parametrize(
    ("networks", "budget_s", "rounds", "left_out"),
    [
        ({"ib": names(16), "ethernet": names(16)}, 8.0, ["ib", "ethernet"] * 15, 0),
        ({"ib": names(4), "ethernet": names(4)}, 8.0, ["ib", "ethernet"] * 3, 0),
        ({"ib": names(4), "ethernet": names(2)}, 8.0, ["ib", "ethernet", "ib", "ib"], 0),
        ({"ib": names(4)}, lead.OVERHEAD_S, [], 3),
        ({}, 8.0, [], 0),
        ({"ib": []}, 8.0, [], 0),
        ({"ib": ["node1"]}, 8.0, [], 0),
    ],
)
def test_networks_take_turns_within_their_time(
    networks: dict[str, list[str]], budget_s: float, rounds: list[str], left_out: int
) -> None:
    found = plan_links(networks, budget_s)
    assert [one.network for one in found.rounds] == rounds
    assert len(found.left_out) == left_out
    assert found.wall_s <= 8.0 + 1e-9
    assert BANDWIDTH_S[0] <= found.bandwidth_s <= BANDWIDTH_S[1]
    if 0 < len(rounds) < 10:  # few pairs do not spend all the time
        assert (found.latency_s, found.bandwidth_s) == (LATENCY_S[1], BANDWIDTH_S[1])


def test_what_does_not_fit_is_left_out_evenly() -> None:
    found = plan_links({"ib": names(64), "ethernet": names(64)}, 8.0)
    assert found.wall_s <= 8.0 + 1e-9
    kept = [sum(one.network == word for one in found.rounds) for word in ("ib", "ethernet")]
    assert abs(kept[0] - kept[1]) <= 1
    assert len(found.rounds) + len(found.left_out) == 2 * 63
    assert {pair for one in found.rounds for pair in one.pairs if one.network == "ib"}.isdisjoint(
        pair for one in found.left_out for pair in one.pairs if one.network == "ib"
    )


def test_some_pairs_without_a_common_node() -> None:
    assert disjoint([("a", "b"), ("b", "c"), ("c", "d"), ("a", "c")]) == (
        (("a", "b"), ("c", "d")),
        (("b", "c"),),
        (("a", "c"),),
    )


# ---------------------------------------------------------------- what the links show on the way


ONCE = [("a", "d", "timed out"), ("b", "c", "")]
TWICE = [*ONCE, ("b", "d", "timed out"), ("a", "c", "")]


@pytest.mark.parametrize(
    ("links", "network", "found"),
    [
        (ONCE, "ib", set()),  # a may be the dead one
        (TWICE, "ib", {"d"}),
        (TWICE, "ethernet", set()),
        ([*TWICE, ("c", "d", "")], "ib", set()),
        # a meets only dead ones
        ([("a", "x", "timed out"), ("a", "y", "timed out"), ("b", "c", ""), ("b", "x", "timed out")], "ib", set()),
    ],
)
def test_a_node_that_others_fail_to_reach_twice_is_hopeless(
    links: list[tuple[str, str, str]], network: str, found: set[str]
) -> None:
    assert hopeless([Link(network="ib", client=a, server=b, error=why) for a, b, why in links], network) == found


def test_the_better_of_two_measurements() -> None:
    def link(latency_s: float, forth: float, back: float) -> Link:
        found = Link(network="ib", client="a", server="b", latency_s=latency_s)
        return replace(found, forth_bits_per_s=forth, back_bits_per_s=back)

    assert better(link(3.0, 1.0, 9.0), link(2.0, 8.0, 7.0)) == link(2.0, 8.0, 9.0)
    stalled = replace(link(3.0, 1.0, 9.0), back_bits_per_s=None, error="timed out")
    assert better(stalled, link(2.0, 8.0, 7.0)) == link(2.0, 8.0, 7.0)
