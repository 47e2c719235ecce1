"""What the launchers take for granted of pip, asked of the real one: nothing is fetched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


def index(folder: Path, *versions: str) -> str:
    place = folder / "torch"
    place.mkdir(parents=True)
    names = [f"torch-{version}-py3-none-any.whl" for version in versions]
    for name, version in zip(names, versions, strict=True):
        with zipfile.ZipFile(place / name, "w") as wheel:
            at = f"torch-{version}.dist-info"
            wheel.writestr(f"{at}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
            wheel.writestr(f"{at}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{at}/RECORD", "")
    (place / "index.html").write_text("".join(f'<a href="{name}">{name}</a>' for name in names))
    return folder.as_uri()


def chosen(report: Path, *options: str, **environ: str) -> str:
    base = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
    command += ["--report", str(report), *options, "torch==2.13.0"]
    done = subprocess.run(
        command, env={**base, "PIP_CONFIG_FILE": os.devnull, **environ}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    version: str = json.loads(report.read_text())["install"][0]["metadata"]["version"]
    return version


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "report.json"


def test_a_build_of_the_index_beside_goes_before_the_same_version_without_a_name(
    tmp_path: Path, report: Path
) -> None:
    """So that --extra-index-url is enough to have torch for CUDA 12.6."""
    own = index(tmp_path / "pypi", "2.12.0", "2.13.0", "2.14.0")
    beside = index(tmp_path / "cu126", "2.12.0+cu126", "2.13.0+cu126", "2.14.0+cu126")
    assert chosen(report, "--index-url", own) == "2.13.0"
    assert chosen(report, "--index-url", own, "--extra-index-url", beside) == "2.13.0+cu126"


def test_the_option_leaves_the_index_that_a_variable_names(tmp_path: Path, report: Path) -> None:
    empty, beside = index(tmp_path / "empty"), index(tmp_path / "mirror", "2.13.0+cu126")
    other = index(tmp_path / "other")
    options = ("--index-url", empty, "--extra-index-url", other)
    assert chosen(report, *options, PIP_EXTRA_INDEX_URL=beside) == "2.13.0+cu126"
