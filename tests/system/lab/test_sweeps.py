"""Sweeps over several nodes and two networks, for real: whose bytes are counted where, and faults that are planted
in the middle. Nodes are those of a lab."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

from scaling import frameworks
from scaling.analysis.measured import traffic
from scaling.analysis.table import analyse
from scaling.frameworks.base import Strategy
from scaling.records import store
from scaling.records.events import Failed, Finished
from scaling.records.point import Point
from scaling.records.run import PointRecord
from scaling.tools.lab import lifecycle
from scaling.tools.lab.state import Lab
from tests.support import labs
from tests.support.labs import needs_lab
from tests.support.matrix import cases
from tests.support.mpis import IMPATIENT
from tests.support.waiting import eventually

pytestmark = needs_lab
LIMIT_S = 200.0
QUICK = (
    "--rounds", "1", "--kinds", "exchange", "--window-s", "0.1", "--windows", "5", "--soak-s", "0",
    "--device", "cpu",
)  # fmt: skip
# Bytes that the scripted strategy sends in a step, each way.
TRAFFIC = 1_000_000


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with labs.lab("sweep", nodes=2, slots=1, nics=("ib0=500mbit", "eth0=100mbit")) as made:
        yield made


@contextmanager
def sweeping(
    lab: Lab, results: Path, *flags: str, python: Sequence[str] = ("python",), **environ: str
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "scaling", "lab", "run", "--name", lab.name, "--"]
    into = () if "--resume" in flags else ("--results", str(results))
    command += ["-np", str(len(lab.nodes)), *python, "-m", "scaling.run", *into, *flags]
    with (results.parent / "said").open("a") as said:
        env = {**os.environ, **environ}
        process = subprocess.Popen(command, cwd=labs.ROOT, env=env, stdout=said, stderr=said, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(120)


def swept(lab: Lab, results: Path, *flags: str, **environ: str) -> tuple[int, list[PointRecord]]:
    """A sweep to its end: its exit code and its records."""
    results.mkdir(exist_ok=True)
    with sweeping(lab, results, *flags, **environ) as process:
        code = process.wait(LIMIT_S)
    return code, records(results)


def records(results: Path) -> list[PointRecord]:
    """Those of the run so far; none before its header."""
    found = [run for run in results.glob("*/run.jsonl") if b"\n" in run.read_bytes()]
    return [*store.load(found[0])[1]] if found else []


def installed(name: str) -> Strategy:
    """The strategy; the test is skipped without its framework."""
    strategy = frameworks.load(name)
    if reason := strategy.missing(name):
        pytest.skip(reason)
    return strategy


def verdicts(found: list[PointRecord]) -> dict[str, tuple[str, str]]:
    """By network: whether the bytes took it, and why not."""
    told = {record.point.interconnect: traffic.of(record) for record in found}
    return {word: (one.verdict, one.why) for word, one in told.items() if one is not None}


# ---------------------------------------------------------------- which card


@pytest.mark.parametrize("each", cases([MOST := "torch:gloo torch:ps-sync jax:psum", "jax:fsdp"], [MOST]))
def test_every_point_is_seen_on_the_network_that_it_asked_for(lab: Lab, tmp_path: Path, each: str) -> None:
    names = [name for name in each.split() if frameworks.load(name).missing(name) is None]
    if not names:
        pytest.skip(f"none of these is installed: {each}")
    flags = ("--strategy", ",".join(names), "--world-sizes", "2", "--interconnect", "ib,eth0")
    code, found = swept(lab, tmp_path / "results", *flags, *QUICK)
    assert code == 0, (tmp_path / "said").read_text()
    assert len(found) == 2 * len(names)
    for record in found:
        receipt = traffic.of(record)
        assert receipt is not None
        card = {"ib": "ib0", "eth0": "eth0"}[record.point.interconnect]
        assert (receipt.verdict, receipt.wanted) == ("VERIFIED", (card,))
        if record.point.strategy != "jax:fsdp":
            assert receipt.over_expected == pytest.approx((1.03, 1.03), abs=0.05)


def test_horovod_is_seen_on_the_network_that_it_asked_for_or_refused(lab: Lab, tmp_path: Path) -> None:
    """Names of a lab's nodes are on its last network."""
    obeys = installed("torch:horovod").name_address("torch:horovod") is None
    flags = ("--strategy", "torch:horovod", "--world-sizes", "2", "--interconnect", "ib0,eth0", *QUICK)
    code, found = swept(lab, tmp_path / "results", *flags)
    assert code == (0 if obeys else 1), (tmp_path / "said").read_text()
    assert verdicts(found) == dict.fromkeys(("eth0", "ib0")[: 1 + obeys], ("VERIFIED", ""))
    refused = [one.outcome.cause for one in found if isinstance(one.outcome, Failed)]
    assert refused == ([] if obeys else ["refused"])


@pytest.mark.parametrize(
    "name", cases([GLOO := "tests.support.miswired:gloo", "tests.support.miswired:psum"], [GLOO])
)
def test_bytes_that_are_forced_to_the_other_card_are_found_there(lab: Lab, tmp_path: Path, name: str) -> None:
    installed(name)
    flags = ("--strategy", name, "--world-sizes", "2", "--interconnect", "ib0", *QUICK)
    wrong = {"SCALING_MISWIRED": "eth0", "PYTHONPATH": str(labs.ROOT)}
    code, found = swept(lab, tmp_path / "results", *flags, **wrong)
    assert code == 0, (tmp_path / "said").read_text()
    assert verdicts(found) == {"ib0": ("MISLABELLED", "100% of the bytes went over eth0")}
    text = (tmp_path / "said").read_text()
    assert "scaling check: the bytes took another network than the name says" in " ".join(text.split())


