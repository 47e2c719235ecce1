"""Commands in folders that hold files and folders with the names of modules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import scaling
from scaling.records import store

REPOSITORY = Path(scaling.__file__).parents[1]
QUICK = ("--rounds", "1", "--windows", "3", "--window-s", "0.01", "--kinds", "exchange", "--no-page")
MINE = """
from scaling.frameworks.fake.strategy import Fake

class Mine(Fake):
    names = ("mine:ring",)
    trainer = "scaling.frameworks.fake.trainer"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files that end whatever imports them, and a strategy from outside."""
    for name in ("random", "json", "rich", "typer", "msgspec", "subprocess", "mpi4py"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} of the working directory')\n")
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy/__init__.py").write_text("raise RuntimeError\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").touch()
    (tmp_path / "mine/rings.py").write_text(MINE.replace("mine:", "mine.rings:"))
    return tmp_path


def start(command: str, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = ["scaling.run"] if command == "run" else ["scaling", command]
    return subprocess.run(
        [sys.executable, "-m", *words, *argv],
        cwd=cwd, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("command", ["run", "check", "report", "compare", "history", "predict", "import", "lab"])
def test_no_command_takes_a_file_for_a_module(folder: Path, command: str) -> None:
    done = start(command, "--help", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_sweep_takes_strategies_alone_from_the_working_directory(folder: Path) -> None:
    done = start("run", "--ranks", "1", "--strategy", "mine.rings:ring,fake:a", *QUICK, cwd=folder)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "results").iterdir()
    assert {record.point.strategy for record in store.load(run)[1]} == {"mine.rings:ring", "fake:a"}


def test_an_editable_install_is_found_beside_its_clone(tmp_path: Path) -> None:
    """The clone, a folder `scaling` without an __init__.py, is a namespace package there."""
    pytest.importorskip("setuptools")
    clone, site = tmp_path / "scaling", tmp_path / "site"
    (clone / "scaling").mkdir(parents=True)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "scaling/__init__.py"):
        shutil.copy(REPOSITORY / name, clone / name)
    build = "from setuptools import build_meta; build_meta.build_editable('..')"
    subprocess.run([sys.executable, "-c", build], cwd=clone, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    code = f"import site; site.addsitedir({str(site)!r}); import scaling; print(scaling.__file__)"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert found.stdout == f"{clone}/scaling/__init__.py\n", found.stderr
