"""A new framework is a folder: planted into a copy of the package, it is listed, measured and explained."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "scaling"
QUICK = (
    "--kinds", "solo,exchange", "--rounds", "1", "--windows", "3", "--window-s", "0.01", "--soak-s", "0",
    "--no-page", "--world-sizes", "1", "--option", "step_s=0.002",
)  # fmt: skip
DECLARED = """
from scaling.frameworks.base import Framework

FRAMEWORK = Framework(
    name="planted",
    strategies={"ring": "ring", "plain": "ring"},
    aliases={"circle": "ring"},
    distributions={"msgspec": ("msgspec",)},
    startup_s=47.0,
    resident_bytes=50_000_000,
    returns_early=("cpu",),
    variables="PLANTED_",
    own_variables="PLANTS_OWN$",
    explained={"leaves": "a word that only this framework has."},
)
"""
RING = """
from scaling.frameworks.fake.strategy import Fake

class Ring(Fake):
    names = ("planted:ring", "planted:plain")
    baseline = "planted:plain"

STRATEGY = Ring()
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("planted")
    shutil.copytree(PACKAGE, root / "scaling")
    folder = root / "scaling/frameworks/planted"
    folder.mkdir()
    (folder / "__init__.py").write_text(DECLARED)
    (folder / "ring.py").write_text(RING)
    return root


def measure(path: str, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A quick run of one rank with this PYTHONPATH, as a user starts it."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("SCALING_", "GIT_"))}
    return subprocess.run(
        [sys.executable, "-m", "scaling.run", "--ranks", "1", *QUICK, *argv], cwd=cwd,
        env={**environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def run(root: Path, *argv: str) -> str:
    environ = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", *argv]
    done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_listed_with_its_options(planted: Path) -> None:
    lines = run(planted, "scaling.run", "--ranks", "1", "--list").splitlines()
    (line,) = (one for one in lines if one.startswith("  planted:ring "))
    assert line.endswith("ready")
    names = next(one for one in lines if one.startswith("  planted:ring") and one != line)
    assert lines[lines.index(names) + 1].split()[0] == "step_s=0.01"


def test_its_startup_is_in_the_estimate(planted: Path) -> None:
    """Of one worker; another framework's takes 3 s."""
    flags = ("--world-sizes", "1", "--rounds", "1", "--kinds", "exchange", "--fresh-workers", "--dry-run")
    names = ("planted:ring", "fake:ring")
    told = [run(planted, "scaling.run", "--ranks", "1", "--strategy", name, *flags) for name in names]
    own_s, other_s = (float(found[1]) for one in told if (found := re.search(r", about ([\d.]+) s;", one)))
    assert own_s - other_s == pytest.approx(44, abs=1)


def test_it_is_measured_and_its_words_are_in_the_report(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLANTED_DEPTH", "PLANTS_OWN"):
        monkeypatch.setenv(name, "2")
    done = measure(str(planted), "--strategy", "planted:circle", "--results", "results", cwd=planted)
    assert done.returncode == 0, done.stderr
    (record,) = (planted / "results").glob("*/run.jsonl")
    header = json.loads(record.read_text().partition("\n")[0])
    (host,) = header["hosts"]
    assert host["variables"]["PLANTED_DEPTH"] == "2"
    assert "PLANTS_OWN=2 (dropped: scaling sets it for each process)" in host["changed_variables"]
    assert "msgspec" in host["versions"]
    told = " ".join(run(planted, "scaling", "report", str(record), "--verbose").split())
    assert "planted:ring" in told
    assert "leaves a word that only this framework has." in told
