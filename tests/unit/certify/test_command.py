"""A verdict that leads a launch of scripted workers: PASS, FAIL, NO VERDICT, and wrong calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scaling.errors import ScalingError, UsageError
from scaling.plan import config, plan
from scaling.records import store
from scaling.records.host import Gpu, HostInfo, Nic
from scaling.records.run import Certificate
from scaling.report import reference
from scaling.report.__main__ import main as report
from scaling.report.material import Material
from scaling.run import ranks
from scaling.tools.certify import flags
from tests.support import stand_in_launch
from tests.support.inline import enrol, host

pytestmark = pytest.mark.usefixtures("without_git")
FAKE = ("--device", "cpu", "--no-page", "--view", "none")
SLOW = ("--option", "exchange_s=0.002")
NOISY = ("--option", "round_noise=0.05")
STEADY = ("--option", "noise=0.001")


@pytest.fixture
def without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "revision", lambda: "")


def certified(tmp_path: Path, *words: str, ranks: int = 2) -> tuple[int, Certificate]:
    """The exit code and the kept verdict of a launch of scripted workers on one node."""
    strategy = () if "--strategy" in words else ("--strategy", "fake:a")
    argv = [*FAKE, *strategy, "--results", str(tmp_path), *words]
    code = stand_in_launch.certify(ranks, argv)
    (run,) = tmp_path.glob("*-certify")
    found = store.read(run).certificate
    assert found is not None
    return code, found


@pytest.mark.parametrize(
    ("words", "ranks", "code", "result", "why"),
    [
        (STEADY, 2, 0, "PASS", "^$"),
        ((*SLOW, *STEADY), 2, 1, "FAIL", "efficiency at N=2 is at most"),
        ((*SLOW, *NOISY, "--line", "84%", "--minutes", "3"), 2, 3, "NO VERDICT", "on both sides of 84.0 %"),
        (
            ("--strategy", "fake:a-async", *STEADY),
            8,
            3,
            "NO VERDICT",
            "^UNVERIFIED: nothing proves",
        ),
        (("--option", "fail=nan"), 2, 1, "FAIL", "^the exchange failed: nan-loss"),
    ],
    ids=["above the line", "below", "in between", "several nodes without receipts", "a failed exchange"],
)
def test_a_machine_gets_its_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str], ranks: int, code: int, result: str,
    why: str,
) -> None:  # fmt: skip
    ended, found = certified(tmp_path, *words, ranks=ranks)
    assert (ended, found.result) == (code, result)
    assert re.search(why, found.why)
    assert re.search(rf"^{result}[:,] ", capsys.readouterr().out, re.M)
    assert all(one.line == (0.84 if "84%" in words else 0.95) for one in found.criteria)


def test_a_later_report_has_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certified(tmp_path, *STEADY)
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].endswith(" verdict PASS")
    (run,) = tmp_path.glob("*-certify")
    assert report([str(run)]) == 0
    assert capsys.readouterr().out == printed[printed.index("PASS: fake:a reaches ") :]
    assert report([str(run), "--format", "json"]) == 0
    assert '"result": "PASS"' in capsys.readouterr().out


def test_junit_has_a_case_for_each_criterion_and_a_fail_names_the_largest_loss(tmp_path: Path) -> None:
    file = tmp_path / "v.xml"
    _, found = certified(tmp_path, *SLOW, *STEADY, "--junit", str(file))
    assert found.where[-1].startswith("largest loss: ")
    suite = ElementTree.parse(file).getroot()
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("scaling certify", "1", "1")
    assert [case.get("name") for case in suite.findall("testcase")] == ["efficiency at N=2"]


def test_the_own_reference_passes_and_another_launch_is_refused(tmp_path: Path) -> None:
    certified(tmp_path, *STEADY)
    (run,) = tmp_path.glob("*-certify")
    whole, own = store.read(run), tmp_path / "own.toml"
    own.write_text(reference.toml(reference.of(Material(whole.header, whole.records))))
    code, found = certified(tmp_path / "same", *STEADY, "--reference", str(own))
    assert (code, [one.name for one in found.criteria]) == (0, ["efficiency at N=2", "one device alone"])
    for words, other in (
        ((*SLOW, *STEADY, "--reference", str(own)), r"options: noise=0\.001, here exchange_s"),
        (("--reference", "h200"), "device: NVIDIA H200, here Test CPU; model: resnet50"),
    ):
        with pytest.raises(UsageError, match=f"is of another launch: {other}"):
            certified(tmp_path / "other", *words)
        assert not (tmp_path / "other").exists()


def test_a_dry_run_prints_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stand_in_launch.certify(2, [*FAKE, "--results", str(tmp_path), "--dry-run"]) == 0
    assert "nothing was measured (--dry-run)" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--line", "0"], "--line 0: give a percentage from 2 to 100, like 95%"),
        (["--line", "101"], "--line 101: give a percentage"),
        (["--line", "nan"], "--line nan: give a percentage"),
        (["--line", ""], "--line : give a percentage"),
        (["--line", "-5%"], "--line -5%: give a percentage"),
        (["--minutes", "0"], "--minutes 0: not between 0 and 10080"),
        (["--minutes", "-1"], "--minutes -1: not between"),
        (["--minutes", "nan"], "--minutes nan: not between"),
        (["--minutes", "1e9"], "--minutes 1e\\+09: not between"),
        (["--minutes", "soon"], "--minutes"),
        (["--reference", "nowhere.toml"], "--reference nowhere.toml: No such file or directory"),
        (["--rounds", "3"], "--rounds"),
        (["--linee", "3"], "--line"),
        (["--junit", "/"], "--junit /: is a folder; name a file in it"),
        (["--junit", "/nowhere/v.xml"], "--junit /nowhere/v.xml: there is no folder /nowhere; make it first"),
    ],
)
def test_a_wrong_flag_is_refused(words: Sequence[str], said: str) -> None:
    with pytest.raises(ScalingError, match=said):
        flags.parse(words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--interconnect", "eth0,ib0"], "--interconnect eth0,ib0: a verdict is on one; name one"),
        (["--minutes", "0.01"], "--minutes 0.01: 6 rounds take about .* here; give --minutes 2 or more"),
    ],
)
def test_a_call_that_this_launch_cannot_obey_is_refused(tmp_path: Path, words: Sequence[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        stand_in_launch.certify(2, [*FAKE, "--results", str(tmp_path), *words])
    assert not list(tmp_path.iterdir())


def test_a_slow_node_is_searched_and_named(tmp_path: Path) -> None:
    slow = ("--option", "slow_host=node2", "--option", "slow_by=3", "--option", "exchange_s=0.004")
    code, found = certified(tmp_path, *slow, "--option", "comm_s=0.004", "--interconnect", "eth0", ranks=12)
    assert (code, found.result) == (1, "FAIL")
    (searched,) = [one for one in found.where if "node" in one]
    assert searched.startswith("slow node: node2 (python -m scaling report "), found.where


def gpu_node(name: str) -> HostInfo:
    gpus = tuple(
        Gpu(index=index, name="NVIDIA H100 80GB HBM3", uuid=f"GPU-{name}-{index}", memory_bytes=85 * 10**9)
        for index in range(8)
    )
    card = Nic(name="eth0", address=f"10.0.0.{name[-1]}", netmask="255.255.255.0", up=True, mtu=1500)
    driver = {"gpus": gpus, "gpu_driver": "580.95.05", "reachable_gpus": 8}
    return host(name, cores=112, memory_bytes=2 << 40, boot_id=name, nics=(card,), **driver)


def test_two_nodes_of_eight_gpus_have_time_for_many_rounds() -> None:
    asked = flags.parse([])
    assert asked is not None
    given = {**asked.invocation.given, "world_sizes": [16]}
    ranks = [enrol(gpu_node(f"node{1 + rank // 8}")) for rank in range(16)]
    made = plan.make(config.build(given, source="test"), ranks)
    assert 20 * made.estimate_s / made.rounds < 60 * asked.minutes