def test_an_unknown_network_is_refused_with_those_that_there_are(lab: Lab, tmp_path: Path) -> None:
    code, found = swept(lab, tmp_path / "results", "--strategy", "fake:a", "--interconnect", "ib1", *QUICK)
    text = (tmp_path / "said").read_text()
    assert (code, found) == (2, [])
    assert "--interconnect ib1: not on node1, which has ib0 10.10.0.1, eth0 10.20.0.1; did you mean 'ib'?" in text


# ---------------------------------------------------------------- faults


def test_a_slow_link_is_named_by_the_row_that_waits_for_it(tmp_path: Path) -> None:
    """In a ring all ranks are equally slow: the connections tell."""
    flags = ("--strategy", "torch:gloo", "--world-sizes", "4", "--interconnect", "ib0", *QUICK)
    with labs.lab("slow", nodes=4, slots=1, nics=("ib0=500mbit", "eth0=100mbit")) as lab:
        lifecycle.change(lab.name, ["node2.ib0=10%"])
        (tmp_path / "results").mkdir()
        with sweeping(lab, tmp_path / "results", *flags) as process:
            assert process.wait(LIMIT_S) == 0, (tmp_path / "said").read_text()
    (row,) = analyse.rows(records(tmp_path / "results"))
    assert all("node2" in (path.node, path.peer) for path in row.paths[:2]), row.paths
    assert any(note.startswith("slow link: node2; ") for note in row.footnotes), row.footnotes


def test_a_card_that_goes_down_costs_its_point_alone(lab: Lab, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    fake = ("--strategy", "fake:a", "--option", f"traffic_bytes={TRAFFIC}", "--option", "step_s=0.05")
    flags = (*fake, "--interconnect", "ib0,eth0", "--world-sizes", "2", "--stall-timeout-s", "5", *QUICK)
    with sweeping(lab, results, *flags, "--windows", "30") as process:
        before = labs.sent_bytes(lab, "node2", "ib0")
        eventually(
            lambda: labs.sent_bytes(lab, "node2", "ib0") > before + 20 * TRAFFIC,
            (tmp_path / "said").read_text,
            within_s=LIMIT_S,
            of=process,
        )
        lifecycle.change(lab.name, ["node2.ib0=down"])
        try:
            code = process.wait(LIMIT_S)
        finally:
            lifecycle.change(lab.name, ["node2.ib0=up"])
    outcomes = {record.point.interconnect: record.outcome for record in records(results)}
    assert isinstance(outcomes["eth0"], Finished), (tmp_path / "said").read_text()
    assert isinstance(outcomes["ib0"], Failed)
    assert outcomes["ib0"].cause == "hang"
    assert code == 1


@pytest.mark.timeout(3 * LIMIT_S)
def test_a_node_that_falls_silent_ends_the_run_with_its_table_and_leaves_nothing(lab: Lab, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    flags = ("--strategy", "fake:a", "--world-sizes", "2", *QUICK, "--rounds", "50")
    with sweeping(lab, results, *flags, python=("python", "-c", IMPATIENT)) as process:
        eventually(lambda: len(records(results)) > 1, (tmp_path / "said").read_text, within_s=LIMIT_S, of=process)
        lifecycle.change(lab.name, [f"node2.{card}=down" for card in ("ib0", "eth0")])
        try:
            code = process.wait(LIMIT_S)
        finally:
            lifecycle.change(lab.name, [f"node2.{card}=up" for card in ("ib0", "eth0")])
    assert code != 0
    said = (tmp_path / "said").read_text()
    assert "no message from rank 1 on node2 for 8 s" in said
    assert "  trust  " in said
    failed = [record.outcome for record in records(results) if isinstance(record.outcome, Failed)]
    assert all("no message from rank 1 on node2" in outcome.message for outcome in failed)


@pytest.mark.timeout(3 * LIMIT_S)
def test_killing_a_node_ends_the_job_and_resume_completes_it(lab: Lab, tmp_path: Path) -> None:
    """In the second round: what the first has measured is kept, and only the second is measured again."""
    results = tmp_path / "results"
    results.mkdir()
    flags = ("--strategy", "fake:a,fake:b,fake:c", "--option", "step_s=0.05", "--world-sizes", "2", *QUICK)
    with sweeping(lab, results, *flags, "--rounds", "2", "--windows", "20") as process:
        # Other programs may have the cores: then rank 0 waits until they are quiet, as long as the rounds take.
        said = (tmp_path / "said").read_text
        eventually(lambda: len(records(results)) == 3, said, within_s=LIMIT_S, of=process)
        kill_node(lab, "node2")
        process.wait(120)  # Open MPI 5 then exits with 0
    kept = keys(records(results))
    assert len(kept) == 3
    (run,) = results.iterdir()
    with sweeping(lab, results, "--resume", str(run)) as process:
        assert process.wait(LIMIT_S) == 0, (tmp_path / "said").read_text()
    found = records(results)
    assert kept < keys(found)
    assert len(keys(found)) == 6
    assert all(isinstance(record.outcome, Finished) for record in found)


def keys(found: list[PointRecord]) -> set[str]:
    points: list[Point] = [record.point for record in found]
    return {point.key for point in points}


def kill_node(lab: Lab, node: str) -> None:
    """Kill all that runs in its network namespace, as a power cut would."""
    inside = f"net:[{lab.holder.inodes[node]}]"
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if str(Path(f"/proc/{process.pid}/ns/net").readlink()) == inside:
                process.kill()
