"""What the preflight's file adds to a prediction, and whose network it must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.records.network import Network, Place
from scaling.records.task import timed
from scaling.tools.check.facts import AllReduce, Facts, Findings, Link
from scaling.tools.predict import __main__ as command
from scaling.tools.predict import preflight
from scaling.tools.predict.fit import fit, predict
from scaling.tools.predict.forecast import Case
from scaling.tools.predict.priors import read
from tests.support.predicted_runs import HEADER, run
from tests.support.scripted_clusters import RESNET50, case
from tests.support.scripted_records import written

SERIAL = replace(
    RESNET50, gradient_bytes=440e6, link="tcp10", line_bytes_per_s=1.25e9, overlap="serial", messages="one"
)
ONE_NODE = case({4: 0.75}, SERIAL, interconnect="eth0")


def network(word: str = "eth0", subnet: str = "10.0.0.0/24") -> Network:
    places = {name: Place(address="10.0.0.1", interface=word) for name in ("node1", "node2")}
    return Network(word=word, why="", subnet=subnet, places=places)


def found(word: str = "eth0") -> Facts:
    """8 ranks on two nodes, whose 25 MB take 42 ms: 1.04 GB/s; 30 us each way, flows of 9.4 Gb/s."""
    link = Link(
        network=word,
        client="node1",
        server="node2",
        latency_s=30e-6,
        forth_bits_per_s=9.4e9,
        back_bits_per_s=9.4e9,
    )
    everyone = timed(8, 25_000_000, (0.042, 0.041, 0.043))
    inside = {name: timed(4, 25_000_000, (0.01, 0.01)) for name in ("node1", "node2")}
    one = AllReduce(network=word, backend="gloo", everyone=everyone, inside=inside)
    return Facts(ranks=(), networks=(network(word),), links=(link,), all_reduces=(one,))


def file(folder: Path, facts: Facts) -> Path:
    path = folder / "check.json"
    path.write_bytes(msgspec.json.encode(Findings(facts=facts, verdicts=(), wall_s=1.0)))
    return path


def width(one: Case) -> float:
    told = predict(fit(one.setting, one.known, read()), [one.layout(64)])
    return float(told.high[0] - told.low[0])


def test_its_all_reduces_latency_and_flows_are_evidence(tmp_path: Path) -> None:
    told = preflight.added(ONE_NODE, preflight.read(file(tmp_path, found())))
    assert [(one.at.world_size, one.at.nodes, one.seconds) for one in told.known.exchanges] == [
        (8, 2, 0.042),
        (4, 1, 0.01),
        (4, 1, 0.01),
    ]
    assert {one.setting.gradient_bytes for one in told.known.exchanges if one.setting} == {25e6}
    assert [one.role for one in told.known.constants] == ["alpha", "network"]
    assert [one.value for one in told.known.constants] == pytest.approx([30e-6, 1.175e9])
    assert "eth0 as the preflight measured it: 3 all-reduces, 2 constants" in told.notes


def test_the_interval_narrows_where_one_node_alone_was_trained_on(tmp_path: Path) -> None:
    slow = replace(SERIAL, link="tcp", line_bytes_per_s=12.5e9)
    one = case({4: 0.75}, slow, interconnect="eth0")
    told = preflight.added(one, preflight.read(file(tmp_path, found())))
    assert width(told) < 0.9 * width(one)


def test_a_tcp_flow_says_nothing_of_rdma(tmp_path: Path) -> None:
    told = preflight.added(case({4: 0.9}, interconnect="eth0"), preflight.read(file(tmp_path, found())))
    assert not told.known.constants
    assert len(told.known.exchanges) == 3


def test_the_network_is_found_by_name_or_subnet(tmp_path: Path) -> None:
    facts = preflight.read(file(tmp_path, found("ib0")))
    auto = case({4: 0.75}, SERIAL, interconnect="auto")
    assert preflight.added(auto, facts, [network("auto")]).known.constants
    with pytest.raises(UsageError, match=r"it measured ib0, not auto; run: python -m scaling check --json"):
        preflight.added(auto, facts, [network("auto", "10.9.0.0/24")])


def test_shaped_links_and_empty_files_are_refused(tmp_path: Path) -> None:
    facts = preflight.read(file(tmp_path, found()))
    with pytest.raises(UsageError, match="not for emulated devices"):
        preflight.added(ONE_NODE._replace(setting=replace(SERIAL, emulated=True)), facts)
    nothing = preflight.read(file(tmp_path, Facts(ranks=(), networks=(network(),))))
    with pytest.raises(UsageError, match="eth0 was not measured"):
        preflight.added(ONE_NODE, nothing)


def test_the_command_takes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "run", (HEADER, run()))
    path = file(tmp_path, found("auto"))
    assert command.main([str(folder), "--world-sizes", "16", "--check", str(path)]) == 0
    assert "note: auto as the preflight measured it" in capsys.readouterr().out
    path.write_text("{}")
    assert command.main([str(folder), "--check", str(path)]) == 2
    assert "python -m scaling check --json >" in capsys.readouterr().err
    assert command.main([str(folder), "--check", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("part", "changes", "said"),
    [
        ("links", {"latency_s": -1e-5}, "Expected `float` > 0"),
        ("links", {"back_bits_per_s": 0.0}, "Expected `float` > 0"),
        ("everyone", {"times_s": ()}, "length >= 1"),
        ("everyone", {"times_s": (0.1, 0.0)}, "Expected `float` > 0"),
        ("everyone", {"ranks": 1}, "Expected `int` >= 2"),
        ("everyone", {"bytes": 0}, "Expected `int` >= 1"),
    ],
)
def test_what_no_preflight_measures_is_refused(
    tmp_path: Path, part: str, changes: dict[str, Any], said: str
) -> None:
    """It was predicted from: nan to nan, and a traceback where no time stood."""
    facts = found()
    if part == "links":
        facts = replace(facts, links=tuple(replace(one, **changes) for one in facts.links))
    else:
        (one,) = facts.all_reduces
        assert one.everyone is not None
        facts = replace(facts, all_reduces=(replace(one, everyone=replace(one.everyone, **changes)),))
    with pytest.raises(UsageError, match=said):
        preflight.read(file(tmp_path, facts))


def test_cold_takes_the_only_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(file(tmp_path, found()))
    words = "--cold --rate 250 --model resnet50 --batch-size 64 --devices-per-node 4 --network tcp:10 --check"
    assert command.main([*words.split(), path]) == 0
    assert "eth0 as the preflight measured it" in capsys.readouterr().out
