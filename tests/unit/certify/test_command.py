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


def test_a_machine_above_the_line_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = certified(tmp_path, "--option", "noise=0.001")
    out = capsys.readouterr().out
    assert (code, found.result, found.why, found.where) == (0, "PASS", "", ())
    assert re.search(r"^PASS: fake:a reaches .* of linear scaling on 2 devices", out, re.M)
    assert out.splitlines()[-1].endswith(" verdict PASS")
    (one,) = found.criteria
    assert one.line == 0.95
    assert one.looks[-1].low > 0.95


def test_a_machine_below_the_line_fails_with_the_largest_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = certified(tmp_path, *SLOW, "--option", "noise=0.001")
    assert (code, found.result) == (1, "FAIL")
    assert "efficiency at N=2 is at most" in found.why
    assert found.where[-1].startswith("largest loss: ")
    assert re.search(r"^FAIL: ", capsys.readouterr().out, re.M)


def test_a_machine_without_an_interval_that_decides_gets_no_verdict(tmp_path: Path) -> None:
    code, found = certified(tmp_path, *SLOW, *NOISY, "--line", "84%", "--minutes", "3")
    assert (code, found.result) == (3, "NO VERDICT")
    assert "on both sides of 84.0 %" in found.why


def test_several_nodes_without_receipts_get_no_verdict(tmp_path: Path) -> None:
    code, found = certified(tmp_path, "--strategy", "fake:a-async", "--option", "noise=0.001", ranks=8)
    assert (code, found.result) == (3, "NO VERDICT")
    assert found.why.startswith("UNVERIFIED: nothing proves that the bytes crossed")


def test_a_failed_exchange_fails(tmp_path: Path) -> None:
    code, found = certified(tmp_path, "--option", "fail=nan")
    assert (code, found.result) == (1, "FAIL")
    assert found.why.startswith("the exchange failed: nan-loss")


def test_a_later_report_has_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certified(tmp_path, "--option", "noise=0.001")
    printed = capsys.readouterr().out
    (run,) = tmp_path.glob("*-certify")
    assert report([str(run)]) == 0
    assert capsys.readouterr().out == printed[printed.index("PASS:") :]
    assert report([str(run), "--format", "json"]) == 0
    assert '"result": "PASS"' in capsys.readouterr().out


def test_junit_has_a_case_for_each_criterion(tmp_path: Path) -> None:
    file = tmp_path / "v.xml"
    certified(tmp_path, *SLOW, "--option", "noise=0.001", "--junit", str(file))
    suite = ElementTree.parse(file).getroot()
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("scaling certify", "1", "1")
    (case,) = suite.findall("testcase")
    assert case.get("name") == "efficiency at N=2"


def own_reference(tmp_path: Path) -> str:
    """A reference that the same scripted machine gave."""
    certified(tmp_path, "--option", "noise=0.001")
    (run,) = tmp_path.glob("*-certify")
    whole = store.read(run)
    path = tmp_path / "own.toml"
    path.write_text(reference.toml(reference.of(Material(whole.header, whole.records))))
    return str(path)


def test_the_own_reference_passes_and_a_slower_machine_fails(tmp_path: Path) -> None:
    own = own_reference(tmp_path)
    same, slow = tmp_path / "same", tmp_path / "slow"
    code, found = certified(same, "--option", "noise=0.001", "--reference", own)
    assert (code, [one.name for one in found.criteria]) == (0, ["efficiency at N=2", "one device alone"])
    with pytest.raises(UsageError, match=r"is of another launch: options: noise=0\.001, here exchange_s"):
        certified(slow, *SLOW, "--option", "noise=0.001", "--reference", own)


def test_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="is of another launch: device: NVIDIA H200, here Test CPU; model: resnet50"
    ):
        certified(tmp_path, "--reference", "h200")
    assert not list(tmp_path.iterdir())


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
