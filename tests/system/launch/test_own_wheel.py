"""The wheel of scaling in an environment of its own: what it brings, and its first run, far from any clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from scaling.report.material import PAGE_FILE
from tests.support.fresh_machine import REPOSITORY
from tests.support.mpis import MPIS

SOURCES = ("scaling", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
QUICK = ("--strategy", "fake:a", "--rounds", "1", "--windows", "3", "--window-s", "0.02", "--soak-s", "0")


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    own = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_", "SCALING_PAGE"))
    }
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env={**own, **environ}, capture_output=True, text=True, check=False,
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as launch/README.md says, without an index."""
    clone = tmp_path_factory.mktemp("clone")
    for name in SOURCES:
        source = REPOSITORY / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, clone / name)
    run(
        sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", ".",
        cwd=clone,
    )  # fmt: skip
    (found,) = (clone / "dist").glob("scaling_bench-*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment with the wheel; what it requires is this environment's, which is no place of `scaling` there:
    Python reads no .pth in a folder that another .pth names."""
    place = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=place)
    found = place / "bin/python"
    run(sys.executable, "-m", "pip", "--python", found, "install", "--no-deps", "--no-index", wheel, cwd=place)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(
        "".join(f"{path}\n" for path in sys.path if path.endswith("site-packages"))
    )
    yield found


def test_it_asks_for_what_the_clone_asks_for(wheel: Path) -> None:
    clone = ConfigParser()
    clone.read(REPOSITORY / "setup.cfg")
    with zipfile.ZipFile(wheel) as opened:
        (about,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = opened.read(about).decode()
    asked = [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist: ") and "extra ==" not in line
    ]
    wanted = clone["options"]["install_requires"].strip().splitlines()
    assert len(asked) == len([one for one in wanted if not one.startswith("#")])
    for extra in clone["options.extras_require"]:
        assert f"Provides-Extra: {extra}" in metadata


def test_its_first_run_ends_in_the_answer_and_a_page(python: Path, tmp_path: Path) -> None:
    place = run(python, "-c", "import scaling; print(scaling.__file__)", cwd=tmp_path)
    assert Path(place).is_relative_to(python.parents[1])
    mpi = MPIS[1]
    said = run(mpi.mpirun, "-np", "2", python, "-m", "scaling.run", *QUICK, cwd=tmp_path, **mpi.environ(2))
    assert "\nscaling: fake:a N=2 " in said
    (result,) = (tmp_path / "results").iterdir()
    assert (result / PAGE_FILE).is_file()
    command = python.with_name("scaling")
    assert "fake:a" in run(command, "report", result, cwd=tmp_path)
    for words in (
        ["--version"],
        ["report", result, "--format", "json"],
        ["history", "results"],
        ["report", "--schema"],
    ):
        assert run(command, *words, cwd=tmp_path)
