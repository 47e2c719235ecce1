"""Verdicts on labs, under a real mpirun: a healthy one passes, a planted link or burner fails by its name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaling.records import store
from scaling.records.run import Certificate
from scaling.tools.lab import lifecycle
from scaling.tools.lab.state import Lab
from tests.support import burner, labs
from tests.support.labs import needs_lab

pytestmark = [needs_lab, pytest.mark.timeout(660)]
LIMIT_S = 600.0
# Steps of 0.15 s that leave most of two cores idle.
EMULATED = (
    "--device", "emulated:p100", "--model", "resnet50", "--batch-size", "32", "--shrink", "30", "--dilate", "1",
    "--strategy", "torch:gloo", "--interconnect", "eth0",
)  # fmt: skip
CORES = sorted(os.sched_getaffinity(0))
# The nodes share the cores of this machine: node2's rank alone is on the last one, with the burner.
APART = f'[ "$OMPI_COMM_WORLD_RANK" = 1 ] && cpu={CORES[-1]} || cpu={CORES[0]}; exec taskset -c $cpu "$@"'


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with labs.lab("certify", nodes=4, slots=1, nics=("ib0=100gbit", "eth0=10gbit")) as made:
        yield made


def certified(
    lab: Lab, results: Path, *flags: str, ranks: int = 4, within: tuple[str, ...] = ()
) -> tuple[int, Certificate, str]:
    words = (
        "python",
        "-m",
        "scaling",
        "certify",
        "--minutes",
        "8",
        *flags,
        "--no-page",
        "--results",
        str(results),
    )
    launch = ("run", "--name", lab.name, "--", "-np", str(ranks), *within, *words, "--results", str(results))
    done = labs.command(*launch, timeout_s=LIMIT_S)
    runs = [*results.glob("*-certify")]
    assert len(runs) == 1, done.stdout + done.stderr
    found = store.read(runs[0]).certificate
    assert found is not None, done.stdout + done.stderr
    return done.returncode, found, done.stdout


def test_a_healthy_lab_passes(lab: Lab, tmp_path: Path) -> None:
    code, found, out = certified(lab, tmp_path, *EMULATED, "--line", "40%", "--line-really")
    if found.result == "NO VERDICT" and "correlation" in found.why:  # as it must say of such rounds
        pytest.skip(f"the load of this machine changed meanwhile: {found.why}")
    assert (code, found.result) == (0, "PASS"), out
    assert out.rstrip().splitlines()[-1].endswith("verdict PASS") and "EMULATED" in out


def test_a_planted_link_fails_by_its_name(lab: Lab, tmp_path: Path) -> None:
    lifecycle.change(lab.name, ["node2.eth0=50%"])
    try:
        code, found, out = certified(lab, tmp_path, *EMULATED, "--line", "95%")
    finally:
        lifecycle.change(lab.name, ["node2.eth0=100%"])
    assert (code, found.result) == (1, "FAIL"), out
    # Under load the preflight may miss the link; then the search names its node.
    named = [one for one in found.where if "eth0: node2 is slow" in one or one.startswith("slow node: node2 ")]
    assert named, found.where


@pytest.mark.matrix  # a planted link shows the verdict and its name in less time
@pytest.mark.skipif(len(CORES) < 2, reason="needs a core for the burner, and another for the other nodes")
def test_a_node_with_a_burner_fails_by_its_name(lab: Lab, tmp_path: Path) -> None:
    with burner.burning(CORES[-1], busy_s=0.03, idle_s=0.01, first=True):
        code, found, out = certified(lab, tmp_path, *EMULATED, "--line", "95%", within=("sh", "-c", APART, "sh"))
    assert (code, found.result) == (1, "FAIL"), out
    assert any("eth0: node2 is slow" in one for one in found.where), found.where
    assert any(one.startswith("load: ") for one in found.where), found.where


def test_a_lab_without_receipts_gets_no_verdict(lab: Lab, tmp_path: Path) -> None:
    unknown_bytes = ("--device", "cpu", "--strategy", "fake:a-async", "--interconnect", "eth0")
    code, found, out = certified(lab, tmp_path, *unknown_bytes, "--line", "10%", "--line-really", ranks=2)
    assert (code, found.result) == (3, "NO VERDICT"), out
    assert found.why.startswith("UNVERIFIED"), found.why
