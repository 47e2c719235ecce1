"""A strategy is two files and a line in its folder; a framework is a folder."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import scaling
from tests.support.started import ALONE, SCALING, ran

QUICK = (
    "--kinds", "solo,exchange", "--rounds", "1", "--windows", "3", "--window-s", "0.01", "--soak-s", "0",
    "--world-sizes", "1", "--option", "planted:ring.step_s=0.002", "--no-page",
)  # fmt: skip
FRAMEWORK = """
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
"""
TREE = """
from scaling.frameworks.base import Strategy

class Tree(Strategy):
    names = ("planted:tree",)
    baseline = "planted:plain"
    trainer = "scaling.frameworks.planted.tree_trainer"
"""
TREE_TRAINER = """
import time

class Trainer:
    parameters, gradient_bytes, device_name, versions, notes, samples = 10, 40, "tree", {}, (), 0

    def __init__(self, task):
        self.task = task

    def step(self):
        time.sleep(0.002)
        self.samples += 0 if self.task.point.kind == "comm" else self.task.point.workload.batch_size

    def sync(self): ...
    def loss(self): return None
    def digest(self): return None
    def peak_memory_bytes(self): return 0
    def close(self): ...

def connect(task):
    return Trainer(task)
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with a framework of its own, and a strategy beside that framework's."""
    root = tmp_path_factory.mktemp("planted")
    shutil.copytree(Path(scaling.__file__).parent, root / "scaling", ignore=shutil.ignore_patterns("__pycache__"))
    folder = root / "scaling/frameworks/planted"
    folder.mkdir()
    added = FRAMEWORK.replace('"plain": "ring"', '"plain": "ring", "tree": "tree"')
    for name, text in (("__init__", added), ("ring", RING), ("tree", TREE), ("tree_trainer", TREE_TRAINER)):
        (folder / f"{name}.py").write_text(text)
    return root


def run(root: Path, *argv: str, program: tuple[str, ...] = ALONE) -> str:
    done = ran(*argv, cwd=root, program=program, PYTHONPATH=str(root))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_are_listed_with_their_options(planted: Path) -> None:
    lines = run(planted, "--list").splitlines()
    for name in ("ring", "tree"):
        assert [line for line in lines if re.match(rf"  planted:{name} +ready", line)], lines
    (line,) = (one for one in lines if one.startswith("  planted:ring ") and one.endswith("ready"))
    names = next(one for one in lines if one.startswith("  planted:ring") and one != line)
    assert lines[lines.index(names) + 1].split()[0] == "step_s=0.01"


def test_its_startup_is_in_the_estimate(planted: Path) -> None:
    """Of one worker; another framework's takes 3 s."""
    flags = ("--world-sizes", "1", "--rounds", "1", "--kinds", "exchange", "--fresh-workers", "--dry-run")
    told = [run(planted, "--strategy", name, *flags) for name in ("planted:ring", "fake:ring")]
    own_s, other_s = (float(found[1]) for one in told if (found := re.search(r", about ([\d.]+) s;", one)))
    assert own_s - other_s == pytest.approx(44, abs=1)


def test_both_are_measured_and_its_words_are_in_the_report(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLANTED_DEPTH", "PLANTS_OWN"):
        monkeypatch.setenv(name, "2")
    assert "planted:tree" in run(planted, "--strategy", "planted:circle,planted:tree", *QUICK)
    (record,) = (planted / "results").glob("*/run.jsonl")
    header = json.loads(record.read_text().partition("\n")[0])
    (host,) = header["hosts"]
    assert host["variables"]["PLANTED_DEPTH"] == "2"
    assert "PLANTS_OWN=2 (dropped: scaling sets it for each process)" in host["changed_variables"]
    assert "msgspec" in host["versions"]
    told = " ".join(run(planted, "report", str(record), "--verbose", program=SCALING).split())
    assert "planted:ring" in told
    assert "leaves a word that only this framework has." in told
