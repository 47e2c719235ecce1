"""A strategy is two files and a line in its folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "scaling"
QUICK = ("--rounds", "1", "--windows", "3", "--window-s", "0.02", "--soak-s", "0", "--world-sizes", "1")

AGENT_SIDE = """
from scaling.frameworks.base import Strategy

class {name}(Strategy):
    names = ("{strategy}",)
    baseline = "toy:plain"
    trainer = "scaling.frameworks.{trainer}"

STRATEGY = {name}()
"""
WORKER_SIDE = """
import time

class Trainer:
    parameters, gradient_bytes, device_name, versions, notes, samples = 10, 40, "toy", {}, (), 0

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
FRAMEWORK = """
from scaling.frameworks.base import Framework
FRAMEWORK = Framework(name="toy", strategies={"plain": "plain"})
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package with a framework of its own."""
    copy = tmp_path / "code" / "scaling"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    folder = copy / "frameworks/toy"
    folder.mkdir()
    (folder / "__init__.py").write_text(FRAMEWORK)
    (folder / "plain.py").write_text(AGENT_SIDE.format(name="Plain", strategy="toy:plain", trainer="toy.loop"))
    (folder / "loop.py").write_text(WORKER_SIDE)
    return copy


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def scaling(package: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(package.parent)}
    command = [sys.executable, "-m", "scaling.run", "--ranks", "1", *argv]
    return subprocess.run(
        command, capture_output=True, text=True, env=environ, cwd=package.parent, timeout=120, check=False
    )


def test_a_strategy_is_two_files_and_a_line(package: Path) -> None:
    folder = package / "frameworks/toy"
    written = AGENT_SIDE.format(name="Tree", strategy="toy:tree", trainer="toy.tree_trainer")
    (folder / "tree.py").write_text(written)
    (folder / "tree_trainer.py").write_text("from scaling.frameworks.toy.loop import connect\n")
    edit(folder / "__init__.py", '"plain": "plain"', '"plain": "plain", "tree": "tree"')
    done = scaling(package, "--strategy", "toy:tree", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "toy:tree" in done.stdout
    assert "toy:tree" in scaling(package, "--list").stdout
